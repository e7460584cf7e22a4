"""Columns made from segment lengths, against a slow reading of the same law."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.runtime.loader import RowSegments, labels, targets
from tokenlake.runtime.loader import columns as columns_module

Rows = list[list[int]]
Bools = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rows, int]:
    """Segment lengths of each row, and the length of rows: full, padded and empty
    ones.
    """
    length = draw(st.sampled_from([1, 2, 3, 7, 16]))
    rows: Rows = []
    for _ in range(draw(st.integers(0, 6))):
        row, left = list[int](), draw(st.integers(0, length) | st.just(length))
        while left:
            row.append(draw(st.integers(1, left)))
            left -= row[-1]
        rows.append(row)
    return rows, length


def segments_of_rows(rows: Rows, length: int) -> RowSegments:
    """The segments of rows of which each has a list of segment lengths."""
    lengths = np.array([segment for row in rows for segment in row], np.int32)
    offsets = np.cumsum([0, *map(len, rows)])
    return RowSegments.of(lengths, offsets, length)


def _slow(
    rows: Rows, length: int
) -> tuple[list[list[int]], list[list[int]], list[list[bool]]]:
    """Id by id: which segment, which place in it, and whether something of the same
    segment lies before it.
    """
    number, place, follows = [], [], []
    for row in rows:
        cells = [(k + 1, p, p > 0) for k, size in enumerate(row) for p in range(size)]
        cells += [(0, 0, False)] * (length - len(cells))
        for column, index in ((number, 0), (place, 1), (follows, 2)):
            column.append([cell[index] for cell in cells])
    return number, place, follows


def _ids(shape: tuple[int, int]) -> Int32:
    """All different, some near the ends of 32 bits."""
    ids = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    ids[:, ::3] += 2**31 - 1 - ids.size
    ids[:, 1::3] -= 2**31 - 1
    return ids


def _made(
    segments: RowSegments, ids: Int32, learned: Bools | None = None
) -> dict[str, Int32 | Bools]:
    """All columns, written into arrays that held something else."""
    shape = ids.shape
    out = [np.full(shape, 77, np.int32) for _ in range(4)]
    mask = segments.loss_mask(learned, np.ones(shape, np.bool_))
    made = [
        segments.ids(out[0]),
        segments.positions(out[1]),
        labels(ids, mask, out[2]),
        targets(ids, mask, out[3]),
    ]
    assert all(column is given for column, given in zip(made, out, strict=True))
    return dict(
        zip(("segment_ids", "positions", "labels", "targets"), made, strict=True)
    ) | {"loss_mask": mask}


@given(batches(), st.integers(0, 2**32), st.integers(1, 40))
def test_columns_are_as_the_slow_way_says(
    batch: tuple[Rows, int], seed: int, chunk: int
) -> None:
    rows, length = batch
    number, place, follows = _slow(*batch)
    shape = (len(rows), length)
    ids, learned = _ids(shape), np.random.default_rng(seed).random(shape) < 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "_IDS_AT_ONCE", chunk)
        made, unmasked = (
            _made(segments_of_rows(*batch), ids, learned),
            _made(segments_of_rows(*batch), ids),
        )
    assert made["segment_ids"].tolist() == number
    assert made["positions"].tolist() == place
    assert unmasked["loss_mask"].tolist() == follows
    mask = made["loss_mask"]
    assert np.array_equal(mask, np.array(follows, np.bool_).reshape(shape) & learned)
    aligned = [
        [int(ids[r, t]) if mask[r, t] else -100 for t in range(length)]
        for r in range(len(rows))
    ]
    assert made["labels"].tolist() == aligned
    assert made["targets"].tolist() == [[*row[1:], -100] for row in aligned]


@pytest.mark.parametrize("padding", [3, 15, 16, 400, 1024])
def test_much_and_little_padding(padding: int) -> None:
    """Up to some padding it is written in another way than beyond."""
    rows = [
        [1] * (1024 - padding),
        [1024 - padding] if padding < 1024 else [],
        [900, 124],
    ]
    made = _made(segments_of_rows(rows, 1024), _ids((3, 1024)))
    assert [made["segment_ids"].tolist(), made["positions"].tolist()] == list(
        _slow(rows, 1024)[:2]
    )


@pytest.mark.parametrize(
    "row", [[70_000], [65_536, 4_464], [60_000], [1] * 70_000], ids=len
)
def test_rows_that_16_bits_cannot_count(row: list[int]) -> None:
    made = _made(segments_of_rows([row], 70_000), _ids((1, 70_000)))
    assert [made["segment_ids"].tolist(), made["positions"].tolist()] == list(
        _slow([row], 70_000)[:2]
    )


def test_the_example_of_the_module() -> None:
    ids = np.array([[11, 12, 13, 14, 15, 16, 17, 0]], np.int32)
    made = _made(segments_of_rows([[3, 4]], 8), ids)
    assert made["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 0]]
    assert made["positions"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    assert made["loss_mask"].tolist() == [
        [False, True, True, False, True, True, True, False]
    ]
    assert made["labels"].tolist() == [[-100, 12, 13, -100, 15, 16, 17, -100]]
    assert made["targets"].tolist() == [[12, 13, -100, 15, 16, 17, -100, -100]]

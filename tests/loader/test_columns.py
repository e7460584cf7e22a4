"""Columns made from segment lengths: against a slow reading of the same law, into given arrays, and on damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.loader.batch import IGNORED, Segments, labels, loss_mask, positions, segment_ids, targets
from tokenlake.ragged import Bools, Int32, Int64, offsets_of

Rows = list[list[int]]
Given = tuple[Int32, Int64, int]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rows, int]:
    """Segment lengths of each row, and the length of rows: full, padded and empty ones."""
    length = draw(st.sampled_from([1, 2, 3, 7, 16]))
    rows: Rows = []
    for _ in range(draw(st.integers(0, 6))):
        row, left = list[int](), draw(st.integers(0, length) | st.just(length))
        while left:
            row.append(draw(st.integers(1, left)))
            left -= row[-1]
        rows.append(row)
    return rows, length


def _given(rows: Rows, length: int) -> Given:
    lengths = np.array([one for row in rows for one in row], np.int32)
    return lengths, offsets_of([len(row) for row in rows]), length


def _slow(rows: Rows, length: int) -> tuple[list[list[int]], list[list[int]], list[list[bool]]]:
    """Id by id: which segment, which place in it, and whether something of the same segment lies before it."""
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


@given(batches(), st.integers(0, 2**32))
def test_columns_are_as_the_slow_way_says(batch: tuple[Rows, int], seed: int) -> None:
    rows, length = batch
    args, (number, place, follows) = _given(*batch), _slow(*batch)
    shape = (len(rows), length)
    assert segment_ids(*args).tolist() == number
    assert positions(*args).tolist() == place
    assert loss_mask(*args, None).tolist() == follows
    learned = np.random.default_rng(seed).random(shape) < 0.5
    mask = loss_mask(*args, learned)
    assert np.array_equal(mask, np.array(follows, np.bool_).reshape(shape) & learned)
    ids = _ids(shape)
    aligned = [[int(ids[r, t]) if mask[r, t] else -100 for t in range(length)] for r in range(len(rows))]
    assert labels(ids, mask).tolist() == aligned
    assert targets(ids, mask).tolist() == [[*row[1:], -100] for row in aligned]


@given(batches(), st.integers(1, 40))
def test_given_arrays_are_written_whole_and_returned(batch: tuple[Rows, int], chunk: int) -> None:
    args, shape = _given(*batch), (len(batch[0]), batch[1])
    learned, ids = np.arange(shape[0] * shape[1]).reshape(shape) % 3 > 0, _ids(shape)
    mask, out, marks = loss_mask(*args, learned), np.empty(shape, np.int32), np.empty(shape, np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_CHUNK", chunk)
        for make, expected in (
            (lambda: segment_ids(*args, out=out), segment_ids(*args)),
            (lambda: positions(*args, out=out), positions(*args)),
            (lambda: labels(ids, mask, out=out), labels(ids, mask)),
            (lambda: targets(ids, mask, out=out), targets(ids, mask)),
        ):
            out.fill(77)
            assert make() is out
            assert np.array_equal(out, expected)
        marks.fill(True)
        assert loss_mask(*args, learned, out=marks) is marks
        assert np.array_equal(marks, mask)


@pytest.mark.parametrize("padding", [3, 15, 16, 400, 1024])
def test_much_and_little_padding(padding: int) -> None:
    """Up to some padding it is written in another way than beyond."""
    rows = [[1] * (1024 - padding), [1024 - padding] if padding < 1024 else [], [900, 124]]
    assert positions(*_given(rows, 1024)).tolist() == _slow(rows, 1024)[1]
    assert segment_ids(*_given(rows, 1024)).tolist() == _slow(rows, 1024)[0]


@given(batches())
def test_labels_may_take_the_place_of_the_ids(batch: tuple[Rows, int]) -> None:
    mask, shape = loss_mask(*_given(*batch), None), (len(batch[0]), batch[1])
    for make in (labels, targets):
        ids = _ids(shape)
        expected = make(ids, mask)
        make(ids, mask, out=ids)
        assert np.array_equal(ids, expected)


def test_the_example_of_the_module() -> None:
    args = (np.array([3, 4], np.int32), np.array([0, 2]), 8)
    ids = np.array([[11, 12, 13, 14, 15, 16, 17, 0]], np.int32)
    mask = loss_mask(*args, None)
    assert segment_ids(*args).tolist() == [[1, 1, 1, 2, 2, 2, 2, 0]]
    assert positions(*args).tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    assert mask.tolist() == [[False, True, True, False, True, True, True, False]]
    assert labels(ids, mask).tolist() == [[-100, 12, 13, -100, 15, 16, 17, -100]]
    assert targets(ids, mask).tolist() == [[12, 13, -100, 15, 16, 17, -100, -100]]


def test_no_place_predicts_another_document() -> None:
    """At a realistic size: a target is always the next id of the same segment, and no such id is left out."""
    rng = np.random.default_rng(4)
    rows = [rng.multinomial(int(rng.integers(900, 1025)), [1 / 30] * 30).tolist() for _ in range(64)]
    rows = [[size for size in row if size] for row in rows]
    args, ids = _given(rows, 1024), rng.integers(0, 50_000, (64, 1024)).astype(np.int32)
    number, found = segment_ids(*args), targets(ids, loss_mask(*args, None))
    same = (number[:, 1:] == number[:, :-1]) & (number[:, 1:] > 0)
    assert np.array_equal(found[:, :-1] != IGNORED, same)
    assert np.array_equal(found[:, :-1][same], ids[:, 1:][same])
    assert (found[:, -1] == IGNORED).all()


def test_types_and_fresh_arrays() -> None:
    args = _given([[2, 1], []], 4)
    ids, learned = _ids((2, 4)), np.ones((2, 4), np.bool_)
    mask = loss_mask(*args, learned)
    made = [segment_ids(*args), positions(*args), labels(ids, mask), targets(ids, mask)]
    made += [segment_ids(*args), positions(*args), labels(ids, mask), targets(ids, mask)]
    assert {column.dtype for column in made} == {np.dtype(np.int32)}
    assert mask.dtype == np.bool_
    everything: list[np.ndarray[Any, Any]] = [*made, mask, loss_mask(*args, learned), ids, learned]
    for index, one in enumerate(everything):
        assert one.flags.writeable
        assert not any(np.shares_memory(one, other) for other in everything[:index])


def test_what_is_given_is_not_changed() -> None:
    lengths, offsets, length = _given([[2, 1], [3]], 4)
    ids, learned = _ids((2, 4)), np.ones((2, 4), np.bool_)
    before = [array.copy() for array in (lengths, offsets, ids, learned)]
    mask = loss_mask(lengths, offsets, length, learned)
    segment_ids(lengths, offsets, length)
    positions(lengths, offsets, length)
    labels(ids, mask)
    targets(ids, mask)
    for array, old in zip((lengths, offsets, ids, learned), before, strict=True):
        assert np.array_equal(array, old)


def test_rows_without_ids_of_documents_and_no_rows() -> None:
    args = _given([[], []], 3)
    for column in (segment_ids(*args), positions(*args), loss_mask(*args, None)):
        assert column.shape == (2, 3)
        assert not column.any()
    none = _given([], 3)
    assert segment_ids(*none).shape == positions(*none).shape == loss_mask(*none, None).shape == (0, 3)
    assert targets(np.empty((0, 3), np.int32), np.empty((0, 3), np.bool_)).shape == (0, 3)


def test_segments_are_checked_once_for_several_columns() -> None:
    args = _given([[2, 1], [4], []], 4)
    segments = Segments.of(*args)
    assert (segments.rows, segments.length, segments.padding.tolist()) == (3, 4, [1, 0, 4])
    assert np.array_equal(segments.ids(), segment_ids(*args))
    assert np.array_equal(segments.positions(), positions(*args))
    assert np.array_equal(segments.loss_mask(None), loss_mask(*args, None))


@pytest.mark.parametrize("make", [segment_ids, positions, lambda *args: loss_mask(*args, None)])
@pytest.mark.parametrize(
    ("rows", "row", "says"),
    [
        ([[4], [], [3, 2]], 2, "row 2 of the batch has segments of 5 ids together; expected at most 4"),
        ([[4], [], [1, 0]], 2, "row 2 of the batch has a segment of 0 ids; expected 1 or more"),
        ([[5, -1], [1]], 0, "row 0 of the batch has a segment of -1 ids"),
    ],
)
def test_damaged_lengths_are_refused(make: Any, rows: Rows, row: int, says: str) -> None:
    with pytest.raises(IntegrityError, match=says) as caught:
        make(*_given(rows, 4))
    assert caught.value.details["row"] == row


@pytest.mark.parametrize("offsets", [[], [0, 1], [1, 2], [0, 3], [0, 2, 1, 2]])
def test_offsets_that_do_not_cut_into_rows_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ConfigError, match="expected them to ascend from 0 to 2"):
        segment_ids(np.array([1, 1], np.int32), np.array(offsets, np.int64), 4)


def test_arrays_of_another_shape_type_or_layout_are_refused() -> None:
    args, ids = _given([[2], [1]], 3), _ids((2, 3))
    mask = loss_mask(*args, None)
    with pytest.raises(ConfigError, match="rows of 0 ids"):
        segment_ids(np.empty(0, np.int32), np.zeros(1, np.int64), 0)
    with pytest.raises(ConfigError, match=r"out is int64\[2, 3\]; expected int32\[2, 3\], C-contiguous"):
        segment_ids(*args, out=np.empty((2, 3), np.int64))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"out is int32\[2, 3\]; expected int32\[2, 3\], C-contiguous"):
        positions(*args, out=np.empty((3, 2), np.int32).T)
    with pytest.raises(ConfigError, match=r"learned is bool\[3, 2\]; expected bool\[2, 3\]"):
        loss_mask(*args, np.ones((3, 2), np.bool_))
    with pytest.raises(ConfigError, match=r"loss_mask is int8\[2, 3\]; expected bool\[2, 3\]"):
        labels(ids, mask.view(np.int8))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"input_ids is int32\[6\]; expected int32\[rows, length\]"):
        targets(ids.reshape(-1), mask)
    with pytest.raises(ConfigError, match=r"out is int32\[3, 2\]; expected int32\[2, 3\], C-contiguous"):
        targets(ids, mask, out=np.empty((3, 2), np.int32))


def test_parts_of_larger_batches_can_be_written() -> None:
    """A host's rows go into its part of one array."""
    whole = np.full((4, 3), 9, np.int32)
    segment_ids(*_given([[2], [1]], 3), out=whole[1:3])
    assert whole.tolist() == [[9, 9, 9], [1, 1, 0], [1, 0, 0], [9, 9, 9]]


def test_ids_of_any_layout_are_read() -> None:
    """A view of a wider array, such as one column of stored rows, needs no copy first."""
    wide: Int32 = _ids((3, 8))
    ids, mask = wide[:, 2:6], np.ones((3, 4), np.bool_)
    kept: Bools = np.asfortranarray(mask)
    assert np.array_equal(labels(ids, kept), labels(ids.copy(), mask))
    assert np.array_equal(targets(ids, kept), targets(ids.copy(), mask))

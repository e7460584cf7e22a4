"""Flat batches and rows cut for context parallelism: the same ids in other places,
and the same loss of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.loader import support
from tests.loader.test_columns import batches, segments_of_rows
from tokenlake import BatchLayout
from tokenlake.errors import ConfigError

SPLITS = ("contiguous", "head_tail", "per_document", "striped")
COLUMNS = ("input_ids", "segment_ids", "positions", "loss_mask", "targets")
CUTS = [{"context_parallel": 4, "split": split} for split in SPLITS] + [
    {"context_parallel": 16, "split": "head_tail"}
]


def both(
    data: Any, layout: Any, **options: Any
) -> list[tuple[support.Batch, support.Batch]]:
    """Each batch as rows and as laid out."""
    options = {"batch_size": 5, "seed": 3, "columns": COLUMNS} | options
    rows, other = (
        tl.DataLoader(data, **options),
        tl.DataLoader(data, layout=layout, **options),
    )
    found = list(zip(rows, other, strict=True))
    assert rows.metrics().rows == other.metrics().rows
    assert rows.get_state() == other.get_state()
    return found


@pytest.mark.parametrize("pad_last", [False, True])
def test_flat_batches_are_the_rows_end_to_end(
    learned: tl.Dataset, pad_last: bool
) -> None:
    for rows, flat in both(learned, "flat", pad_last=pad_last):
        assert list(flat) == [*COLUMNS, "cu_seqlens", "max_seqlen"]
        for name in set(COLUMNS) - {"segment_ids"}:
            np.testing.assert_array_equal(
                flat[name], rows[name].reshape(-1), err_msg=name
            )
        # Id by id: a new run wherever the row or the segment changes.
        keys = [
            (row, one)
            for row, segments in enumerate(rows["segment_ids"].tolist())
            for one in segments
        ]
        begins = [
            place for place, (a, b) in enumerate(pairwise([None, *keys])) if a != b
        ]
        assert flat["cu_seqlens"].tolist() == [*begins, len(keys)]
        assert flat["cu_seqlens"].dtype == flat["max_seqlen"].dtype == np.int32
        assert flat["max_seqlen"] == max(np.diff(flat["cu_seqlens"]))
        named = [key for key in dict.fromkeys(keys) if key[1]]
        numbers = {key: number for number, key in enumerate(named, 1)}
        assert flat["segment_ids"].tolist() == [numbers.get(key, 0) for key in keys]


def test_flat_batches_of_one_shape_have_empty_runs_at_the_end(
    learned: tl.Dataset,
) -> None:
    needed = max(len(flat["cu_seqlens"]) - 1 for _, flat in both(learned, "flat"))
    for (_, fixed), (_, flat) in zip(
        both(learned, {"flat": True, "max_segments": needed}),
        both(learned, "flat"),
        strict=True,
    ):
        runs = len(flat["cu_seqlens"])
        assert fixed["cu_seqlens"].shape == (needed + 1,)
        assert fixed["cu_seqlens"][:runs].tolist() == flat["cu_seqlens"].tolist()
        assert set(fixed["cu_seqlens"][runs:].tolist()) <= {fixed["input_ids"].size}


def test_too_few_segments_are_an_error_that_loses_nothing(learned: tl.Dataset) -> None:
    expected = support.ids(tl.DataLoader(learned, 5))
    loader = tl.DataLoader(learned, 5, layout={"flat": True, "max_segments": 8})
    got, most = list[Any](), 8
    while True:
        try:
            for batch in loader:
                got.append(batch["input_ids"].reshape(-1, support.LENGTH).copy())
            break
        except ConfigError as error:
            assert f"max_segments: got {most}, and a batch has" in str(error)
            most = int(str(error).split("expected at least ")[1].split(".")[0])
            state, loader = (
                loader.get_state(),
                tl.DataLoader(learned, 5, layout={"flat": True, "max_segments": most}),
            )
            loader.set_state(state)
    assert most > 8
    assert support.same(got, expected)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_each_row_keeps_its_ids_with_all_that_belongs_to_them(
    learned: tl.Dataset, cut: dict[str, Any]
) -> None:
    for rows, laid in both(learned, cut):
        assert list(laid) == list(rows)
        for row in range(len(rows["input_ids"])):
            before, after = (
                sorted(
                    zip(*(batch[name][row].tolist() for name in COLUMNS), strict=True)
                )
                for batch in (rows, laid)
            )
            assert before == after


def test_the_order_of_a_row_is_that_of_the_table() -> None:
    def order(split: Any) -> list[int]:
        found = BatchLayout(context_parallel=4, split=split).order(
            8, np.array([8, 0]), np.array([0, 2])
        )
        return list(range(8)) if found is None else found.reshape(-1).tolist()

    assert order("contiguous") == list(range(8))
    assert order("head_tail") == order("per_document") == [0, 7, 1, 6, 2, 5, 3, 4]
    assert order("striped") == [0, 4, 1, 5, 2, 6, 3, 7]


@given(batches(), st.sampled_from([2, 4]), st.sampled_from(SPLITS))
def test_an_order_has_each_id_once(given: Any, parts: int, split: Any) -> None:
    rows, _ = given
    length = 16
    rows = [row for row in rows if sum(row) <= length]
    segments = segments_of_rows(rows, length)
    order = BatchLayout(context_parallel=parts, split=split).order(
        length, segments.runs, segments.row_runs
    )
    if order is not None:
        if order.ndim == 1:
            order = order + np.arange(0, len(rows) * length, length)[:, None]
        for start, row in zip(range(0, len(rows) * length, length), order, strict=True):
            assert sorted(row.tolist()) == list(range(start, start + length))


@pytest.mark.parametrize("split", ["head_tail", "per_document", "striped"])
def test_devices_have_as_much_to_do(split: Any) -> None:
    """Ids that causal attention inside documents looks at, of each device;
    contiguous parts are far from equal.
    """
    segments = segments_of_rows(
        [[700, 348, 900, 100] if split == "per_document" else [2048]], 2048
    )
    place = segments.positions(np.empty((1, 2048), np.int32))[0]

    def unevenness(which: Any) -> float:
        layout = BatchLayout(context_parallel=4, split=which)
        order = layout.order(2048, segments.runs, segments.row_runs)
        cost = (
            (place if order is None else place[order.reshape(-1)]).reshape(4, -1).sum(1)
        )
        return float(cost.max() / cost.mean())

    assert unevenness(split) < 1.02
    assert unevenness("contiguous") > 1.3


def loss(ids: Any, segments: Any, positions: Any, targets: Any) -> float:
    """Summed cross-entropy of one layer of attention over ids [T] that sees its own
    segment, up to its position.
    """
    draw = np.random.default_rng(7)
    embed, place, out = (draw.normal(size=(n, 8)) for n in (512, 64, 512))
    hidden = embed[ids % 512] + place[positions]
    scores = hidden @ hidden.T
    seen = (segments[:, None] == segments) & (positions[:, None] >= positions)
    weights = np.where(seen, np.exp(scores - scores.max(1, keepdims=True)), 0.0)
    logits = (weights / weights.sum(1, keepdims=True)) @ hidden @ out.T
    logits -= np.log(
        np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)
    ) + logits.max(1, keepdims=True)
    learned = targets != -100
    return -float(logits[learned, targets[learned] % 512].sum())


def row_loss(batch: support.Batch) -> float:
    columns = zip(
        *(batch[name] for name in ("input_ids", "segment_ids", "positions", "targets")),
        strict=True,
    )
    return sum(loss(*row) for row in columns)


def test_the_loss_is_that_of_single_documents_in_every_layout(
    learned: tl.Dataset,
) -> None:
    alone = packed = 0.0
    for rows, flat in both(learned, "flat"):
        packed += row_loss(rows)
        ends, segments = flat["cu_seqlens"].tolist(), flat["segment_ids"]
        for begin, end in pairwise(ends):
            if segments[begin]:
                one = slice(begin, end)
                place = np.arange(end - begin)
                alone += loss(
                    flat["input_ids"][one],
                    np.ones_like(place),
                    place,
                    flat["targets"][one],
                )
    assert packed == pytest.approx(alone, rel=1e-12)
    totals = {
        str(cut): sum(row_loss(laid) for _, laid in both(learned, cut)) for cut in CUTS
    }
    flats = sum(
        loss(
            *(
                flat[name]
                for name in ("input_ids", "segment_ids", "positions", "targets")
            )
        )
        for _, flat in both(learned, "flat")
    )
    assert totals | {"flat": flats} == pytest.approx(
        dict.fromkeys([*totals, "flat"], alone), rel=1e-9
    )


def test_a_state_goes_on_in_another_layout(learned: tl.Dataset) -> None:
    rows, flat = (
        tl.DataLoader(learned, 4),
        tl.DataLoader(learned, 4, layout="flat", host=(1, 2)),
    )
    expected = support.ids(rows)
    iterator = iter(flat)
    next(iterator), next(iterator)
    rows.set_state(flat.get_state())
    assert support.same(support.ids(rows), expected[2:])


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ("round", "must be 'flat', a BatchLayout, or a mapping of"),
        ({"max_segments": 8}, "only flat batches have cu_seqlens"),
        ({"flat": True, "context_parallel": 2}, "would be cut between devices"),
        ({"context_parallel": 0}, "context_parallel: got 0"),
        ({"context_parallel": 3}, "cuts rows into 6 equal parts; got rows of 32 ids"),
        ({"split": "zigzag"}, "must be one of contiguous, head_tail"),
        ({"flat": 1}, "must be True or False"),
    ],
)
def test_what_is_no_layout_is_refused(
    learned: tl.Dataset, layout: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        tl.DataLoader(learned, 4, layout=layout)


def test_layouts_are_of_packed_rows_in_batches(
    learned: tl.Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(ConfigError, match="gives rows as they are"):
        tl.hf_dataset(learned, 4, layout="flat")
    with pytest.raises(ConfigError, match="a flat batch has no rows"):
        tl.torch_dataset(learned, 4, layout="flat", rows=True)
    flat = list(tl.torch_dataset(learned, 4, layout="flat"))
    grain = list(tl.grain_dataset(learned, 4, layout="flat"))
    for got in (flat, grain):
        for one, (_, expected) in zip(
            got, both(learned, "flat", batch_size=4, seed=0, columns=None), strict=True
        ):
            assert all(np.array_equal(one[name], expected[name]) for name in expected)

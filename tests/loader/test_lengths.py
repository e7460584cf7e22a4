"""A length curriculum: rows cut into shorter ones, of which a batch has as many
more.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.loader.support import LENGTH, Batch, ids, same
from tokenlake import hf_dataset
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import explain_step

Data = tl.Dataset | tl.Mixture
SIZES = {0: 8, 3: 16, 5: 24}
LENGTHS = {0: 8, 2: 16, 4: 32}
COLUMNS = ("input_ids", "segment_ids", "positions", "loss_mask", "labels", "targets")
Curriculum = tl.LengthCurriculum


def loader_of(data: Data, lengths: Any = LENGTHS, **options: Any) -> tl.DataLoader:
    chosen: dict[str, Any] = {
        "batch_size": SIZES,
        "seed": 5,
        "workers": 0,
        "columns": COLUMNS,
        **options,
    }
    return tl.DataLoader(data, lengths=lengths, **chosen)


def kept(batches: Any) -> list[Batch]:
    return [
        {name: column.copy() for name, column in batch.items()} for batch in batches
    ]


def cut(whole: Batch, within: int) -> Batch:
    """A batch of whole rows, cut id by id: rows as they were, with segments that end
    at every `within` ids.
    """
    made = {name: column.copy() for name, column in whole.items()}
    for row, ids_of_row in enumerate(made["input_ids"]):
        number, before, begin = 0, 0, 0
        for place in range(len(ids_of_row)):
            segment = int(whole["segment_ids"][row, place])
            if place % within == 0 or segment != before:
                number, begin = number + (segment > 0), place
                made["loss_mask"][row, place] = False
            before = segment
            made["segment_ids"][row, place] = number if segment else 0
            made["positions"][row, place] = place - begin if segment else 0
    mask = made["loss_mask"]
    made["labels"] = np.where(mask, made["input_ids"], -100)
    made["targets"] = np.concatenate(
        [made["labels"][:, 1:], np.full((len(mask), 1), -100)], axis=1
    )
    return made


def assert_equal(got: Batch, expected: Batch) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


@pytest.mark.parametrize("pad_last", [False, True])
def test_segments_end_at_the_cuts_and_every_id_comes_where_it_came(
    data: Data, pad_last: bool
):
    """With lengths and batch sizes that grow at different steps; also lengths that
    do not divide a row.
    """
    whole = kept(loader_of(data, None, pad_last=pad_last))
    shaped = kept(
        loader_of(
            data,
            Curriculum(((0, 5), (3, 12), (4, 32)), keep_shape=True),
            pad_last=pad_last,
        )
    )
    for step, (got, before) in enumerate(zip(shaped, whole, strict=True)):
        assert_equal(got, cut(before, 5 if step < 3 else 12 if step < 4 else 32))
    loader = loader_of(data, pad_last=pad_last)
    for step, (got, before) in enumerate(zip(loader, whole, strict=True)):
        length = 8 if step < 2 else 16 if step < 4 else 32
        expected = cut(before, length)
        rows, stored = before["input_ids"].shape
        assert got["input_ids"].shape == (rows * stored // length, length)
        for name in set(COLUMNS) - {"segment_ids"}:
            np.testing.assert_array_equal(
                got[name].reshape(-1, stored), expected[name], err_msg=name
            )
        # Each row counts its segments from 1.
        first = expected["segment_ids"].reshape(-1, length)[:, :1]
        numbers = expected["segment_ids"].reshape(-1, length)
        np.testing.assert_array_equal(
            got["segment_ids"], np.where(numbers > 0, numbers - first + 1, 0)
        )
    assert loader.metrics().rows == sum(len(batch["input_ids"]) for batch in whole)


def test_shapes_are_said_before_the_first_batch(learned: tl.Dataset):
    loader = loader_of(learned, drop_last=True)
    seen = {batch["input_ids"].shape for batch in loader}
    assert (
        loader.shapes == ((8, 32), (16, 16), (16, 32), (24, 32), (32, 8))
        or set(loader.shapes or ()) >= seen
    )
    assert loader.shapes is not None and len(loader.shapes) == 5
    assert loader_of(learned, Curriculum(((0, 5),), keep_shape=True)).shapes == (
        (8, 32),
        (16, 32),
        (24, 32),
    )


def test_flat_batches_have_the_bounds_of_the_pieces(learned: tl.Dataset):
    rows = kept(loader_of(learned))
    for lengths in (LENGTHS, Curriculum(tuple(LENGTHS.items()), keep_shape=True)):
        for flat, each in zip(
            loader_of(learned, lengths, layout="flat"), rows, strict=True
        ):
            np.testing.assert_array_equal(
                flat["positions"], each["positions"].reshape(-1)
            )
            keys = [
                (row, one)
                for row, of in enumerate(each["segment_ids"].tolist())
                for one in of
            ]
            begins = [
                place
                for place in range(len(keys))
                if place == 0 or keys[place] != keys[place - 1]
            ]
            pieces = {int(bound) for bound in flat["cu_seqlens"]}
            assert pieces - {len(keys)} <= set(begins)
            content = {place for place in begins if keys[place][1]}
            assert content <= pieces and flat["max_seqlen"] <= LENGTH
    whole = kept(loader_of(learned, {0: 16}))
    split = loader_of(learned, {0: 16}, layout={"context_parallel": 4})
    for got, each in zip(split, whole, strict=True):
        order = np.argsort(
            got["positions"] * 0
            + np.array([0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9])
        )
        np.testing.assert_array_equal(
            np.take_along_axis(got["input_ids"], order, axis=1), each["input_ids"]
        )


def test_resumed_is_uninterrupted_and_hosts_together_are_one(data: Data):
    loader = loader_of(data, balance={"ranks": 4})
    whole, states = list[np.ndarray[Any, Any]](), [json.dumps(loader.get_state())]
    for batch in loader:
        whole.append(batch["positions"].copy())
        states.append(json.dumps(loader.get_state()))
    for step in range(len(whole)):
        resumed = loader_of(data, balance={"ranks": 4}, prefetch=step % 2)
        resumed.set_state(json.loads(states[step]))
        assert same([batch["positions"].copy() for batch in resumed], whole[step:])
    hosts = list[list[np.ndarray[Any, Any]]]()
    for host in range(4):
        other = loader_of(data, balance="attention", host=(host, 4))
        other.set_state(json.loads(states[1]))
        hosts.append([batch["positions"].copy() for batch in other])
    assert same([np.concatenate(each) for each in zip(*hosts, strict=True)], whole[1:])


def test_lengths_may_change_from_the_state_on_and_not_before(learned: tl.Dataset):
    loader = loader_of(learned, columns=("input_ids",))
    for _, _ in zip(range(3), loader, strict=False):
        pass
    state = json.loads(json.dumps(loader.get_state()))
    assert state["lengths"] == {
        "points": [[0, 8], [2, 16], [4, 32]],
        "keep_shape": False,
    }
    other = loader_of(learned, {0: 8, 2: 16, 3: 4}, columns=("input_ids",))
    other.set_state(state)
    rest = ids(other)
    assert {batch.shape[1] for batch in rest} == {4}
    ended = ids(loader)
    assert [batch.tobytes() for batch in rest] == [batch.tobytes() for batch in ended]
    for lengths in (None, {0: 8}, Curriculum(tuple(LENGTHS.items()), keep_shape=True)):
        with pytest.raises(
            ConfigError, match=r"lengths up to step 3 are .* there and .* here"
        ):
            loader_of(learned, lengths).set_state(state)
    before = loader_of(learned, None)
    after = loader_of(learned, {0: 32, 2: 8})
    for _, _ in zip(range(2), before, strict=False):
        pass
    after.set_state(before.get_state())  # whole rows are what nobody cut
    assert next(iter(after))["input_ids"].shape == (32, 8)


def test_balanced_ranks_are_those_of_the_cut_rows(learned: tl.Dataset):
    loader = loader_of(learned, {0: 8}, batch_size=8, balance={"ranks": 4})
    for batch in loader_of(learned, {0: 8}, batch_size=8, balance={"ranks": 4}):
        squares: Any = sum(
            (batch["segment_ids"] == one).sum(axis=1) ** 2 for one in range(1, 9)
        )
        of_rows = squares.reshape(8, -1).sum(axis=1)
        totals = of_rows.reshape(4, -1).sum(axis=1)
        assert np.ptp(totals) <= np.ptp(of_rows)
    explained = explain_step(loader.plan, 1)
    batch = next(loader.iter_from_step(1))
    stored = learned.take(np.array([row.stored_row for row in explained]))
    assert (batch["input_ids"].reshape(8, -1) == stored["input_ids"]).all()


def test_pytorch_and_grain_cut_as_the_loader_does(learned: tl.Dataset):
    whole = ids(loader_of(learned))
    assert same(
        [
            batch["input_ids"].numpy()
            for batch in tl.torch_dataset(learned, SIZES, seed=5, lengths=LENGTHS)
        ],
        whole,
    )
    assert same(ids(tl.grain_dataset(learned, SIZES, seed=5, lengths=LENGTHS)), whole)
    shaped = {"points": {0: 8, 2: 16}, "keep_shape": True}
    rows = [
        row["position_ids"] for row in hf_dataset(learned, 8, seed=5, lengths=shaped)
    ]
    assert (
        max(max(row) for row in rows[:16]) == 7 and max(max(row) for row in rows) == 15
    )


@given(st.integers(1, 64), st.integers(0, 5), st.integers(5, 9000))
def test_lengths_double_in_equal_intervals(first: int, times: int, until: int):
    curriculum = Curriculum.doubling(first, first << times, until=until)
    assert curriculum.at(0) == (first if times else first << times)
    assert curriculum.at(until) == first << times
    assert [length for _, length in curriculum.points] == [
        first << each for each in range(times + 1)
    ]
    assert all(
        abs(step - until * each / max(times, 1)) < 1
        for each, (step, _) in enumerate(curriculum.points)
    )


@given(
    st.integers(1, 64),
    st.integers(0, 40),
    st.integers(1, 128),
    st.integers(1, 9000),
    st.integers(0, 9000),
)
def test_lengths_grow_along_a_line(
    first: int, times: int, multiple: int, until: int, step: int
):
    curriculum = Curriculum.linear(
        first, first + times * multiple, until=until, multiple=multiple
    )
    line = first + times * multiple * min(step, until) / until
    assert line - multiple < curriculum.at(step) <= line
    assert curriculum == Curriculum.of(json.loads(json.dumps(curriculum.to_json())))


def test_what_does_not_fit_is_refused(learned: tl.Dataset, texts: tl.Dataset):
    cases: list[tuple[Any, Any, str]] = [
        (
            learned,
            {0: 12},
            "got 12 from step 0 on, which does not divide the 32 ids .* a divisor, as 8, or keep_shape",
        ),
        (
            learned,
            {0: 8, 9: 64},
            "got 64 from step 9 on, and rows of learned@v1/train have 32 ids",
        ),
        (learned, {5: 8}, "must give the number of ids of step 0"),
        (learned, 0, "lengths: got 0, must be a whole number of ids from 1 on"),
        (learned, "short", "lengths: got 'short', must be a whole number"),
        (
            learned,
            {"points": {0: 8}, "keep": True},
            "must be a mapping of points and keep_shape",
        ),
        (
            learned,
            {"points": {0: 8}, "keep_shape": 1},
            "keep_shape: got 1, must be True or False",
        ),
        (
            texts,
            {0: 8},
            "which needs packed rows, and those of texts@v1/train have many lengths",
        ),
    ]
    for data, lengths, says in cases:
        with pytest.raises(ConfigError, match=says):
            tl.DataLoader(data, 8, lengths=lengths)
    with pytest.raises(ConfigError, match="into 16 equal parts; got rows of 8 ids"):
        tl.DataLoader(learned, 8, lengths=LENGTHS, layout={"context_parallel": 8})
    with pytest.raises(
        ConfigError, match="one could contain rows of two lengths; give keep_shape"
    ):
        hf_dataset(learned, 8, lengths=LENGTHS)
    with pytest.raises(
        ConfigError, match="the number of rows per batch differs from batch_size"
    ):
        tl.torch_dataset(learned, 8, lengths=LENGTHS, rows=True)
    for wrong, says in (
        (
            lambda: Curriculum.doubling(8, 24, until=9),
            "8 does not reach 24 by doublings",
        ),
        (
            lambda: Curriculum.linear(8, 24, until=9, multiple=3),
            "does not reach 24 by 3 ids at a time",
        ),
        (
            lambda: Curriculum.linear(8, 4, until=9, multiple=1),
            "last: got 4, must be a whole number from 8 on",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            wrong()

"""How rows are dealt to lanes: exact for the stream at every batch, whatever the
lanes, and whole for each lane.
"""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mixing.test_counts import named, shares
from tokenlake import WeightScheduler
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import (
    Deal,
    MixtureStream,
    SourceMixture,
    constant,
    counts_of,
    source_order,
)

CURVES = ["step", "linear", "cosine"]
LANES = [1, 2, 3, 8, 64]


def weights(sources: int) -> st.SearchStrategy[dict[str, float]]:
    return shares(sources).map(named)


@st.composite
def schedules(draw: st.DrawFn, most: int = 4) -> WeightScheduler:
    sources = draw(st.integers(1, most))
    steps = draw(
        st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True).map(sorted)
    )
    points = [{"step": step, "weights": draw(weights(sources))} for step in steps]
    found = WeightScheduler(points, draw(st.sampled_from(CURVES)))
    at = 0
    for _ in range(draw(st.integers(0, 2))):
        at += draw(st.integers(0, 90))
        later = {
            "step": at + draw(st.integers(1, 50)),
            "weights": draw(weights(sources)),
        }
        found = found.extend(at=at, points=[later])
    return found


def deal(
    scheduler: WeightScheduler, lanes: int, width: int = 2, **changes: Any
) -> Deal:
    sizes = {
        "batch_size": width * lanes,
        "block_size": 1000,
        "step_rows": 7 * lanes,
        "seed": 0,
    }
    return Deal(scheduler, lanes=lanes, **{**sizes, **changes})


def taken(found: Deal, lanes: int, cells: range) -> np.ndarray:
    """Before each cell, int64[n + 1, J, L]."""
    return np.stack([found.bounds(lane, cells) for lane in range(lanes)], axis=2)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    "shares",
    [
        [0.9999, 0.0001],
        [0.6, 0.3999, 0.0001],
        [0.5, 0.3, 0.2],
        [0.4, 0.3, 0.2, 0.0999, 0.0001],
    ],
)
def test_every_source_is_within_a_row_of_its_share_at_every_batch(
    lanes: int, width: int, shares: list[float]
) -> None:
    """At positions between, a lane's rows of the batch are shuffled."""
    batch = lanes * width
    lengths = dict.fromkeys(named(shares), 10**6)
    mixture = SourceMixture(
        lengths, constant(named(shares)), lanes=lanes, batch_size=batch, seed=1
    )
    for position in (
        *range(0, 99 * batch, 3 * batch),
        *range(10**6 * batch, 10**6 * batch + 9 * batch, batch),
    ):
        drawn = mixture.drawn_before(position)
        assert all(
            abs(int(count) - share * position) < 1
            for count, share in zip(drawn, shares, strict=True)
        )


@given(
    schedules(), st.sampled_from(LANES), st.sampled_from([2, 4]), st.integers(0, 500)
)
@settings(max_examples=30)
def test_the_stream_has_the_counts_of_the_schedule_at_every_cell(
    scheduler: WeightScheduler, lanes: int, width: int, first: int
) -> None:
    found = deal(scheduler, lanes, width)
    cells = range(first, first + 40)
    for cell, each in enumerate(taken(found, lanes, cells), first):
        assert each.sum(axis=1).tolist() == list(
            found.counts.draws_before(cell * found.cell * lanes)
        )


@given(schedules(5), st.sampled_from(LANES), st.integers(1, 5), st.integers(0, 900))
@settings(max_examples=30)
def test_lanes_take_a_row_for_each_slot_and_none_is_taken_back(
    scheduler: WeightScheduler, lanes: int, width: int, first: int
) -> None:
    """Also across groups, eras and extensions; and no lane is far ahead of another."""
    found = deal(scheduler, lanes, width)
    cells = [
        taken(found, lanes, range(first * part, first * part + 30))
        for part in (0, 1, 40)
    ]
    for start, some in zip((0, first, first * 40), cells, strict=True):
        slots = [(start + more) * found.cell for more in range(31)]
        assert (some.sum(axis=1) == np.array(slots)[:, None]).all()
        assert all((after >= before).all() for before, after in pairwise(some))
    assert (
        all((after[0] >= before[-1]).all() for before, after in pairwise(cells[1:]))
        or first == 0
    )


@given(schedules(3), st.sampled_from([2, 3, 8]), st.integers(100, 300), st.data())
@settings(max_examples=20)
def test_an_extension_moves_no_row_before_it(
    scheduler: WeightScheduler, lanes: int, at: int, data: st.DataObject
) -> None:
    further = [{"step": at + 9, "weights": data.draw(weights(len(scheduler.names)))}]
    sizes = {"lanes": lanes, "batch_size": 2 * lanes, "step_rows": 7 * lanes, "seed": 3}
    before, after = (
        SourceMixture(dict.fromkeys(scheduler.names, 50), one, **sizes)
        for one in (scheduler, scheduler.extend(at=at, points=further))
    )
    end = 7 * at
    for lane in range(lanes):
        one, two = before.lane(lane, end - 90, end), after.lane(lane, end - 90, end)
        assert np.array_equal(one.source, two.source) and np.array_equal(
            one.index, two.index
        )


@given(
    st.integers(2, 5), st.sampled_from([2, 8, 64]), st.sampled_from([1, 4]), st.data()
)
@settings(max_examples=15)
def test_after_many_changes_lanes_have_taken_alike(
    sources: int, lanes: int, width: int, data: st.DataObject
) -> None:
    """A change comes inside a group; what lanes are apart there never adds up. The
    stream keeps to its counts.
    """
    scheduler = constant(data.draw(weights(sources)))
    step = 0
    for _ in range(20):
        step += data.draw(st.integers(1, 40))
        scheduler = scheduler.reweighted(at=step, weights=data.draw(weights(sources)))
    found = deal(scheduler, lanes, width, step_rows=width * lanes)
    last = step * width // found.cell
    for first in (0, last // 2, last, last + 2000):
        some = taken(found, lanes, range(first, first + 20))
        for cell, each in enumerate(some, first):
            assert each.sum(axis=1).tolist() == list(
                found.counts.draws_before(cell * found.cell * lanes)
            )
            assert (each.sum(axis=0) == cell * found.cell).all()
            # Two rows for each source nearly always; a change in the group after an era
            # may leave a few more.
            assert np.ptp(each, axis=1).max() <= 3 * sources
        assert all((after >= before).all() for before, after in pairwise(some))


@pytest.mark.parametrize("lanes", [16, 64])
def test_what_lanes_are_apart_never_adds_up(lanes: int) -> None:
    """A change every seven batches, a hundred times."""
    scheduler = constant({"a": 0.5, "b": 0.3, "c": 0.2})
    for step in range(7, 700, 7):
        heavy = 0.35 + 0.3 * (step % 2)
        scheduler = scheduler.reweighted(
            at=step, weights={"a": heavy, "b": 0.8 - heavy, "c": 0.2}
        )
    found = deal(scheduler, lanes, 1, step_rows=lanes)
    apart = [
        int(np.ptp(each, axis=1).max()) for each in taken(found, lanes, range(695, 900))
    ]
    assert max(apart) <= 4


def test_a_change_takes_the_place_of_a_later_one() -> None:
    """Made while the other had not taken effect."""
    first = constant({"a": 0.5, "b": 0.5})
    later = first.reweighted(at=80, weights={"a": 1.0, "b": 0.0})
    twice = deal(
        later.reweighted(at=20, weights={"a": 0.25, "b": 0.75}), 8, 2, step_rows=16
    )
    once = deal(
        first.reweighted(at=20, weights={"a": 0.25, "b": 0.75}), 8, 2, step_rows=16
    )
    assert np.array_equal(taken(twice, 8, range(200)), taken(once, 8, range(200)))


def test_thousands_of_changes_need_no_recursion() -> None:
    scheduler = constant({"a": 0.5, "b": 0.5})
    for step in range(1, 1101):
        share = 0.25 + 0.5 * (step % 2)
        scheduler = scheduler.reweighted(at=step, weights={"a": share, "b": 1 - share})
    again = pickle.loads(pickle.dumps(WeightScheduler.from_json(scheduler.to_json())))
    assert again == scheduler
    found = deal(again, 4, 4, step_rows=16)
    assert taken(found, 4, range(1100, 1101))[0].sum(axis=1).tolist() == [8804, 8796]


def test_each_lane_reads_its_own_lane_of_each_source() -> None:
    groups = {
        "a": np.array([30, 50, 20] * 9),
        "b": np.array([40] * 8),
        "c": np.array([9] * 20),
    }
    mixture = SourceMixture(
        {name: int(rows.sum()) for name, rows in groups.items()},
        constant({"a": 0.6, "b": 0.39, "c": 0.01}),
        lanes=8,
        batch_size=16,
        seed=4,
    )
    orders = [
        source_order(name, rows, lanes=8, seed=4) for name, rows in groups.items()
    ]
    stream = MixtureStream(mixture, orders)
    rows, lanes = stream.rows(0, 3000), stream.lanes(0, 3000)
    for source, order in enumerate(orders):
        for epoch in range(int(rows.epoch[rows.source == source].max()) + 1):
            there = (rows.source == source) & (rows.epoch == epoch)
            owner, _ = order.place_of(epoch, rows.group[there], rows.row[there])
            assert np.array_equal(owner, lanes[there])


def test_far_away_counts_are_as_exact() -> None:
    shares = [0.5, 0.3, 0.1999, 0.0001]
    found = deal(constant(named(shares)), 64, 4)
    cell = 10**12
    before, after = taken(found, 64, range(cell, cell + 1))
    want = counts_of(constant(named(shares))).draws_before(cell * 256)
    assert before.sum(axis=1).tolist() == list(want) and (after >= before).all()
    assert np.ptp(before, axis=1).max() <= len(shares)


def test_groups_are_as_large_as_the_number_of_sources_needs() -> None:
    many = constant(named([1 / 20] * 20))
    assert deal(many, 1, block_size=1).ceiling(0) is None
    raised = deal(many, 4, block_size=100)
    assert raised.cells * 2 == 400
    rows_taken = taken(raised, 4, range(300))
    assert np.array_equal(
        rows_taken, taken(deal(many, 4, block_size=400), 4, range(300))
    )
    with pytest.raises(
        ConfigError, match="block_size 16777216: 64 lanes and 20 sources need blocks of"
    ):
        deal(many, 64, block_size=1 << 24)

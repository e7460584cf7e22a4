"""The rows of a mixture as they lie in storage: what a walk over single positions
finds, however it is cut.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.etl.unit import mix_steps
from tokenlake.runtime.mixing import (
    MIXTURE_ORDER,
    EpochOrder,
    MixtureStream,
    OrderForm,
    SourceMixture,
    constant,
    source_order,
    streams,
)

Sizes = list[list[int]]


def _stream(
    sizes: list[list[int]],
    *,
    lanes: int = 2,
    batch: int = 6,
    stop: str = "restart",
    forms: tuple[OrderForm, ...] = (OrderForm(),),
    **changes: Any,
) -> MixtureStream:
    """Return a stream of sources, whose forms are those given, in turn."""
    names = [f"s{index}" for index in range(len(sizes))]
    mixture = SourceMixture(
        {name: sum(size) for name, size in zip(names, sizes, strict=True)},
        constant({name: 1 / len(names) for name in names}),
        lanes=lanes,
        batch_size=batch,
        block_size=10,
        stop=stop,
        **changes,
    )
    orders = [
        forms[index % len(forms)].order(np.array(size), lanes=lanes, seed=index)
        for index, size in enumerate(sizes)
    ]
    return MixtureStream(mixture, orders)


def _walk(stream: MixtureStream, start: int, stop: int) -> list[tuple[int, ...]]:
    """Position by position, from the definitions."""
    found: list[tuple[int, ...]] = []
    for position in range(start, stop):
        name, epoch, index, lane = stream.mixture.at(position)
        source = stream.mixture.names.index(name)
        group, row = stream.orders[source].at(epoch, lane, np.array([index]))
        found.append((source, epoch, int(group[0]), int(row[0])))
    return found


_SIZES = st.lists(
    st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3
).filter(lambda sizes: all(sum(size) >= 3 for size in sizes))


_FORMS = st.lists(
    st.sampled_from(
        [
            OrderForm(),
            OrderForm(window=2),
            OrderForm(window="all"),
            OrderForm(interleave=1),
            OrderForm(interleave=3),
        ]
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@given(
    _SIZES, _FORMS, st.sampled_from([1, 2, 3]), st.integers(0, 90), st.integers(0, 60)
)
def test_rows_are_those_of_a_walk_over_single_positions(
    sizes: Sizes, forms: tuple[OrderForm, ...], lanes: int, start: int, count: int
) -> None:
    stream = _stream(sizes, forms=forms, lanes=lanes)
    rows = stream.rows(start, start + count)
    assert list(zip(*(column.tolist() for column in rows), strict=True)) == _walk(
        stream, start, start + count
    )


@given(_SIZES, _FORMS, st.sampled_from(["first_exhausted", "all_exhausted"]))
def test_a_stream_that_ends_is_walked_to_its_end(
    sizes: Sizes, forms: tuple[OrderForm, ...], stop: str
) -> None:
    stream = _stream(sizes, forms=forms, stop=stop)
    rows = stream.mixture.rows
    assert rows is not None
    assert list(
        zip(*(column.tolist() for column in stream.rows(0, rows)), strict=True)
    ) == _walk(stream, 0, rows)
    with pytest.raises(ConfigError):
        stream.rows(rows, rows + 1)


@given(_SIZES, _FORMS, st.sampled_from([1, 2, 3]))
def test_every_row_comes_once_an_epoch_and_has_its_place(
    sizes: Sizes, forms: tuple[OrderForm, ...], lanes: int
) -> None:
    stream = _stream(sizes, forms=forms, lanes=lanes, stop="all_exhausted")
    length = stream.mixture.rows
    assert length is not None
    rows = stream.rows(0, length)
    delivered = sorted(
        zip(rows.source.tolist(), rows.group.tolist(), rows.row.tolist(), strict=True)
    )
    stored = [
        (source, group, row)
        for source, group_rows in enumerate(sizes)
        for group, count in enumerate(group_rows)
        for row in range(count)
    ]
    assert delivered == stored
    # And backwards: from a stored row to its place.
    lane, place = stream.mixture.layout.locate(np.arange(length))
    for source in range(len(sizes)):
        selection = np.flatnonzero(rows.source == source)
        lane_of_row, place_of_row = stream.place_of(
            source, 0, rows.group[selection], rows.row[selection]
        )
        assert np.array_equal(lane_of_row, lane[selection])
        assert np.array_equal(place_of_row, place[selection])


def test_far_positions_cost_no_more_than_near_ones_and_long_ranges_are_their_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = (OrderForm(interleave=2), OrderForm(window="all"))
    stream = _stream([[5, 3, 9], [4, 4]], forms=forms, lanes=3)
    far = 10**12
    assert list(
        zip(*(column.tolist() for column in stream.rows(far, far + 20)), strict=True)
    ) == _walk(stream, far, far + 20)
    monkeypatch.setattr(streams, "_AT_ONCE", 1 << 12)
    whole, half = stream.rows(0, 20_000), 10_001
    first, second = stream.rows(0, half), stream.rows(half, 20_000)
    for column, *parts in zip(whole, first, second, strict=True):
        assert np.array_equal(column, np.concatenate(parts))


def test_orders_of_other_lanes_are_refused() -> None:
    stream = _stream([[5, 3], [4, 4]])
    other = EpochOrder(np.array([5, 3]), lanes=1, seed=0)
    with pytest.raises(ConfigError, match="expected one of 2 lanes for each of s0, s1"):
        MixtureStream(stream.mixture, [other, stream.orders[1]])
    with pytest.raises(ConfigError, match="expected one of 2 lanes for each"):
        MixtureStream(stream.mixture, stream.orders[:1])


@given(_SIZES, st.integers(0, 40), st.integers(1, 90), st.integers(1, 20))
def test_an_agenda_lets_go_of_a_row_group_between_its_uses_and_never_in_one(
    sizes: Sizes, start: int, count: int, step_rows: int
) -> None:
    """What neither a step nor the next one needs is not held, but where a lane comes
    back to it in the same epoch.
    """
    stream = _stream(sizes)
    agenda = list(mix_steps(stream, start, start + count, step_rows))
    rows, lanes = stream.rows(start, start + count), stream.lanes(start, start + count)
    assert np.array_equal(np.concatenate([step.row for step in agenda]), rows.row)
    assert np.array_equal(np.concatenate([step.group for step in agenda]), rows.group)
    spans: dict[tuple[int, ...], list[int]] = {}
    for place, key in enumerate(
        zip(rows.source, rows.group, rows.epoch, lanes, strict=True)
    ):
        spans.setdefault(tuple(map(int, key)), []).append(place // step_rows)
    live = [
        {key[:2] for key, steps in spans.items() if min(steps) <= number <= max(steps)}
        for number in range(len(agenda))
    ]
    held: set[tuple[int, ...]] = set()
    for number, step in enumerate(agenda):
        held |= set(zip(step.source.tolist(), step.group.tolist(), strict=True))
        assert live[number] <= held
        later = live[number + 1] if number + 1 < len(agenda) else set()
        assert set(step.done) == {place for place in live[number] if place not in later}
        held -= set(step.done)
    assert not held


def pinned_rows(forms: dict[str, OrderForm]) -> list[tuple[int, ...]]:
    """Return (source, epoch, row group, row) at the first 24 positions of a mixture."""
    lengths = {"code": 7, "web": 11}
    groups = {"code": np.array([3, 4]), "web": np.array([4, 4, 3])}
    weights = constant({"code": 0.25, "web": 0.75})
    mixture = SourceMixture(
        lengths, weights, lanes=2, batch_size=4, block_size=8, seed=5, order=3
    )
    orders = [
        source_order(name, groups[name], lanes=2, seed=5, form=forms[name])
        for name in mixture.names
    ]
    rows = MixtureStream(mixture, orders).rows(0, 24)
    return [tuple(int(value) for value in row) for row in zip(*rows, strict=True)]


def test_the_rows_of_a_stream_are_pinned() -> None:
    """What is stored and what a trainer reads rest on it: another order here is
    another format.
    """
    rows = pinned_rows({"code": OrderForm(), "web": OrderForm()})
    assert rows[:8] == [
        (1, 0, 0, 2),
        (0, 0, 0, 1),
        (1, 0, 1, 1),
        (1, 0, 1, 2),
        (1, 0, 0, 1),
        (1, 0, 0, 3),
        (1, 0, 1, 3),
        (0, 0, 1, 1),
    ]
    assert rows[-4:] == [(1, 1, 2, 0), (1, 1, 0, 1), (0, 0, 1, 2), (1, 1, 1, 3)]


def test_the_rows_of_other_forms_are_pinned() -> None:
    """States of trainers name the form of each source, and resume in it."""
    forms = {"code": OrderForm(window="all"), "web": OrderForm(interleave=2)}
    rows = pinned_rows(forms)
    assert rows[:8] == [
        (1, 0, 0, 0),
        (0, 0, 0, 0),
        (1, 0, 2, 0),
        (1, 0, 1, 2),
        (1, 0, 1, 0),
        (1, 0, 0, 2),
        (1, 0, 1, 1),
        (0, 0, 0, 1),
    ]
    assert rows[-4:] == [(1, 1, 0, 1), (1, 1, 2, 1), (0, 0, 1, 3), (1, 1, 0, 3)]


@pytest.mark.parametrize(
    ("order", "digest"),
    [
        (2, "bee33b914635d5ef"),
        (3, "82cebb8e7cbf628e"),
        (MIXTURE_ORDER, "5a1e2e7b3264c4bd"),
    ],
)
def test_each_version_of_the_order_is_pinned(order: int, digest: str) -> None:
    weights = constant({"code": 0.3, "text": 0.2, "web": 0.5})
    lengths = {"code": 70, "text": 50, "web": 110}
    mixture = SourceMixture(
        lengths,
        weights,
        lanes=8,
        batch_size=16,
        block_size=40,
        seed=2,
        order=order,
    )
    content = sha256()
    for lane in range(8):
        draws = mixture.lane(lane, 0, 500)
        for column in (draws.source, draws.epoch, draws.index):
            content.update(column.astype("<i8").tobytes())
    assert content.hexdigest()[:16] == digest


@pytest.mark.parametrize(("lanes", "batch_size"), [(32, 32), (64, 64), (64, 128)])
def test_parts_of_a_batch_have_the_sources_as_by_chance(
    lanes: int, batch_size: int
) -> None:
    """A device or a micro-batch has a quarter of a batch. The variance of the shares
    of a source in quarters is of the size that it has by chance. It is not equal: the
    lanes are permuted once for 1,000 batches.
    """
    batches = 1000
    mixture = SourceMixture(
        {"code": 10**6, "web": 10**6},
        constant({"code": 0.3, "web": 0.7}),
        lanes=lanes,
        batch_size=batch_size,
        step_rows=batch_size,
    )
    places = batches * batch_size // lanes
    source = np.stack([mixture.lane(lane, 0, places).source for lane in range(lanes)])
    rows = source.reshape(lanes, batches, batch_size // lanes).swapaxes(0, 1)
    quarters = rows.reshape(batches, 4, batch_size // 4)
    of_web = quarters.mean(axis=2)
    rest = batch_size - batch_size // 4
    by_chance = 0.3 * 0.7 / (batch_size // 4) * rest / (batch_size - 1)
    # The third version of the order has 6 to 13 times the variance of chance.
    assert of_web.var() / by_chance < 2.5
    assert np.abs(of_web.mean(axis=0) - 0.7).max() < 0.01

"""Orders that read many row groups side by side: their law, their inverse, their
figures, and their pinned rows.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import (
    EpochOrder,
    Int64,
    OrderForm,
    Permutation,
    RowOrder,
    SourceMemory,
    StrandOrder,
    UniformOrder,
    default_forms,
    key_of,
    lane_bounds,
)

Row = tuple[int, int]

group_sizes = st.lists(st.sampled_from([0, 0, 1, 2, 3, 9]), max_size=12)
lane_counts = st.integers(1, 7)
seeds = st.integers(-5, 2**64)
strand_counts = st.integers(1, 6)
SHARES = st.fractions(Fraction(1, 1000), 1)
epochs = st.integers(0, 10**9)


def _rows(group: Int64, row: Int64) -> list[Row]:
    return list(zip(group.tolist(), row.tolist(), strict=True))


def _lane(order: RowOrder, epoch: int, lane: int) -> list[Row]:
    lane_rows = int(order.lengths[lane])
    return _rows(*order.at(np.array([epoch]), np.array([lane]), np.arange(lane_rows)))


def _places(order: RowOrder) -> tuple[Int64, Int64]:
    lane = np.repeat(np.arange(order.lanes), order.lengths)
    place = np.concatenate([np.arange(length) for length in order.lengths])
    return lane, place


def _orders_of(
    group_rows: list[int], lanes: int, seed: int, strands: int
) -> list[RowOrder]:
    rows = np.array(group_rows, np.int64)
    return [
        StrandOrder(rows, lanes=lanes, seed=seed, strands=strands),
        UniformOrder(rows, lanes=lanes, seed=seed),
        EpochOrder(rows, lanes=lanes, seed=seed, window=strands),
    ]


def _walk_strands(
    group_rows: list[int], lanes: int, seed: int, strands: int, epoch: int
) -> list[list[Row]]:
    """The law of strands, step by step: strands are read from one end, and a round
    takes a row of each.
    """
    of_strands = EpochOrder(
        np.array(group_rows, np.int64), lanes=lanes * strands, seed=seed
    )
    walked: list[list[Row]] = []
    for lane in range(lanes):
        waiting: list[list[Row]] = []
        for strand in range(lane * strands, (lane + 1) * strands):
            rows = _lane(of_strands, epoch, strand)
            waiting.append(rows if strand % 2 == 0 else rows[::-1])
        walked.append([])
        for number in itertools.count():
            left = [rows for rows in waiting if len(rows) > number]
            if not left:
                break
            key = key_of(seed, 4, epoch, lane, number)
            for turn in Permutation(len(left), key).at(np.arange(len(left))).tolist():
                walked[lane].append(left[turn][number])
    return walked


@given(group_sizes, lane_counts, seeds, strand_counts, epochs)
def test_strands_take_turns_as_their_law_says(
    group_rows: list[int], lanes: int, seed: int, strands: int, epoch: int
) -> None:
    order = StrandOrder(
        np.array(group_rows, np.int64), lanes=lanes, seed=seed, strands=strands
    )
    expected = _walk_strands(group_rows, lanes, seed, strands, epoch)
    assert [_lane(order, epoch, lane) for lane in range(lanes)] == expected
    assert order.lengths.tolist() == np.diff(lane_bounds(order.rows, lanes)).tolist()


@given(group_sizes, lane_counts, seeds, epochs)
def test_all_rows_are_one_permutation(
    group_rows: list[int], lanes: int, seed: int, epoch: int
) -> None:
    order = UniformOrder(np.array(group_rows, np.int64), lanes=lanes, seed=seed)
    stored = [
        (group, row) for group, rows in enumerate(group_rows) for row in range(rows)
    ]
    numbers = Permutation(len(stored), key_of(seed, 5, epoch)).at(
        np.arange(len(stored))
    )
    delivered = [row for lane in range(lanes) for row in _lane(order, epoch, lane)]
    assert delivered == [stored[number] for number in numbers.tolist()]


@given(group_sizes, lane_counts, seeds, strand_counts, epochs)
def test_place_of_is_the_inverse(
    group_rows: list[int], lanes: int, seed: int, strands: int, epoch: int
) -> None:
    for order in _orders_of(group_rows, lanes, seed, strands):
        lane, place = _places(order)
        group, row = order.at(np.array([epoch]), lane, place)
        assert sorted(set(_rows(group, row))) == sorted(_rows(group, row))
        assert order.has(group, row).all()
        found_lane, found_place = order.place_of(epoch, group, row)
        assert (found_lane.tolist(), found_place.tolist()) == (
            lane.tolist(),
            place.tolist(),
        )


@given(group_sizes, lane_counts, seeds, strand_counts, st.data())
def test_places_of_many_epochs_are_found_together_as_alone(
    group_rows: list[int], lanes: int, seed: int, strands: int, data: st.DataObject
) -> None:
    for order in _orders_of(group_rows, lanes, seed, strands):
        lane, place = _places(order)
        epoch = np.array([data.draw(st.integers(0, 4)) for _ in place], np.int64)
        together = _rows(*order.at(epoch, lane, place))
        alone: list[Row] = []
        for index in range(len(place)):
            one = slice(index, index + 1)
            alone += _rows(*order.at(epoch[one], lane[one], place[one]))
        assert together == alone


@given(group_sizes, lane_counts, seeds, strand_counts, st.data())
def test_rows_taken_are_those_of_the_first_places(
    group_rows: list[int], lanes: int, seed: int, strands: int, data: st.DataObject
) -> None:
    for order in _orders_of(group_rows, lanes, seed, strands):
        lane, place = _places(order)
        places = np.array(
            [data.draw(st.integers(0, length)) for length in order.lengths.tolist()],
            np.int64,
        )
        begin, end = order.taken(3, places)
        times = np.zeros(order.rows + 1, np.int64)
        np.add.at(times, begin, 1)
        np.add.at(times, end, -1)
        group, row = order.at(np.array([3]), lane, place)
        first_rows = np.append(0, np.cumsum(group_rows)).astype(np.int64)
        expected = np.zeros(order.rows, np.int64)
        expected[(first_rows[group] + row)[place < places[lane]]] = 1
        assert np.cumsum(times)[:-1].tolist() == expected.tolist()


@given(group_sizes, lane_counts, seeds, strand_counts, st.data())
def test_ranges_between_places_are_their_rows(
    group_rows: list[int], lanes: int, seed: int, window: int, data: st.DataObject
) -> None:
    order = EpochOrder(
        np.array(group_rows, np.int64), lanes=lanes, seed=seed, window=window
    )
    lane, place = _places(order)
    last = np.array(
        [data.draw(st.integers(0, length)) for length in order.lengths.tolist()],
        np.int64,
    )
    first = np.array(
        [data.draw(st.integers(0, end)) for end in last.tolist()], np.int64
    )
    begin, end = order.taken_between(2, first, last)
    group, row = order.at(2, lane, place)
    is_taken = (place >= first[lane]) & (place < last[lane])
    first_rows = np.append(0, np.cumsum(group_rows)).astype(np.int64)
    expected = sorted((first_rows[group] + row)[is_taken].tolist())
    ranges = zip(begin.tolist(), end.tolist(), strict=True)
    assert sorted(row for one in ranges for row in range(*one)) == expected


def test_neighbouring_strands_share_a_row_group_at_the_same_time() -> None:
    """A row group that a border cuts is read once: by two strands that both begin,
    or both end, with it.
    """
    order = StrandOrder(np.full(50, 16), lanes=2, seed=1, strands=3)
    lane, place = _places(order)
    group, _ = order.at(np.array([0]), lane, place)
    for number in range(50):
        places = place[group == number]
        # A strand reads 16 rows in 48 places of its lane. A group of two strands takes
        # no longer.
        assert places.max() - places.min() < 3 * 17


def test_orders_are_pinned() -> None:
    """A change here changes what every trainer reads: never change it."""
    group_rows = np.array([3, 0, 4, 2], np.int64)
    strands = StrandOrder(group_rows, lanes=1, seed=0, strands=2)
    assert _lane(strands, 0, 0) == STRANDS
    uniform = UniformOrder(group_rows, lanes=2, seed=0)
    assert [_lane(uniform, 0, lane) for lane in (0, 1)] == UNIFORM
    large = StrandOrder(np.full(1000, 256), lanes=64, seed=7, strands=12)
    lane = np.array([0, 1, 63])
    place = np.array([0, 1000, 3999])
    assert _rows(*large.at(np.array([10**6]), lane, place)) == LARGE_STRANDS
    large_uniform = UniformOrder(np.full(1000, 256), lanes=64, seed=7)
    assert _rows(*large_uniform.at(np.array([10**6]), lane, place)) == LARGE_UNIFORM


STRANDS = [(0, 1), (2, 3), (0, 0), (2, 2), (2, 0), (0, 2), (2, 1), (3, 0), (3, 1)]
UNIFORM = [[(0, 2), (3, 0), (2, 1), (3, 1)], [(2, 3), (0, 1), (2, 0), (0, 0), (2, 2)]]
LARGE_STRANDS = [(269, 35), (828, 80), (710, 239)]
LARGE_UNIFORM = [(325, 107), (848, 71), (807, 224)]


def test_wrong_arguments_are_refused() -> None:
    rows = np.array([3, 0, 4, 2], np.int64)
    with pytest.raises(ConfigError, match="a lane of 0 strands; expected 1 or more"):
        StrandOrder(rows, lanes=1, seed=0, strands=0)
    with pytest.raises(ConfigError, match="a row group of -1 rows"):
        UniformOrder(np.array([2, -1]), lanes=1, seed=0)
    for order in (
        StrandOrder(rows, lanes=2, seed=0, strands=2),
        UniformOrder(rows, lanes=2, seed=0),
    ):
        with pytest.raises(ConfigError, match="lane 1 has no place 5: it has 5 rows"):
            order.at(np.array([0]), np.array([0, 1]), np.array([0, 5]))
        with pytest.raises(ConfigError, match="there is no lane 2; expected 0 to 1"):
            order.at(np.array([0]), np.array([2]), np.array([0]))
        with pytest.raises(ConfigError, match="epoch -1; expected 0 or more"):
            order.at(np.array([-1]), np.array([0]), np.array([0]))
        with pytest.raises(
            ConfigError, match="row group 1 has no row 0: it has 0 rows"
        ):
            order.place_of(0, np.array([1]), np.array([0]))


SIZES: list[tuple[dict[str, Any], OrderForm]] = [
    # 200 million ids of 16 bits fit into three quarters of 512 MiB.
    ({"decoded_bytes": 400_000_000}, OrderForm(window="all")),
    ({"decoded_bytes": 40_000_000_000, "groups": 76_294}, OrderForm(interleave=12)),
    ({"decoded_bytes": 80_000_000_000, "groups": 76_294}, OrderForm(interleave=6)),
    # Buckets share the memory. Little memory is one strand, and a strand has a row at
    # least.
    (
        {"decoded_bytes": 40_000_000_000, "groups": 76_294, "streams": 4},
        OrderForm(interleave=3),
    ),
    (
        {"decoded_bytes": 40_000_000_000, "groups": 76_294, "max_bytes": 1},
        OrderForm(interleave=1),
    ),
    (
        {"rows": 128, "groups": 128, "decoded_bytes": 128, "max_bytes": 128},
        OrderForm(interleave=1),
    ),
    (
        {"rows": 640, "groups": 9_999, "decoded_bytes": 9_999, "max_bytes": 9_999},
        OrderForm(interleave=10),
    ),
]


@pytest.mark.parametrize(("facts", "form"), SIZES, ids=str)
def test_the_default_keeps_open_what_fits_into_memory(
    facts: dict[str, Any], form: OrderForm
) -> None:
    size = {"rows": 9_765_625, "groups": 800}
    memory = {"lanes": 64, "streams": 1, "max_bytes": 512 << 20}
    for name, value in facts.items():
        if name in memory:
            memory[name] = value
        else:
            size[name] = value
    assert default_forms({"web": SourceMemory(**size)}, **memory) == {"web": form}


MIB = 1 << 20
# 512 MiB have 384 for open row groups, and a row group has half a MiB: with 32 lanes 24
# strands.
SHARED: list[tuple[dict[str, tuple[int, float]], dict[str, OrderForm]]] = [
    # Both fit.
    (
        {"web": (300 * MIB, 0.9), "code": (80 * MIB, 0.1)},
        {"web": OrderForm(window="all"), "code": OrderForm(window="all")},
    ),
    # Open row groups are in the ratio of the shares.
    (
        {"web": (40_000 * MIB, 0.75), "code": (40_000 * MIB, 0.25)},
        {"web": OrderForm(interleave=18), "code": OrderForm(interleave=6)},
    ),
    # A small source is whole, and leaves to the others what it does not need.
    (
        {
            "web": (40_000 * MIB, 0.5),
            "code": (4_000 * MIB, 0.25),
            "wiki": (8 * MIB, 0.25),
        },
        {
            "web": OrderForm(interleave=15),
            "code": OrderForm(interleave=8),
            "wiki": OrderForm(window="all"),
        },
    ),
    # A rare source has a strand, which the others make room for; what rounding leaves
    # is for the largest remainder.
    (
        {
            "web": (40_000 * MIB, 0.7),
            "code": (4_000 * MIB, 0.29),
            "wiki": (900 * MIB, 0.01),
        },
        {
            "web": OrderForm(interleave=16),
            "code": OrderForm(interleave=7),
            "wiki": OrderForm(interleave=1),
        },
    ),
]


@pytest.mark.parametrize(("sources", "forms"), SHARED, ids=str)
def test_the_sources_of_a_mixture_divide_the_memory(
    sources: dict[str, tuple[int, float]], forms: dict[str, OrderForm]
) -> None:
    sizes: dict[str, SourceMemory] = {}
    for name, (decoded_bytes, share) in sources.items():
        groups = decoded_bytes // (MIB // 2)
        sizes[name] = SourceMemory(128 * groups, groups, decoded_bytes, Fraction(share))
    assert default_forms(sizes, lanes=32, streams=1, max_bytes=512 * MIB) == forms


@given(
    sizes=st.lists(
        st.tuples(
            st.integers(1, 10**6), st.integers(1, 10**4), st.integers(0, 10**10), SHARES
        ),
        min_size=1,
        max_size=12,
    ),
    lanes=st.integers(1, 64),
    streams=st.integers(1, 4),
    max_bytes=st.integers(0, 1 << 32),
)
def test_open_row_groups_fit_into_memory_unless_each_lane_needs_one(
    sizes: list[tuple[int, int, int, Fraction]],
    lanes: int,
    streams: int,
    max_bytes: int,
) -> None:
    sources = {
        f"source-{number}": SourceMemory(rows, groups, decoded_bytes, share)
        for number, (rows, groups, decoded_bytes, share) in enumerate(sizes)
    }
    forms = default_forms(sources, lanes=lanes, streams=streams, max_bytes=max_bytes)
    assert list(forms) == list(sources)
    used = 0
    beyond_one = 0
    for name, source in sources.items():
        if forms[name].window == "all":
            used += source.decoded_bytes
        else:
            strands = forms[name].interleave
            assert strands is not None
            assert 1 <= strands <= max(1, source.rows // (lanes * streams))
            used += strands * lanes * streams * source.group_bytes
            beyond_one += strands - 1
    # Sources that have one strand each may need more than there is.
    if beyond_one:
        assert used <= max_bytes * 3 // 4
    if sum(source.decoded_bytes for source in sources.values()) <= max_bytes * 3 // 4:
        assert all(form.window == "all" for form in forms.values())


@pytest.mark.parametrize(
    ("state", "form"),
    [
        ({"window": 3, "order": 2}, OrderForm(window=3)),
        ({"window": "all", "order": 3}, OrderForm(window="all")),
        ({"window": 1, "interleave": 12, "order": 3}, OrderForm(interleave=12)),
        ({"window": 0}, None),
        ({"window": True}, None),
        ({"window": "every"}, None),
        ({"window": 1, "interleave": 0}, None),
        ({"window": 1, "interleave": 2.0}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_form_is_what_its_state_says(
    state: dict[str, Any], form: OrderForm | None
) -> None:
    assert OrderForm.of_state(state) == form
    if form is not None:
        assert form.to_json() == state

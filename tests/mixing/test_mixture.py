"""Which row is at which position, against a walk from slot to slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake import WeightScheduler
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import (
    MIXTURE_ORDER,
    STOPS,
    Deal,
    LaneLayout,
    SourceMixture,
    constant,
    counts_of,
    key_of,
    lane_bounds,
    shuffled,
)

Row = tuple[int, int, int]


def even(*names: str) -> WeightScheduler:
    return constant({name: 1 / len(names) for name in names})


def equal(a: int | None, b: int | None, **options: Any) -> SourceMixture:
    """A mixture of as much of one source as of another."""
    return SourceMixture({"a": a, "b": b}, even("a", "b"), **options)


def rows_of(mixture: SourceMixture, lane: int, start: int, stop: int) -> list[Row]:
    draws = mixture.lane(lane, start, stop)
    return list(
        zip(
            draws.source.tolist(),
            draws.epoch.tolist(),
            draws.index.tolist(),
            strict=True,
        )
    )


def whole_lane(mixture: SourceMixture, lane: int) -> list[Row]:
    rows = mixture.lane_rows(lane)
    assert rows is not None
    return rows_of(mixture, lane, 0, rows)


def walked(
    before: Callable[[int], Sequence[int]],
    lane: int,
    block_size: int,
    seed: int,
    rows: list[int],
    stop: str,
) -> Iterator[Row]:
    """One lane by the rules themselves: block by block, slot by slot, with nothing
    known in advance.
    """
    drawn = [0] * len(rows)
    block = 0
    while True:
        ends = (before(at) for at in (block, block + 1))
        dealt = [
            source
            for source, (a, b) in enumerate(zip(*ends, strict=True))
            for _ in range(a, b)
        ]
        slots = dict(
            zip(
                shuffled(block_size, key_of(seed, lane, block)).tolist(),
                dealt,
                strict=True,
            )
        )
        for slot in range(block_size):
            source = slots[slot]
            if stop == "restart":
                yield source, *divmod(drawn[source], rows[source])
            elif drawn[source] < rows[source]:
                yield source, 0, drawn[source]
            elif stop == "first_exhausted":
                return
            drawn[source] += 1
            if stop == "all_exhausted" and all(
                a >= b for a, b in zip(drawn, rows, strict=True)
            ):
                return
        block += 1


@st.composite
def asked(draw: st.DrawFn, stops: tuple[str, ...] = STOPS) -> dict:
    sources = draw(st.integers(1, 4))
    lanes = draw(st.integers(1, 3))
    one = st.sampled_from([0.1, 0.5, 1.0]) | st.floats(0.05, 1)

    def weights() -> dict[str, float]:
        raw = draw(st.lists(one, min_size=sources, max_size=sources))
        return {f"s{at}": weight / sum(raw) for at, weight in enumerate(raw)}

    steps = draw(
        st.lists(st.integers(0, 60), min_size=1, max_size=3, unique=True).map(sorted)
    )
    scheduler = WeightScheduler(
        [{"step": step, "weights": weights()} for step in steps],
        draw(st.sampled_from(["step", "linear", "cosine"])),
    )
    return {
        "lengths": {f"s{at}": draw(st.integers(lanes, 70)) for at in range(sources)},
        "scheduler": scheduler,
        "lanes": lanes,
        "batch_size": lanes * draw(st.integers(1, 4)),
        "block_size": draw(st.sampled_from([1, 2, 7, 16, 50])),
        "step_rows": lanes * draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 5)),
        "stop": draw(st.sampled_from(stops)),
        "order": draw(st.sampled_from([2, MIXTURE_ORDER])),
    }


def walked_lane(options: dict, lane: int) -> Iterator[Row]:
    lanes = options["lanes"]
    sizes = {
        name: options[name]
        for name in ("lanes", "batch_size", "block_size", "step_rows", "seed")
    }
    if options["order"] == MIXTURE_ORDER:
        deal = Deal(options["scheduler"], **sizes)
        before, size = partial(deal.before, lane), deal.cell
    else:
        size = options["block_size"]
        counts = counts_of(
            options["scheduler"],
            step_rows=options["step_rows"] // lanes,
            block_size=size,
            batch_rows=options["batch_size"] // lanes,
        )

        def before(block: int) -> Sequence[int]:
            return counts.draws_before(block * size)

    rows = [
        int(np.diff(lane_bounds(options["lengths"][name], lanes))[lane])
        for name in options["scheduler"].names
    ]
    return walked(before, lane, size, options["seed"], rows, options["stop"])


class TestPositions:
    @given(asked(), st.integers(0, 400))
    @settings(max_examples=40, deadline=None)
    def test_every_lane_is_what_a_walk_from_slot_to_slot_finds(self, options, places):
        mixture = SourceMixture(**options)
        for lane in range(options["lanes"]):
            walk = list(islice(walked_lane(options, lane), places))
            end = mixture.lane_rows(lane)
            assert (
                rows_of(mixture, lane, 0, places if end is None else min(places, end))
                == walk
            )
            assert end is None or end >= len(walk)
            if end is not None and end <= places:
                assert len(walk) == end

    @given(asked(), st.integers(0, 300), st.data())
    @settings(max_examples=30, deadline=None)
    def test_any_partition_of_a_lane_concatenates_to_the_same_rows(
        self, options, places, data
    ):
        mixture = SourceMixture(**options)
        lane = data.draw(st.integers(0, options["lanes"] - 1))
        end = mixture.lane_rows(lane)
        places = places if end is None else min(places, end)
        cuts = sorted(
            {0, places, *data.draw(st.lists(st.integers(0, places), max_size=9))}
        )
        parts = [
            rows_of(SourceMixture(**options), lane, a, b) for a, b in pairwise(cuts)
        ]
        assert list(chain(*parts)) == rows_of(mixture, lane, 0, places)

    @given(asked(), st.lists(st.integers(0, 250), min_size=1, max_size=4))
    @settings(max_examples=25, deadline=None)
    def test_a_position_is_a_place_of_a_lane(self, options, positions):
        mixture = SourceMixture(**options)
        walks = [
            list(islice(walked_lane(options, lane), 600))
            for lane in range(options["lanes"])
        ]
        lengths = (
            None if mixture.rows is None else np.array([len(walk) for walk in walks])
        )
        layout = LaneLayout(lengths, options["lanes"], options["batch_size"])
        assert mixture.rows == layout.rows
        for position in positions:
            if mixture.rows is None or position < mixture.rows:
                (lane,), (place,) = layout.locate(np.array([position]))
                source, epoch, index = walks[lane][place]
                assert mixture.at(position) == (
                    mixture.names[source],
                    epoch,
                    index,
                    lane,
                )

    @given(asked(), st.integers(0, 300), st.data())
    @settings(max_examples=30, deadline=None)
    def test_what_was_drawn_before_is_what_came_before(self, options, places, data):
        mixture = SourceMixture(**options)
        lane = data.draw(st.integers(0, options["lanes"] - 1))
        end = mixture.lane_rows(lane)
        places = places if end is None else min(places, end)
        sources = mixture.lane(lane, 0, places).source
        drawn = mixture.drawn(lane, places)
        assert (
            drawn.tolist()
            == np.bincount(sources, minlength=len(mixture.names)).tolist()
        )
        position = data.draw(
            st.integers(0, 300 if mixture.rows is None else min(300, mixture.rows))
        )
        before = mixture.drawn_before(position)
        assert before.sum() == position
        if mixture.rows is None or position < mixture.rows:
            name = mixture.at(position)[0]
            step = mixture.drawn_before(position + 1) - before
            assert step.tolist() == [int(one == name) for one in mixture.names]

    def test_positions_at_a_million_millions_are_as_exact(self):
        mixture = SourceMixture(
            {"a": 10**9, "b": 10**7, "c": 3}, constant({"a": 0.7, "b": 0.2, "c": 0.1})
        )
        far = 10**12
        draws = mixture.lane(0, far, far + 3000)
        assert np.bincount(draws.source).tolist() == [2100, 600, 300]
        assert mixture.drawn(0, far).tolist() == [7 * 10**11, 2 * 10**11, 10**11]
        number = draws.epoch * np.array([10**9, 10**7, 3])[draws.source] + draws.index
        for source, before in enumerate(mixture.drawn(0, far)):
            assert number[draws.source == source].tolist() == list(
                range(before, before + (draws.source == source).sum())
            )


LANES = """
2 0 0 a0.0 b0.0 a0.1 c0.0 a0.2 c0.1 b0.1 a0.3 b0.2 a0.4 c0.2 a0.5 a0.6 b0.3 b0.4 a0.7 a0.8 c1.0 b1.0 a0.9
2 0 1 c0.0 a0.0 c0.1 b0.0 a0.1 a0.2 a0.3 b0.1 a0.4 b0.2 c0.2 b0.3 a0.5 b0.4 b1.0 a0.6 a0.7 a0.8 c1.0 a0.9
2 1 0 c0.0 a0.0 a0.1 c0.1 a0.2 b0.0 a0.3 a0.4 b0.1 b0.2 b0.3 b0.4 c0.2 a0.5 b1.0 a0.6 a0.7 a0.8 c1.0 a0.9
2 42 3 a0.0 b0.0 a0.1 b0.1 c0.0 c0.1 a0.2 a0.3 b0.2 a0.4 a0.5 a0.6 a0.7 c0.2 a0.8 a0.9 b0.3 b0.4 c1.0 b1.0
3 0 0 a0.0 c0.0 c0.1 a0.1 b0.0 a0.2 b0.1 a0.3 c0.2 a0.4 b0.2 a0.5 a0.6 c1.0 b0.3 a0.7 b0.4 a0.8 c1.1 a0.9
3 0 1 b0.0 a0.0 b0.1 a0.1 c0.0 a0.2 a0.3 b0.2 a0.4 c0.1 b0.3 a0.5 a0.6 b0.4 c0.2 a0.7 b1.0 a0.8 a0.9 c1.0
3 1 0 c0.0 a0.0 c0.1 a0.1 a0.2 b0.0 b0.1 a0.3 a0.4 c0.2 a0.5 b0.2 a0.6 c1.0 a0.7 b0.3 a0.8 b0.4 a0.9 c1.1
3 42 3 a0.0 c0.0 b0.0 a0.1 a0.2 b0.1 c0.1 a0.3 b0.2 a0.4 a0.5 c0.2 a0.6 b0.3 b0.4 a0.7 c1.0 a0.8 a0.9 b1.0
"""
"""Order, seed, lane, and the first 20 rows of it: source, epoch and index."""

ENDS = """
2 first_exhausted a0/0 a1/0 a0/1 a1/1 a2/0 b0/0 a2/1 b0/1 a3/1 b1/1 b2/1
2 all_exhausted a0/0 a1/0 a0/1 a1/1 a2/0 b0/0 a2/1 b0/1 b1/0 b2/0 a3/1 b1/1 b3/0 b2/1 b3/1 b4/1
3 first_exhausted a0/0 a1/0 b0/1 a0/1 a2/0 b1/1 a1/1 a2/1 b2/1 b3/1 b4/1
3 all_exhausted a0/0 a1/0 b0/1 a0/1 a2/0 b0/0 b1/1 a1/1 b1/0 b2/0 a2/1 b2/1 b3/0 b3/1 b4/1 a3/1
"""
FAR = """
2 a891549.15088/0 a891549.15089/0 a891549.15088/1 a891549.15088/11 a891549.15090/63
3 a891549.15088/0 a891549.15089/0 b105908236.11/1 b105908236.10/11 a891549.15091/63
"""


def pinned(table: str, facts: int) -> list[list[str]]:
    """A line is some facts, and what is wanted of them."""
    return [line.split(" ", facts) for line in table.strip().splitlines()]


class TestGolden:
    """A change here changes the order of every mixture: never change it."""

    @pytest.mark.parametrize(("order", "seed", "lane", "want"), pinned(LANES, 3))
    def test_the_order_of_a_lane(self, order, seed, lane, want):
        mixture = SourceMixture(
            {"a": 40, "b": 20, "c": 12},
            constant({"a": 0.5, "b": 0.3, "c": 0.2}),
            lanes=4,
            batch_size=8,
            block_size=10,
            seed=int(seed),
            order=int(order),
        )
        rows = rows_of(mixture, int(lane), 0, 20)
        assert (
            " ".join(f"{'abc'[source]}{epoch}.{index}" for source, epoch, index in rows)
            == want
        )

    @pytest.mark.parametrize(("order", "stop", "want"), pinned(ENDS, 2))
    def test_the_order_of_a_stream_that_ends(self, order, stop, want):
        points = [
            {"step": 0, "weights": {"a": 0.9, "b": 0.1}},
            {"step": 10, "weights": {"a": 0.1, "b": 0.9}},
        ]
        sizes = {
            "lanes": 2,
            "batch_size": 4,
            "block_size": 5,
            "step_rows": 2,
            "seed": 3,
        }
        mixture = SourceMixture(
            {"a": 7, "b": 9},
            WeightScheduler(points, "cosine"),
            **sizes,
            stop=stop,
            order=int(order),
        )
        rows = [mixture.at(position) for position in range(mixture.rows or 0)]
        assert (
            " ".join(f"{name}{index}/{lane}" for name, _, index, lane in rows) == want
        )

    @pytest.mark.parametrize(("order", "want"), pinned(FAR, 1))
    def test_the_order_far_away(self, order, want):
        points = [
            {"step": 0, "weights": {"a": 0.9, "b": 0.1}},
            {"step": 1 << 35, "weights": {"a": 0.1, "b": 0.9}},
        ]
        sizes = {
            "lanes": 64,
            "batch_size": 256,
            "step_rows": 256,
            "seed": 7,
            "order": int(order),
        }
        mixture = SourceMixture(
            {"a": 10**6, "b": 999}, WeightScheduler(points, "cosine"), **sizes
        )
        rows = [mixture.at(10**12 + at) for at in (0, 1, 4, 44, 255)]
        assert (
            " ".join(
                f"{name}{epoch}.{index}/{lane}" for name, epoch, index, lane in rows
            )
            == want
        )


class TestSeeds:
    def test_no_block_equals_the_first_block_of_another_seed(self):
        def block(seed: int, number: int) -> bytes:
            found = equal(90, 90, batch_size=64, block_size=64, seed=seed)
            return found.lane(0, 64 * number, 64 * number + 64).source.tobytes()

        blocks = [block(seed, number) for seed in range(20) for number in range(20)]
        assert len(set(blocks)) == len(blocks)


class TestStops:
    @pytest.mark.parametrize(
        ("rows", "total"), [((10, 20), 30), ((1, 1000), 1001), ((0, 5), 5), ((0, 0), 0)]
    )
    @pytest.mark.parametrize("weights", [(0.5, 0.5), (0.001, 0.999), (0.999, 0.001)])
    @pytest.mark.parametrize("lanes", [1, 4])
    @pytest.mark.parametrize("block_size", [1000, 3])
    def test_all_exhausted_gives_every_row_exactly_once(
        self, rows, total, weights, lanes, block_size
    ):
        mixture = SourceMixture(
            {"a": rows[0], "b": rows[1]},
            constant({"a": weights[0], "b": weights[1]}),
            lanes=lanes,
            batch_size=2 * lanes,
            block_size=block_size,
            stop="all_exhausted",
        )
        assert mixture.rows == total
        for lane in range(lanes):
            got = whole_lane(mixture, lane)
            ends = [np.diff(lane_bounds(count, lanes))[lane] for count in rows]
            assert sorted(got) == [
                (at, 0, index) for at, end in enumerate(ends) for index in range(end)
            ]

    def test_all_exhausted_comes_to_the_rows_of_two_very_rare_sources(self):
        tiny = 1e-9
        weights = {"a": 1 - 2 * tiny, "b": tiny, "c": tiny}
        mixture = SourceMixture(
            {"a": 5, "b": 4, "c": 6}, constant(weights), stop="all_exhausted"
        )
        got = whole_lane(mixture, 0)
        assert sorted(got) == [(0, 0, at) for at in range(5)] + [
            (1, 0, at) for at in range(4)
        ] + [(2, 0, at) for at in range(6)]
        assert got == list(
            chain(*(rows_of(mixture, 0, at, at + 1) for at in range(15)))
        )
        assert [mixture.drawn(0, at).tolist() for at in (5, 15)] == [
            [5, 0, 0],
            [5, 4, 6],
        ]

    def test_a_source_too_small_for_the_lanes_is_named(self):
        for stop in ("restart", "first_exhausted"):
            with pytest.raises(
                ConfigError, match=f"source 'small' has 3 rows for 4 lanes.*{stop}"
            ):
                SourceMixture(
                    {"a": 9, "small": 3},
                    even("a", "small"),
                    lanes=4,
                    batch_size=4,
                    stop=stop,
                )
        assert equal(9, 3, lanes=4, batch_size=4, stop="all_exhausted").rows == 12

    @pytest.mark.parametrize("interpolation", ["step", "linear", "cosine"])
    def test_a_source_that_can_never_be_exhausted_is_named(self, interpolation):
        points = [
            {"step": 0, "weights": {"a": 0.5, "b": 0.5}},
            {"step": 40, "weights": {"a": 0.0, "b": 1.0}},
        ]
        scheduler = WeightScheduler(points, interpolation)
        enough = 20 if interpolation == "step" else 10
        mixture = SourceMixture({"a": enough, "b": 99}, scheduler, stop="all_exhausted")
        assert len(set(whole_lane(mixture, 0))) == mixture.rows == 99 + enough
        with pytest.raises(
            ConfigError,
            match=f"source 'a' can never be exhausted: of its 30 rows .* takes {enough}",
        ):
            SourceMixture({"a": 30, "b": 99}, scheduler, stop="all_exhausted")
        with pytest.raises(ConfigError, match="'b' can never be exhausted"):
            SourceMixture(
                {"a": 3, "b": 1}, constant({"a": 1.0, "b": 0.0}), stop="all_exhausted"
            )

    def test_rows_cut_the_stream(self):
        whole = equal(50, 50, lanes=2, batch_size=4)
        cut = equal(50, 50, lanes=2, batch_size=4, rows=103)
        assert (whole.rows, cut.rows) == (None, 103)
        assert [cut.lane_rows(lane) for lane in (0, 1)] == [52, 51]
        assert all(cut.at(position) == whole.at(position) for position in range(103))
        with pytest.raises(
            ConfigError, match="position 104 is not in the mixture; expected 0 to 103"
        ):
            cut.drawn_before(104)
        with pytest.raises(
            ConfigError,
            match="places 0 to 52 of lane 1; expected a range within its 51 rows",
        ):
            cut.lane(1, 0, 52)

    def test_more_rows_than_there_are_is_an_error_that_says_how_many(self):
        with pytest.raises(
            ConfigError, match="31 rows was asked for; its sources end after 30 rows"
        ):
            equal(10, 20, stop="all_exhausted", rows=31)
        assert equal(10, 20, stop="all_exhausted", rows=30).rows == 30


class TestUnknownLengths:
    @pytest.mark.parametrize("stop", STOPS)
    def test_rows_are_numbered_without_an_end(self, stop):
        mixture = equal(None, 30, stop=stop)
        draws = mixture.lane(0, 0, 200)
        assert mixture.rows is None
        of_unknown = draws.source == 0
        assert draws.index[of_unknown].tolist() == list(range(of_unknown.sum()))
        assert not draws.epoch[of_unknown].any()

    def test_they_cannot_be_cut_into_lanes(self):
        with pytest.raises(
            ConfigError,
            match="'b' has an unknown number of rows and cannot be divided into 2 lanes",
        ):
            equal(9, None, lanes=2, batch_size=2)


class TestExtendedSchedules:
    @given(asked(("restart",)), st.integers(0, 80), st.data())
    @settings(max_examples=30, deadline=None)
    def test_every_position_before_the_step_stays(self, options, at, data):
        """Also where the step lies inside a block, or inside a batch of rows of all
        lanes.
        """
        old = options["scheduler"]
        new = old.extend(
            at=at, points=[self.point(old, at + data.draw(st.integers(1, 50)), data)]
        )
        before, after = (
            SourceMixture(**options),
            SourceMixture(**options | {"scheduler": new}),
        )
        rows = at * options["step_rows"]
        positions = {
            rows - 1,
            *data.draw(st.lists(st.integers(0, rows), max_size=5)),
        } - {-1, rows}
        for position in positions:
            assert after.at(position) == before.at(position)
        assert after.drawn_before(rows).tolist() == before.drawn_before(rows).tolist()

    @given(asked(("first_exhausted", "all_exhausted")), st.data())
    @settings(max_examples=30, deadline=None)
    def test_streams_that_end_say_at_which_step_they_may_be_extended(
        self, options, data
    ):
        before = SourceMixture(**options)
        assert before.rows is not None
        position = data.draw(st.integers(0, before.rows) | st.just(before.rows))
        at = before.step_after(position)
        old = options["scheduler"]
        new = old.extend(
            at=at, points=[self.point(old, at + data.draw(st.integers(1, 9)), data)]
        )
        after = SourceMixture(**options | {"scheduler": new})
        assert [after.at(one) for one in range(position)] == [
            before.at(one) for one in range(position)
        ]

    @given(asked(("first_exhausted",)), st.integers(0, 80), st.data())
    @settings(max_examples=60, deadline=None)
    def test_a_change_moves_no_row_before_its_step_while_all_lanes_have_rows(
        self, options, at, data
    ):
        """Rows before the smaller of two positions stay: that of the step, and the
        end of the shortest lane. Later rows are ordered by the ends of other lanes.
        """
        before = SourceMixture(**options)
        old = options["scheduler"]
        new = old.extend(
            at=at, points=[self.point(old, at + data.draw(st.integers(1, 9)), data)]
        )
        after = SourceMixture(**options | {"scheduler": new})
        shortest_lane = min(
            before.lane_rows(lane) or 0 for lane in range(options["lanes"])
        )
        fixed_rows = min(at * options["step_rows"], shortest_lane * options["lanes"])
        assert (after.rows or 0) >= fixed_rows
        assert [after.at(position) for position in range(fixed_rows)] == [
            before.at(position) for position in range(fixed_rows)
        ]

    def test_after_the_end_of_the_shortest_lane_only_the_step_of_a_row_is_exact(self):
        """The lanes have 21 and 23 rows: all 44 rows come before step 11, but only 42
        of them while both lanes have rows.
        """
        lengths = {"a": 21, "b": 40}
        sizes = {"lanes": 2, "batch_size": 4, "step_rows": 4, "stop": "first_exhausted"}
        old = even("a", "b")
        before = SourceMixture(lengths, old, **sizes)
        lane_rows = [before.lane_rows(lane) for lane in range(2)]
        rows_after: list[int | None] = []
        exact_step = before.step_after(44)
        for step in (11, exact_step):
            new = old.reweighted(at=step, weights={"a": 0.95, "b": 0.05})
            after = SourceMixture(lengths, new, **sizes)
            assert [after.at(row) for row in range(42)] == [
                before.at(row) for row in range(42)
            ]
            rows_after.append(after.rows)
        assert (lane_rows, exact_step, rows_after) == ([21, 23], 12, [43, 44])

    def test_behind_the_end_of_the_shortest_lane_the_ends_of_all_of_them_count(self):
        """The last rows come lane by lane, so that a lane that grew would move the
        next one's.
        """
        sizes = {
            "lanes": 3,
            "batch_size": 3,
            "block_size": 3,
            "step_rows": 3,
            "stop": "first_exhausted",
        }
        lengths, old = {"a": 14, "b": 18}, constant({"a": 0.87, "b": 0.13})
        for seed in range(12):
            before = SourceMixture(lengths, old, seed=seed, **sizes)
            at = before.step_after(before.rows or 0)
            new = old.extend(
                at=at, points=[{"step": at + 1, "weights": {"a": 0.1, "b": 0.9}}]
            )
            after = SourceMixture(lengths, new, seed=seed, **sizes)
            assert [after.at(one) for one in range(before.rows or 0)] == [
                before.at(one) for one in range(before.rows or 0)
            ]

    def test_an_endless_stream_may_be_extended_at_the_step_of_a_position(self):
        mixture = equal(99, 99, lanes=2, batch_size=4, step_rows=4)
        assert [mixture.step_after(position) for position in (0, 1, 4, 5, 400)] == [
            0,
            1,
            1,
            2,
            100,
        ]

    @staticmethod
    def point(scheduler: WeightScheduler, step: int, data: st.DataObject) -> dict:
        raw = [data.draw(st.floats(0.05, 1)) for _ in scheduler.names]
        return {
            "step": step,
            "weights": {
                name: one / sum(raw)
                for name, one in zip(scheduler.names, raw, strict=True)
            },
        }


class TestMistakes:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"lengths": {"a": 5}},
                "weights: expected a weight for each of a, but 'b' is not a source",
            ),
            ({"lengths": {"a": 5, "b": -1}}, "source 'b' has -1 rows"),
            ({"lanes": 0}, "lanes is 0; expected 1 or more"),
            ({"block_size": 0}, "block_size is 0; expected 1 or more"),
            ({"step_rows": 0}, "step_rows is 0; expected 1 or more"),
            (
                {"lanes": 2, "batch_size": 3},
                "a batch of 3 rows cannot take equally many from each of 2 lanes",
            ),
            (
                {"stop": "restrat"},
                r"stop is 'restrat', expected one of .*; did you mean 'restart'\?",
            ),
            ({"rows": -1}, "a mixture of -1 rows; expected 0 or more"),
        ],
    )
    def test_a_mixture_that_cannot_be_says_why(self, change, message):
        options = {"lengths": {"a": 5, "b": 5}, "scheduler": even("a", "b")} | change
        with pytest.raises(ConfigError, match=message):
            SourceMixture(**options)

    def test_places_and_lanes_that_are_not_there_are_refused(self):
        mixture = equal(5, 5, stop="all_exhausted")
        with pytest.raises(ConfigError, match="there is no lane 1; expected 0 to 0"):
            mixture.lane(1, 0, 1)
        with pytest.raises(ConfigError, match="places 3 to 2 of lane 0"):
            mixture.lane(0, 3, 2)
        with pytest.raises(
            ConfigError,
            match="places 0 to 11 of lane 0; expected a range within its 10 rows",
        ):
            mixture.lane(0, 0, 11)
        with pytest.raises(ConfigError, match="position 11 is not in the mixture"):
            mixture.drawn_before(11)

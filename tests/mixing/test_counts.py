"""How many rows of each source come first, against a walk through the jumps of every
count.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenlake import WeightScheduler
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import constant, counts_of

HALF = Fraction(1, 2)


def named(weights: list[float]) -> dict[str, float]:
    return {f"s{at}": weight for at, weight in enumerate(weights)}


def schedule(interpolation: str, *points: tuple[int, list[float]]) -> WeightScheduler:
    return WeightScheduler(
        [{"step": step, "weights": named(weights)} for step, weights in points],
        interpolation,
    )


def shares(count: int) -> st.SearchStrategy[list[float]]:
    """Weights that sum to 1 in floats; many are 0, equal to another or tiny."""
    one = st.sampled_from([0.0, 1e-4, 0.1, 0.25, 0.5, 1.0]) | st.floats(
        0, 1, allow_subnormal=False
    )
    raw = st.lists(one, min_size=count, max_size=count).filter(
        lambda weights: sum(weights) > 1e-2
    )
    return raw.map(lambda weights: [weight / sum(weights) for weight in weights])


@st.composite
def schedules(
    draw: st.DrawFn, interpolations: tuple[str, ...] = ("step", "linear", "cosine")
) -> WeightScheduler:
    sources = draw(st.integers(1, 5))
    steps = draw(
        st.lists(st.integers(0, 200), min_size=1, max_size=4, unique=True).map(sorted)
    )
    return schedule(
        draw(st.sampled_from(interpolations)),
        *((step, draw(shares(sources))) for step in steps),
    )


def walked(
    integrals: list[Callable[[Fraction], Fraction]], rows: int
) -> list[tuple[int, ...]]:
    """Counts before each row, by the rule itself: at each jump of a count, in order of
    time, that source gives a row.

    Time is looked at once in each tick of 2^-32 row; where counts jump in the same
    tick, the first source comes first.
    """
    events: list[tuple[int, int]] = []
    limit = rows + len(integrals) + 1
    for source, integral in enumerate(integrals):
        for jump in range(int(integral(Fraction(limit)) + HALF)):
            low, high = 0, limit << 32
            while high - low > 1:
                middle = (low + high) // 2
                reached = integral(Fraction(middle, 1 << 32)) >= jump + HALF
                low, high = (low, middle) if reached else (middle, high)
            events.append((high, source))
    counts = [0] * len(integrals)
    result = [tuple(counts)]
    for _, source in sorted(events)[:rows]:
        counts[source] += 1
        result.append(tuple(counts))
    return result


def lines(
    first: list[Fraction], last: list[Fraction], span: int
) -> list[Callable[[Fraction], Fraction]]:
    """Integrals of weights that move in a line over `span` rows and then hold."""

    def one(a: Fraction, b: Fraction) -> Callable[[Fraction], Fraction]:
        def integral(time: Fraction) -> Fraction:
            inside = min(time, Fraction(span))
            return (
                a * inside
                + (b - a) * inside * inside / (2 * span)
                + b * (time - inside)
            )

        return integral

    return [one(a, b) for a, b in zip(first, last, strict=True)]


def exact(weights: list[float]) -> list[Fraction]:
    total = sum(map(Fraction, weights))
    return [Fraction(weight) / total for weight in weights]


def counted(weights: list[float]) -> list[Fraction]:
    """The same in units of 2^-96, as they are counted: the share of the first row."""
    return list(counts_of(constant(named(weights))).shares(1))


class TestUnits:
    @given(st.integers(1, 9).flatmap(shares))
    def test_weights_are_whole_numbers_of_units_that_sum_to_one(self, weights):
        units = counted(weights)
        assert sum(units) == 1
        assert all((1 << 96) % unit.denominator == 0 for unit in units)
        for unit, weight in zip(units, exact(weights), strict=True):
            assert abs(unit - weight) < Fraction(1, 1 << 96)
            assert weight or not unit

    def test_what_is_left_over_goes_to_the_first_of_the_largest_remainders(self):
        thirds = counted([1 / 3] * 3)
        assert [unit * (1 << 96) - (1 << 96) // 3 for unit in thirds] == [1, 0, 0]


class TestRule:
    @given(shares(3), st.integers(1, 40))
    @settings(max_examples=30)
    def test_constant_weights_give_rows_as_their_counts_jump(self, weights, rows):
        counts = counts_of(constant(named(weights)))
        integrals = lines(counted(weights), counted(weights), 1)
        assert [counts.draws_before(n) for n in range(rows + 1)] == walked(
            integrals, rows
        )

    @given(shares(3), shares(3), st.integers(1, 9), st.integers(1, 5))
    # A tie at the moment at which a weight comes to nothing.
    @example([0.0, 0.0, 1.0], [0.0, 1.0, 0.0], 1, 1)
    @settings(max_examples=15)
    def test_weights_in_a_line_give_rows_as_their_counts_jump(
        self, first, last, steps, step_rows
    ):
        counts = counts_of(
            schedule("linear", (0, first), (steps, last)), step_rows=step_rows
        )
        rows = steps * step_rows + 5
        want = walked(lines(counted(first), counted(last), steps * step_rows), rows)
        assert [counts.draws_before(n) for n in range(rows + 1)] == want

    def test_at_a_tie_the_first_source_comes_first(self):
        counts = counts_of(constant({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}))
        in_turn = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1), (2, 1, 1)]
        assert [counts.draws_before(n) for n in range(5)] == in_turn
        late = 3 * 10**12
        assert counts.draws_before(late + 2) == (10**12 + 1, 10**12 + 1, 10**12)

    @pytest.mark.parametrize(
        ("interpolation", "want"),
        [
            ("step", [(200, 300, 500), (200000000000, 300000000000, 500000000000)]),
            ("linear", [(200, 300, 500), (300044417195, 300000000000, 399955582805)]),
            # 299200616056.5423948 and 400799383943.4576163 by decimals of 60 digits
            ("cosine", [(200, 300, 500), (299200616057, 300000000000, 400799383943)]),
        ],
    )
    def test_golden_counts(self, interpolation, want):
        scheduler = schedule(
            interpolation, (0, [0.2, 0.3, 0.5]), (1 << 40, [0.42, 0.3, 0.28])
        )
        counts = counts_of(scheduler)
        assert [counts.draws_before(n) for n in (1000, 10**12)] == want

    def test_a_position_before_the_first_is_refused(self):
        with pytest.raises(ConfigError, match="position -1; expected 0 or more"):
            counts_of(constant({"a": 1.0})).draws_before(-1)


class TestLaws:
    @given(
        schedules(),
        st.integers(1, 7) | st.just(1 << 45),
        st.integers(0, 1500) | st.integers(0, 1 << 60),
    )
    def test_counts_sum_to_the_position_and_never_fall(
        self, scheduler, step_rows, position
    ):
        counts = counts_of(scheduler, step_rows=step_rows)
        before, after = counts.draws_before(position), counts.draws_before(position + 1)
        assert sum(before) == position
        assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0] * (
            len(before) - 1
        ) + [1]

    @given(schedules(), st.integers(1, 7), st.integers(0, 1 << 50))
    def test_counts_are_within_the_bound_of_the_exact_shares(
        self, scheduler, step_rows, position
    ):
        counts = counts_of(scheduler, step_rows=step_rows)
        got, asked = counts.draws_before(position), counts.shares(position)
        reach = len(got) // 2 + 1
        early, late = (
            counts.shares(max(0, position - reach)),
            counts.shares(position + reach),
        )
        assert sum(asked) == position
        for count, share, low, high in zip(got, asked, early, late, strict=True):
            # The mean of the weight over any stretch that near is at most its growth
            # over the whole of it.
            weight = min(Fraction(1), high - low)
            assert abs(count - share) <= HALF + weight * max(
                0, len(got) - 2
            ) / 2 + Fraction(1, 1 << 30)

    def test_the_ceiling_is_what_a_source_ever_gives(self):
        counts = counts_of(schedule("linear", (0, [0.5, 0.5]), (40, [0.0, 1.0])))
        assert counts.ceiling(0) == counts.draws_before(10**15)[0] == 10


@st.composite
def extensions(draw: st.DrawFn) -> tuple[WeightScheduler, int]:
    old = draw(schedules())
    at = draw(st.integers(0, 250))
    sources = len(old.names)
    steps = draw(
        st.lists(
            st.integers(at + 1, at + 200), min_size=1, max_size=3, unique=True
        ).map(sorted)
    )
    new = [
        {
            "step": step,
            "weights": dict(zip(old.names, draw(shares(sources)), strict=True)),
        }
        for step in steps
    ]
    return old.extend(at=at, points=new), at


@st.composite
def changed_often(
    draw: st.DrawFn,
) -> tuple[WeightScheduler, list[tuple[int, list[float]]]]:
    """A schedule of constant weights that was changed, and (step, weights) that hold
    from each step on.
    """
    sources = draw(st.integers(1, 5))
    held = [(0, draw(shares(sources)))]
    scheduler = constant(named(held[0][1]))
    step = 0
    for _ in range(draw(st.integers(0, 6))):
        step += draw(st.integers(0, 60))
        weights = draw(shares(sources))
        scheduler = scheduler.reweighted(at=step, weights=named(weights))
        held.append((step, weights))
    return scheduler, held


class TestExtending:
    @given(
        extensions(),
        st.integers(1, 5),
        st.integers(1, 40),
        st.integers(1, 4),
        st.data(),
    )
    def test_every_count_before_the_pin_stays(
        self, extension, step_rows, block_size, batch_rows, data
    ):
        new, at = extension
        sizes = {
            "step_rows": step_rows,
            "block_size": block_size,
            "batch_rows": batch_rows,
        }
        assert new.before is not None
        before, after = counts_of(new.before, **sizes), counts_of(new, **sizes)
        # The one that holds the last row before the pin ends here.
        block = -(-at * step_rows // block_size)
        position = data.draw(st.integers(0, block * block_size))
        assert after.draws_before(position) == before.draws_before(position)

    @given(extensions(), st.integers(1, 5), st.integers(1, 40), st.integers(0, 3000))
    def test_counts_go_on_to_grow_one_by_one(
        self, extension, step_rows, block_size, position
    ):
        counts = counts_of(extension[0], step_rows=step_rows, block_size=block_size)
        before, after = counts.draws_before(position), counts.draws_before(position + 1)
        assert sum(before) == position
        assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0] * (
            len(before) - 1
        ) + [1]

    @pytest.mark.parametrize("interpolation", ["step", "linear", "cosine"])
    def test_the_new_weights_hold_onward_and_nothing_is_made_up_for(
        self, interpolation
    ):
        """The block that holds the change is dealt by the old weights, all further
        ones by the new weights.
        """
        old = schedule(interpolation, (0, [0.9, 0.1]))
        new = old.extend(at=501, points=[{"step": 502, "weights": named([0.1, 0.9])}])
        counts = counts_of(new, block_size=1000)
        assert counts.draws_before(1000) == (900, 100)
        assert counts.draws_before(1100) == (910, 190)
        assert counts.draws_before(11000) == (1900, 9100)
        for position in (10**4, 10**12):
            asked = counts.shares(position)
            assert all(
                abs(a - b) <= HALF
                for a, b in zip(counts.draws_before(position), asked, strict=True)
            )

    def test_the_ceiling_counts_what_was_given_before_the_extension_took_effect(self):
        points = [{"step": 502, "weights": named([0.0, 1.0])}]
        counts = counts_of(
            schedule("step", (0, [0.9, 0.1])).extend(at=501, points=points),
            block_size=1000,
        )
        assert counts.ceiling(0) == counts.draws_before(10**9)[0] == 900

    @given(changed_often(), st.integers(1, 5), st.data())
    @settings(max_examples=60)
    def test_after_any_changes_counts_keep_to_the_weights_that_held(
        self, changes, batch_rows, data
    ):
        """After changes at any steps, to 0 and from 0: each share to a few rows,
        which never add up.
        """
        scheduler, held = changes
        counts = counts_of(scheduler, batch_rows=batch_rows)
        ends = [-(-step // batch_rows) * batch_rows for step, _ in held[1:]]
        position = (
            ends[-1] + data.draw(st.integers(0, 400))
            if ends
            else data.draw(st.integers(0, 400))
        )
        want = [Fraction(0)] * len(scheduler.names)
        starts = [0, *ends]
        for (_, weights), start, end in zip(
            held, starts, [*ends, position], strict=True
        ):
            for at, weight in enumerate(counted(weights)):
                want[at] += weight * (end - start)
        got = counts.draws_before(position)
        asked_for = zip(counts.shares(position), want, strict=True)
        assert all(abs(a - b) < Fraction(1, 1 << 30) for a, b in asked_for)
        sources = len(want)
        # Of one source; the others together wait for as much.
        ahead = Fraction(sources + 1, 2)
        assert sum(got) == position
        for count, asked in zip(got, want, strict=True):
            assert -sources * ahead <= count - asked <= ahead

    @given(changed_often(), st.integers(1, 5))
    @settings(max_examples=60)
    def test_once_all_sources_are_counted_again_the_bound_holds_again(
        self, changes, batch_rows
    ):
        """Behind ``J (J + 1)`` rows of every source, however small its weight:
        nothing is starved for good.
        """
        scheduler, held = changes
        weights = held[-1][1]
        smallest = min(weight for weight in weights if weight)
        if len(weights) != sum(map(bool, weights)) or smallest < 1e-3:
            return
        sources = len(weights)
        counts = counts_of(scheduler, batch_rows=batch_rows)
        position = counts.start + int(sources * (sources + 1) / smallest) + 1
        got, asked = counts.draws_before(position), counts.shares(position)
        for count, share, weight in zip(got, asked, weights, strict=True):
            assert abs(count - share) <= HALF + Fraction(weight) * max(
                0, sources - 2
            ) / 2 + Fraction(1, 1 << 30)

    @given(changed_often(), st.integers(1, 5))
    @example(
        (
            constant(named([0.25] * 4)).reweighted(
                at=1, weights=named([0.0, 0.5, 0.25, 0.25])
            ),
            [(0, [0.25] * 4), (1, [0.0, 0.5, 0.25, 0.25])],
        ),
        1,
    )
    @settings(max_examples=30)
    def test_no_count_ever_falls(self, changes, batch_rows):
        """Also that of a source which was ahead of its weight where its weight fell
        to 0.
        """
        counts = counts_of(changes[0], batch_rows=batch_rows)
        before = counts.draws_before(0)
        for position in range(1, counts.start + 30):
            after = counts.draws_before(position)
            assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0] * (
                len(before) - 1
            ) + [1]
            before = after

    def test_a_change_at_every_batch_loses_no_share(self):
        """A source of 1 in 100 rows in batches of 4: rounding anew at each change
        would never give it a row.
        """
        scheduler = constant(named([0.5, 0.49, 0.01]))
        for step in range(1, 1200):
            first = 0.5 + 0.1 * (step % 2)
            scheduler = scheduler.reweighted(
                at=step, weights=named([first, 0.99 - first, 0.01])
            )
        counts = counts_of(scheduler, step_rows=4, batch_rows=4)
        drawn = counts.draws_before(4800)
        assert drawn == (2640, 2112, 48)

    def test_an_extension_can_be_extended_before_it_ever_took_effect(self):
        old = schedule("linear", (0, [0.5, 0.5]), (100, [0.9, 0.1]))
        twice = old.extend(
            at=80, points=[{"step": 90, "weights": named([0.0, 1.0])}]
        ).extend(at=20, points=[{"step": 30, "weights": named([0.2, 0.8])}])
        once = old.extend(at=20, points=[{"step": 30, "weights": named([0.2, 0.8])}])
        first, second = (
            [counts_of(each).draws_before(n) for n in range(200)]
            for each in (twice, once)
        )
        assert first == second
        assert [twice.get_weights(n) for n in range(200)] == [
            once.get_weights(n) for n in range(200)
        ]

"""Weights over steps."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import promise
from tokenlake import WeightSchedulePoint, WeightScheduler
from tokenlake.config import MixStageConfig
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import SourceMixture, constant, row_weights

INTERPOLATIONS = ["step", "linear", "cosine"]

SEED = [
    WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
    WeightSchedulePoint(step=10000, weights={"code": 0.5, "text": 0.5}),
    WeightSchedulePoint(step=50000, weights={"code": 0.8, "text": 0.2}),
]


def points(*pairs: tuple[int, float]) -> list[dict]:
    return [
        {"step": step, "weights": {"a": weight, "b": 1 - weight}}
        for step, weight in pairs
    ]


def weight(scheduler: WeightScheduler, step: float) -> float:
    return scheduler.get_weights(step)["a"]


class TestWeights:
    @promise(54, 214)
    @pytest.mark.parametrize(
        ("step", "code", "text"),
        [
            (0, 0.2, 0.8),
            (5000, 0.35, 0.65),
            (10000, 0.5, 0.5),
            (30000, 0.65, 0.35),
            (50000, 0.8, 0.2),
        ],
    )
    def test_linear_is_what_the_documentation_prints(self, step, code, text):
        assert WeightScheduler(SEED, interpolation="linear").get_weights(step) == {
            "code": code,
            "text": text,
        }

    @promise(54, 215)
    def test_cosine_eases_in_and_out(self):
        scheduler = WeightScheduler(SEED, interpolation="cosine")
        assert scheduler.get_weights(2500)["code"] == pytest.approx(0.243934, abs=5e-7)
        assert scheduler.get_weights(5000)["code"] == pytest.approx(0.35, abs=1e-15)
        assert scheduler.get_weights(10000) == {"code": 0.5, "text": 0.5}

    @promise(54, 213)
    def test_step_holds_until_the_next_point(self):
        scheduler = WeightScheduler(SEED, interpolation="step")
        assert [
            scheduler.get_weights(step)["code"]
            for step in (0, 9999, 10000, 49999, 50000)
        ] == [*(0.2, 0.2, 0.5, 0.5, 0.8)]

    @pytest.mark.parametrize("interpolation", INTERPOLATIONS)
    def test_both_ends_hold_on(self, interpolation):
        scheduler = WeightScheduler(points((10, 0.25), (20, 0.75)), interpolation)
        assert [weight(scheduler, step) for step in (-5, 0, 9, 10)] == [0.25] * 4
        assert [weight(scheduler, step) for step in (20, 21, 10**15)] == [0.75] * 3

    def test_names_keep_the_order_of_the_first_point(self):
        turned = [points((0, 0.25))[0], {"step": 5, "weights": {"b": 0.5, "a": 0.5}}]
        scheduler = WeightScheduler(
            [{"step": 0, "weights": {"b": 0.75, "a": 0.25}}, *turned[1:]]
        )
        assert scheduler.names == ("b", "a")
        assert list(scheduler.get_weights(7)) == ["b", "a"]

    @promise(212)
    def test_points_may_be_objects_or_mappings(self):
        objects = [SimpleNamespace(step=0, weights={"a": 1.0})]
        assert WeightScheduler(objects) == WeightScheduler(
            [{"step": 0, "weights": {"a": 1.0}}]
        )

    def test_weights_that_are_a_little_off_one_are_divided_by_their_sum(self):
        scheduler = constant({"a": 0.5, "b": 0.4999999})
        assert sum(scheduler.pieces[0].first.weights) == 1
        assert scheduler.get_weights(3) == {"a": 0.5, "b": 0.4999999}

    @pytest.mark.parametrize(
        ("weights", "shares"),
        [
            ([30, 70], [0.3, 0.7]),
            ([1, 1], [0.5, 0.5]),
            ([3, 1], [0.75, 0.25]),
            ([2.0, 0.0], [1.0, 0.0]),
            ([np.int64(1), np.float32(3)], [0.25, 0.75]),
            ([12.5, 87.5], [0.125, 0.875]),
            ([33.3, 66.6], [1 / 3, 2 / 3]),
            ([0.5001, 0.5], [0.5001 / 1.0001, 0.5 / 1.0001]),
            ([0.333, 0.666], [1 / 3, 2 / 3]),
        ],
    )
    def test_percentages_ratios_and_rounded_shares_are_read_as_shares(
        self, weights, shares
    ):
        """By one rule wherever weights are given."""
        given = {"a": weights[0], "b": weights[1]}
        read = [
            constant(given).get_weights(0),
            constant({"a": 1.0, "b": 0.0})
            .reweighted(at=3, weights=given)
            .get_weights(3),
            row_weights(given, {"a": 7.0, "b": 7.0}),
        ]
        if not any(isinstance(weight, np.number) for weight in weights):
            read.append(MixStageConfig(weights=given).weights)
            read.append(
                MixStageConfig(weight_schedule=[{"step": 0, "weights": given}])
                .weight_schedule[0]
                .weights
            )
        for found in read:
            assert list(found.values()) == pytest.approx(shares, abs=1e-9)
            assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)

    @pytest.mark.parametrize(
        "weights", [[0.5, 0.4], [0.5, 0.502], [1, 0.5], [50, 60.5], [0, 0], [99.5, 0.0]]
    )
    def test_weights_that_could_mean_anything_are_refused_everywhere(self, weights):
        given = {"a": weights[0], "b": weights[1]}
        with pytest.raises(
            ConfigError,
            match=r"Weights must sum to 1\.0, got .* ratios of whole numbers",
        ):
            constant(given)
        with pytest.raises(
            ValueError,
            match=r"Weights must sum to 1\.0, got .* ratios of whole numbers",
        ):
            MixStageConfig(weights=given)

    @given(
        st.lists(st.floats(1e-3, 1), min_size=1, max_size=9),
        st.sampled_from(INTERPOLATIONS),
        st.integers(0, 99),
    )
    def test_weights_sum_to_one_at_every_step(self, raw, interpolation, step):
        first = {str(at): one / sum(raw) for at, one in enumerate(raw)}
        last = dict(zip(first, reversed(first.values()), strict=True))
        pair = [{"step": 3, "weights": first}, {"step": 90, "weights": last}]
        scheduler = WeightScheduler(pair, interpolation)
        assert sum(scheduler.get_weights(step).values()) == pytest.approx(
            1.0, abs=1e-12
        )


class TestMistakes:
    @pytest.mark.parametrize(
        ("schedule", "message"),
        [
            ([], "expected a list of at least one point"),
            (
                [{"step": 0, "weights": {"a": 0.5}}],
                r"Weights must sum to 1.0, got 0.5 at step 0",
            ),
            (
                [{"step": 0, "weights": {"a": 1.5, "b": -0.5}}],
                "the weight of 'b' is -0.5 at step 0",
            ),
            ([{"step": 0, "weights": {"a": float("nan")}}], "the weight of 'a' is nan"),
            ([{"step": 0, "weights": {"a": True}}], "the weight of 'a' is True"),
            ([{"step": 0, "weights": {"a": "much"}}], "the weight of 'a' is 'much'"),
            ([{"step": 0, "weights": {}}], "there are no weights at step 0"),
            ([{"step": 0, "weights": [1.0]}], "expected a mapping, name to weight"),
            ([{"step": 0}], "without 'weights'"),
            (
                [{"step": -1, "weights": {"a": 1.0}}],
                "is at step -1; expected a whole number, 0 or more",
            ),
            (
                [{"step": 0.5, "weights": {"a": 1.0}}],
                "is at step 0.5; expected a whole number",
            ),
            (
                points((5, 0.5), (5, 0.6)),
                "step 5 of the schedule comes after step 5; steps must increase",
            ),
            (
                [*points((0, 0.5)), {"step": 1, "weights": {"a": 0.5, "c": 0.5}}],
                r"step 1 of the schedule weighs \['a', 'c'\], the points before it weigh \['a', 'b'\]",
            ),
        ],
    )
    def test_a_schedule_that_cannot_be_says_why(self, schedule, message):
        with pytest.raises(ConfigError, match=message):
            WeightScheduler(schedule)

    def test_an_unknown_interpolation_names_the_nearest(self):
        with pytest.raises(
            ConfigError,
            match=r"'liner', expected one of 'step', 'linear', 'cosine'; did you mean 'linear'\?",
        ):
            WeightScheduler(SEED, interpolation="liner")

    def test_new_points_must_lie_behind_what_is_fixed(self):
        scheduler = WeightScheduler(points((0, 0.5)))
        with pytest.raises(
            ConfigError,
            match="step 10 cannot be added to a schedule that is fixed up to step 10",
        ):
            scheduler.extend(at=10, points=points((10, 0.5)))
        with pytest.raises(ConfigError, match="cannot extend the schedule at step -1"):
            scheduler.extend(at=-1, points=points((10, 0.5)))
        with pytest.raises(ConfigError, match="the points before it weigh"):
            scheduler.extend(at=1, points=[{"step": 10, "weights": {"a": 1.0}}])
        with pytest.raises(ConfigError, match="at least one point"):
            scheduler.extend(at=1, points=[])


class TestExtending:
    @pytest.mark.parametrize("interpolation", INTERPOLATIONS)
    @pytest.mark.parametrize("at", [0, 4, 10, 15, 17, 20, 33])
    def test_what_comes_before_stays_and_the_weights_there_are_pinned(
        self, interpolation, at
    ):
        old = WeightScheduler(points((10, 0.25), (20, 0.75)), interpolation)
        new = old.extend(at=at, points=points((at + 7, 0.1)))
        assert [new.get_weights(step) for step in range(at + 1)] == [
            old.get_weights(step) for step in range(at + 1)
        ]
        assert weight(new, at + 7) == 0.1
        middle = (weight(old, at) + 0.1) / 2
        assert weight(new, at + 3.5) == pytest.approx(
            weight(old, at) if interpolation == "step" else middle
        )

    def test_other_weights_hold_from_their_step_on(self):
        old = WeightScheduler(points((10, 0.25), (20, 0.75)), "linear")
        new = old.reweighted(at=15, weights={"a": 0.9, "b": 0.1})
        assert [weight(new, step) for step in (9, 14, 15, 40)] == [
            0.25,
            weight(old, 14),
            0.9,
            0.9,
        ]
        assert new.before is old and [each.at for each in new.versions()] == [0, 15]
        with pytest.raises(ConfigError, match="cannot extend the schedule at step -1"):
            old.reweighted(at=-1, weights={"a": 0.9, "b": 0.1})


class TestJson:
    @pytest.mark.parametrize("interpolation", INTERPOLATIONS)
    def test_a_schedule_survives_being_stored_with_its_keys_sorted(self, interpolation):
        first = {"step": 0, "weights": {"z": 0.1, "m": 0.7, "a": 0.2}}
        scheduler = WeightScheduler(
            [first, {"step": 50, "weights": {"a": 0.5, "m": 0.0, "z": 0.5}}],
            interpolation,
        )
        longer = scheduler.extend(
            at=20, points=[{"step": 30, "weights": {"a": 1.0, "m": 0.0, "z": 0.0}}]
        )
        longest = longer.extend(
            at=25, points=[{"step": 31, "weights": {"a": 0.0, "m": 0.0, "z": 1.0}}]
        )
        for one in (scheduler, longer, longest):
            again = WeightScheduler.from_json(
                json.loads(json.dumps(one.to_json(), sort_keys=True))
            )
            assert again == one and hash(again) == hash(one)
            assert again.names == ("z", "m", "a")
            assert [again.get_weights(step) for step in range(60)] == [
                one.get_weights(step) for step in range(60)
            ]
        assert len({scheduler, longer, longest}) == 3

    @pytest.mark.parametrize(
        "data", [{}, {"points": []}, {"points": [{}], "names": ["a"]}, {"points": 3}]
    )
    def test_something_else_is_refused(self, data):
        with pytest.raises(ConfigError, match="this is not a weight schedule"):
            WeightScheduler.from_json(data)


class TestWeightsPerToken:
    def test_a_source_with_long_rows_needs_fewer_of_them(self):
        per_row = row_weights(
            {"long": 0.5, "short": 0.5}, {"long": 3000, "short": 1000, "other": 1}
        )
        assert per_row == {"long": 0.25, "short": 0.75}

    @given(
        st.lists(
            st.tuples(st.floats(1e-4, 1), st.floats(0.1, 1e6)), min_size=1, max_size=8
        )
    )
    def test_drawing_by_row_gives_the_shares_of_tokens(self, sources):
        total = sum(share for share, _ in sources)
        shares = {str(at): share / total for at, (share, _) in enumerate(sources)}
        means = {str(at): mean for at, (_, mean) in enumerate(sources)}
        tokens = {
            name: each * means[name]
            for name, each in row_weights(shares, means).items()
        }
        assert {
            name: count / sum(tokens.values()) for name, count in tokens.items()
        } == pytest.approx(shares)

    @pytest.mark.parametrize("means", [{}, {"a": 0}, {"a": float("inf")}, {"a": -1}])
    def test_a_source_without_tokens_has_no_weight_per_token(self, means):
        with pytest.raises(
            ConfigError,
            match=r"source 'a' has .* tokens per row; expected a mean above 0",
        ):
            row_weights({"a": 1.0}, means)


@given(
    shares=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    sizes=st.lists(st.integers(8, 60), min_size=4, max_size=4),
    change=st.integers(1, 12),
    lanes=st.sampled_from([1, 2, 4]),
    block_size=st.integers(1, 40),
)
@settings(max_examples=100, deadline=None)
def test_a_source_of_weight_0_moves_no_row(
    shares: list[int], sizes: list[int], change: int, lanes: int, block_size: int
) -> None:
    """Up to the step at which a further source begins, the order is that of the
    mixture without it.
    """
    names = [f"source{number}" for number in range(len(shares))]
    schedule = constant(dict(zip(names, shares, strict=True)))
    rows = dict(zip(names, sizes, strict=False))
    options: dict[str, Any] = {
        "lanes": lanes,
        "batch_size": 4,
        "step_rows": 4,
        "block_size": block_size,
    }
    mixture = SourceMixture(rows, schedule, seed=3, **options)
    further = schedule.with_sources(["new"])
    assert further.names == (*names, "new") and further.get_weights(change)["new"] == 0
    grown_schedule = further.reweighted(
        at=change, weights={**dict.fromkeys(names, 1), "new": 1}
    )
    grown = SourceMixture({**rows, "new": 30}, grown_schedule, seed=3, **options)

    for position in range(4 * change):
        assert mixture.at(position) == grown.at(position)


def test_sources_are_added_to_every_change_of_a_schedule() -> None:
    first = constant({"code": 0.25, "web": 0.75})
    changed = first.reweighted(at=5, weights={"code": 0.5, "web": 0.5})
    grown = changed.with_sources(["math"])
    assert grown == first.with_sources(["math"]).reweighted(
        at=5, weights={"code": 0.5, "web": 0.5, "math": 0}
    )
    assert changed.with_sources([]) is changed

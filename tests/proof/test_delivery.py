"""What steps delivered, by counting, is what they delivered step by step."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.loader.support import plain
from tests.proof.support import (
    MIXED_FORMS,
    MIXTURES,
    ORDERS,
    delivered,
    mixture_of,
    plan_of,
)
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import BatchPlan
from tokenlake.runtime.mixing import (
    MixtureStream,
    SourceMixture,
    constant,
    source_order,
)
from tokenlake.runtime.proof import Delivery, deliveries_of, steps_of_rows

Steps = tuple[int, int]
steps = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(
    lambda pair: (min(pair), max(pair))
)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BatchPlan]:
    ds, learned = plain(tmp_path_factory), plain(tmp_path_factory, "learned")
    texts = plain(tmp_path_factory, "texts")
    single = {name: plan_of(ds, **options) for name, options in ORDERS.items()}
    mixed = {
        name: plan_of(mixture_of(ds, learned, **options))
        for name, options in MIXTURES.items()
    }
    forms = {
        name: plan_of(mixture_of(ds, learned), **options)
        for name, options in MIXED_FORMS.items()
    }
    return single | mixed | forms | {"documents": plan_of(texts, epochs=2)}


@settings(max_examples=6)
@given(span=steps, seed=st.integers(0, 9))
@pytest.mark.parametrize("name", [*ORDERS, *MIXTURES, *MIXED_FORMS, "documents"])
def test_rows_their_weights_and_the_steps_of_some(
    plans: dict[str, BatchPlan], name: str, span: Steps, seed: int
) -> None:
    plan, dice = plans[name], np.random.default_rng(seed)
    found, true = deliveries_of(plan, *span), delivered(plan, *span)
    for number, (source, each) in enumerate(true.items()):
        mine = [delivery for delivery in found if delivery.source == number]
        many = len(plan.datasets[source])
        times = np.bincount(
            np.concatenate([np.zeros(0, np.int64), *each]), minlength=many
        )
        assert (
            sum(
                (delivery.times() for delivery in mine), np.zeros(many, np.int64)
            ).tolist()
            == times.tolist()
        )
        weights = dice.integers(0, 9, many)
        sums = np.append(0, np.cumsum(weights))
        assert sum(delivery.total(sums) for delivery in mine) == int(
            (times * weights).sum()
        )
        rows = dice.choice(many, 2, replace=False)
        edges = [
            steps_of_rows(plan, delivery, *plan.sources[number].group_of(rows))
            for delivery in mine
        ]
        there = [
            span[0] + step
            for step, some in enumerate(each)
            if np.isin(rows, some).any()
        ]
        ends = [edge for edge in edges if edge is not None]
        assert there[:1] == [min(first for first, _ in ends)] if ends else there == []
        assert there[-1:] == [max(last for _, last in ends)] if ends else there == []


def test_a_million_steps_take_no_longer_than_a_few() -> None:
    """27 million rows in 100,000 row groups, ten epochs of them: counted, and found,
    in closed form.
    """
    groups = {
        "code": np.full(10_000, 256, np.int64),
        "web": np.full(90_000, 256, np.int64),
    }
    order = SourceMixture(
        {name: int(rows.sum()) for name, rows in groups.items()},
        constant({"code": 0.3, "web": 0.7}),
        lanes=64,
        batch_size=256,
        step_rows=256,
    )
    orders = [
        source_order(name, rows, lanes=64, seed=0) for name, rows in groups.items()
    ]
    weights = [np.arange(int(rows.sum()) + 1) for rows in groups.values()]

    def cost(steps: int, found: int) -> float:
        begin = time.process_time()
        drawn = MixtureStream(order, orders).drawn((steps - 1) * 256, 256, 256)
        assert drawn.sum() == 256 * steps
        taken = [
            Delivery(number, orders[number], 0, 0, 0 * each, each)
            for number, each in enumerate(drawn)
        ]
        for delivery, sums in zip(taken, weights, strict=True):
            assert delivery.total(sums) == delivery.rows
        assert taken[0].seen(np.array([7, 9_999]), np.array([0, 255])).shape[1] == found
        return time.process_time() - begin

    few, many = (
        min(cost(*some) for _ in range(2))
        for some in ((10_000, 0), (1_000_000, 2 * 30))
    )
    assert many < 10 * few + 0.1  # a walk over the steps takes a hundred times as long


def test_what_cannot_be_counted_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    texts: tl.Dataset = plain(tmp_path_factory, "texts")
    with pytest.raises(
        ConfigError,
        match="expected a first step from 0 on, and an end that is not before it",
    ):
        deliveries_of(plan_of(texts), 5, 4)
    with pytest.raises(ConfigError, match="pad to `multiple` or `length` instead"):
        deliveries_of(plan_of(texts, padding={"buckets": 2}), 0, 4)

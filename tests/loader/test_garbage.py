"""Values of any type at the doors of the loader: they are taken, or refused by an
error that is meant for people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tokenlake import BatchPadding
from tokenlake.easydel import ResumeState
from tokenlake.errors import TokenlakeError
from tokenlake.runtime.loader import LoaderOptions, restored

VALUES: list[Any] = [
    *(
        None,
        True,
        np.bool_(True),
        1.5,
        float("nan"),
        float("inf"),
        np.float64(2.0),
        "x",
        "8",
        b"8",
    ),
    *(
        10**40,
        -1,
        0,
        np.int64(-5),
        [],
        [1, 2],
        {},
        {"a": 1},
        (1,),
        (0, 10**40),
        ("a", "b"),
    ),
    *(np.array([1, 2]), object(), len, {0: 10**40}, {-1: 4}, {0: True}),
]


def refused_or_taken(call: Callable[[Any], object]) -> None:
    """Any error that is not on purpose ends the test."""
    for value in VALUES:
        try:
            call(value)
        except TokenlakeError as error:
            assert str(error)


@pytest.mark.parametrize("name", LoaderOptions.__dataclass_fields__)
def test_options_of_a_loader(learned: tl.Dataset, name: str) -> None:
    refused_or_taken(
        lambda value: tl.DataLoader(learned, **{"batch_size": 8, name: value})
    )


@pytest.mark.parametrize("name", BatchPadding.__dataclass_fields__)
def test_options_of_padding(texts: tl.Dataset, name: str) -> None:
    refused_or_taken(lambda value: tl.DataLoader(texts, 8, padding={name: value}))


MIXTURE = [
    *(
        "weights",
        "stop",
        "rows",
        "block_size",
        "step_rows",
        "weights_by",
        "order",
        "max_repetitions",
    ),
    *("max_fraction", "epochs", "target_budget", "experiment_budget"),
]


@pytest.mark.parametrize("name", MIXTURE)
def test_options_of_a_mixture(sources: dict[str, tl.Dataset], name: str) -> None:
    usual: dict[str, Any] = (
        {} if name == "epochs" else {"weights": {"code": 0.5, "web": 0.5}}
    )
    refused_or_taken(
        lambda value: tl.DataLoader(tl.Mixture(sources, **{**usual, name: value}), 8)
    )


def test_what_a_loader_is_told_later(sources: dict[str, tl.Dataset]) -> None:
    loader = tl.DataLoader(
        tl.Mixture(sources, {"code": 0.5, "web": 0.5}), 8, epochs=None
    )
    refused_or_taken(loader.set_weights)
    refused_or_taken(lambda value: loader.set_weights({"code": value, "web": 1}))
    refused_or_taken(lambda value: loader.set_weights({"code": 1, "web": 1}, at=value))
    refused_or_taken(loader.set_state)
    refused_or_taken(loader.iter_from_step)


def test_values_in_a_state(sources: dict[str, tl.Dataset]) -> None:
    loader = tl.DataLoader(
        tl.Mixture(sources, {"code": 0.5, "web": 0.5}), 8, epochs=None
    )
    state = loader.get_state()
    mixture = state["mixture"]
    schedule = mixture["schedule"]

    def changes(value: Any) -> list[dict[str, Any]]:
        changed = [{**state, key: value} for key in state]
        changed += [{**state, "mixture": {**mixture, key: value}} for key in mixture]
        other = [{**schedule, key: value} for key in schedule]
        return changed + [
            {**state, "mixture": {**mixture, "schedule": each}} for each in other
        ]

    def opened(version: str, split: str) -> tl.Dataset:
        return sources[version.partition("-")[0]]

    for number in range(len(changes(None))):
        refused_or_taken(
            lambda value, number=number: loader.set_state(changes(value)[number])
        )
        refused_or_taken(
            lambda value, number=number: restored(changes(value)[number], opened)
        )


def test_points_of_a_schedule() -> None:
    point = {"step": 0, "weights": {"a": 1}}
    scheduler = tl.WeightScheduler([point])
    refused_or_taken(tl.WeightScheduler)
    refused_or_taken(lambda value: tl.WeightScheduler([{**point, "step": value}]))
    refused_or_taken(lambda value: tl.WeightScheduler([{**point, "weights": value}]))
    refused_or_taken(lambda value: tl.WeightScheduler([point], value))
    refused_or_taken(
        lambda value: scheduler.extend(at=value, points=[{**point, "step": 9}])
    )
    refused_or_taken(lambda value: scheduler.extend(at=1, points=value))
    refused_or_taken(lambda value: scheduler.reweighted(at=1, weights=value))


def test_states_of_rows() -> None:
    loader = tl.AsyncDataLoader([{"id": 1}], 1)
    refused_or_taken(loader.load_state_dict)
    refused_or_taken(ResumeState.from_dict)
    for name in ("shard_index", "row_index", "epoch", "step"):
        refused_or_taken(lambda value, name=name: ResumeState.from_dict({name: value}))

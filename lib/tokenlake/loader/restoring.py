"""From a state alone to the plan of the loader that gave it: what was read, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from tokenlake.errors import ConfigError
from tokenlake.loader.batchplan import BatchPlan
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.state import place_of
from tokenlake.loader.steps import BatchSizes, Place
from tokenlake.mixing import WeightScheduler

Opener = Callable[[str, str], Dataset]
"""``("code@v3", "train")`` -> the dataset."""


def restored(state: Any, open_dataset: Opener) -> tuple[BatchPlan, Place]:
    """Return the plan and the place of a state.

    Args:
        state: what ``get_state()`` of a loader returned.
        open_dataset: opens a split of a version by their names.

    Raises:
        ConfigError: it is no state, or a dataset is not the one that it was; says what differs.
        NotFoundError: there is no such version any more.
    """
    try:
        sources = {name: _split(each["dataset"]) for name, each in state["sources"].items()}
        order = {name: state[name] for name in ("seed", "shuffle", "epochs", "drop_last")}
        sizes, lanes, window = BatchSizes.from_json(state["batch_size"]), state["lanes"], state["window"]
        mixture = state["mixture"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"this is no state of a loader ({error!r}); expected the JSON of what get_state() returned"
        ) from error
    datasets = {name: open_dataset(*where) for name, where in sources.items()}
    if mixture is not None:
        plan = BatchPlan(_mixture(datasets, mixture, state.get("order")), sizes, lanes=lanes, **order)
    else:
        # Rows in the order in which they are stored have neither lanes nor windows.
        cut = {"lanes": lanes, "window": window} if order["shuffle"] else {}
        plan = BatchPlan(next(iter(datasets.values())), sizes, **cut, **order)
    return plan, place_of(plan, cast("Mapping[str, Any]", state))


def _mixture(datasets: Mapping[str, Dataset], data: Mapping[str, Any], order: Any) -> Mixture:
    # Weights by tokens were worked out into weights of rows before they came into the state.
    return Mixture(
        datasets,
        WeightScheduler.from_json(data["schedule"]),
        stop=data["stop"],
        rows=data.get("rows"),
        block_size=data["block_size"],
        step_rows=data["step_rows"],
        order=order,
    )


def _split(name: str) -> tuple[str, str]:
    """``code@v3/train`` -> ``code@v3``, ``train``."""
    version, slash, split = name.rpartition("/")
    if not slash:
        raise ValueError(f"{name!r} names no split of a version")
    return version, split

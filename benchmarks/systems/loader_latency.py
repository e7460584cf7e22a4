"""Waiting times of a loader in a fresh process: ``states|open|first|resume|train`` and
arguments.

Imports are done before the clock starts. The program prints one JSON line, of wall
seconds or of states.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import tokenlake as tl
from benchmarks.systems.loader_sink import BATCH


def open_loader(store: str, name: str) -> Any:
    """Open a dataset, and return a loader of all four columns."""
    return tl.DataLoader(tl.open(store, name), BATCH, seed=0)


def states(store: str, name: str, *steps: str) -> dict[str, Any]:
    """Return step -> state that a checkpoint would have at this step."""
    state_of_step: dict[str, Any] = {}
    with open_loader(store, name) as loader:
        for step in steps:
            # A loader that starts at a step has the state of a run that stopped there.
            loader.iter_from_step(int(step))
            state_of_step[step] = loader.get_state()
            loader.close()
    return state_of_step


def open_dataset(store: str, name: str) -> dict[str, float]:
    """Return the seconds of opening a dataset.

    The first row is read afterwards, to show that the dataset is open.
    """
    start = time.perf_counter()
    dataset = tl.open(store, name)
    seconds = time.perf_counter() - start
    assert len(dataset[0]["input_ids"])
    return {"seconds": seconds, "groups": 1}


def _wait_for_batch(
    batches: Iterator[Any], loader: Any, start: float
) -> dict[str, float]:
    """Return the seconds to the next batch, and the row groups decoded by then.

    Args:
        batches: Batches of the loader.
        loader: Loader of the batches.
        start: Time at which the clock started.
    """
    next(batches)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "groups": loader.decoded.groups}


def first(store: str, name: str) -> dict[str, float]:
    """Return the seconds from an open dataset to the first batch."""
    dataset = tl.open(store, name)
    start = time.perf_counter()
    with tl.DataLoader(dataset, BATCH, seed=0) as loader:
        # This function holds the iterator until the loader is closed, which then waits
        # for its threads.
        batches = iter(loader)
        return _wait_for_batch(batches, loader, start)


def resume(store: str, name: str, path: str, step: str) -> dict[str, float]:
    """Return the seconds from a state to the next batch.

    Args:
        store: Store of the dataset.
        name: Name of the dataset.
        path: File that :func:`states` wrote.
        step: Step to resume at.
    """
    state = json.loads(Path(path).read_bytes())[step]
    with open_loader(store, name) as loader:
        start = time.perf_counter()
        loader.set_state(state)
        # This function holds the iterator until the loader is closed, which then waits
        # for its threads.
        batches = iter(loader)
        return _wait_for_batch(batches, loader, start)


def train(store: str, name: str, step_seconds: str) -> dict[str, float]:
    """Train for one epoch, with a pause for each step.

    Args:
        store: Store of the dataset.
        name: Name of the dataset.
        step_seconds: Seconds of a step.

    Returns:
        Seconds to the `first` batch, `seconds` of the epoch after it, `waited` seconds
        of these, and the number of `batches`.
    """
    start = time.perf_counter()
    with tl.DataLoader(tl.open(f"{store}/{name}"), BATCH, seed=0, epochs=1) as loader:
        batches = iter(loader)
        next(batches)
        # The wait for the first batch is start-up, and counts apart.
        first_time = time.perf_counter()
        metrics_at_first = loader.metrics()
        for _ in batches:
            time.sleep(float(step_seconds))
        metrics_at_end = loader.metrics()
        end_time = time.perf_counter()
    return {
        "first": first_time - start,
        "seconds": end_time - first_time,
        "waited": metrics_at_end.wait_seconds - metrics_at_first.wait_seconds,
        "batches": metrics_at_end.batches,
    }


_ACTIONS: Final[dict[str, Callable[..., Any]]] = {
    "states": states,
    "open": open_dataset,
    "first": first,
    "resume": resume,
    "train": train,
}


def main(action: str, *arguments: str) -> None:
    """Run an action, and print its result.

    Args:
        action: Name of the action.
        arguments: Arguments of the action.
    """
    print(json.dumps(_ACTIONS[action](*arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])

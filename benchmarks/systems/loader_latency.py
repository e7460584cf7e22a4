"""One moment of a loader in a fresh process, imports done:
``states|open|first|resume|train`` and its arguments.

Prints one JSON line: seconds by the clock on the wall, or the states.
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


def loader_of(store: str, name: str) -> Any:
    """Return a loader of all four columns, opened just now."""
    return tl.DataLoader(tl.open(store, name), BATCH, seed=0)


def states(store: str, name: str, *steps: str) -> dict[str, Any]:
    """Return what a checkpoint would hold at each step."""
    found: dict[str, Any] = {}
    with loader_of(store, name) as loader:
        for step in steps:
            loader.iter_from_step(int(step))
            found[step] = loader.get_state()
            loader.close()
    return found


def opened(store: str, name: str) -> dict[str, float]:
    """Return the seconds that opening takes; the first row is read, to show that it
    is open.
    """
    began = time.perf_counter()
    dataset = tl.open(store, name)
    seconds = time.perf_counter() - began
    assert len(dataset[0]["input_ids"])
    return {"seconds": seconds, "groups": 1}


def _waited(batches: Iterator[Any], loader: Any, began: float) -> dict[str, float]:
    """Return the seconds until the next batch is there, and the row groups that were
    decoded by then.
    """
    next(batches)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "groups": loader.decoded.groups}


def first(store: str, name: str) -> dict[str, float]:
    """Return the seconds from an open dataset to the first batch."""
    dataset = tl.open(store, name)
    began = time.perf_counter()
    with tl.DataLoader(dataset, BATCH, seed=0) as loader:
        # Held on to until the loader is closed, which then waits for its threads.
        batches = iter(loader)
        return _waited(batches, loader, began)


def resume(store: str, name: str, path: str, step: str) -> dict[str, float]:
    """Return the seconds from a state to the batch that comes next."""
    state = json.loads(Path(path).read_bytes())[step]
    with loader_of(store, name) as loader:
        began = time.perf_counter()
        loader.set_state(state)
        # Held on to until the loader is closed, which then waits for its threads.
        batches = iter(loader)
        return _waited(batches, loader, began)


def train(store: str, name: str, step_seconds: str) -> dict[str, float]:
    """Return how long an epoch takes behind its first batch, with a pause for each
    step, and how much was waited.
    """
    began = time.perf_counter()
    with tl.DataLoader(tl.open(f"{store}/{name}"), BATCH, seed=0, epochs=1) as loader:
        batches = iter(loader)
        next(batches)
        first, before = time.perf_counter(), loader.metrics()
        for _ in batches:
            time.sleep(float(step_seconds))
        after, seconds = loader.metrics(), time.perf_counter() - first
    waited = after.wait_seconds - before.wait_seconds
    return {
        "first": first - began,
        "seconds": seconds,
        "waited": waited,
        "batches": after.batches,
    }


_ACTIONS: Final[dict[str, Callable[..., Any]]] = {
    "states": states,
    "open": opened,
    "first": first,
    "resume": resume,
    "train": train,
}

if __name__ == "__main__":
    print(json.dumps(_ACTIONS[sys.argv[1]](*sys.argv[2:])))

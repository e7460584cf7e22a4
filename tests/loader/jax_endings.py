"""One process with eight devices: however an iteration ends, its threads end too,
and errors come in their place.
"""

from __future__ import annotations

import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tokenlake as tl
from tests.loader.jax_checks import check_batch, reference
from tokenlake.base.threads import Prefetched
from tokenlake.errors import IntegrityError
from tokenlake.runtime.loader import Placement

ROWS, LENGTH = 8, 32


def main(facts: dict[str, Any]) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    small = tl.open(facts["store"], "small")
    _check_endings(small, sharding)
    _check_damage(tl.open(facts["damaged"], "small"), sharding)
    placement = Placement(sharding, (ROWS,), (LENGTH,))
    for prefetch in (0, 2):
        _check_bad_batch(placement, prefetch)
    _check_ahead(placement)
    _check_interrupt(placement)
    # A forgotten iterator's threads are still busy when the interpreter goes down.
    next(iter(tl.DataLoader(small, ROWS, epochs=None, sharding=sharding)))
    gc.collect()


def _check_endings(data: Any, sharding: NamedSharding) -> None:
    def loader() -> tl.DataLoader:
        return tl.DataLoader(data, ROWS, epochs=None, sharding=sharding)

    with loader() as left:
        iterator = iter(left)
        first = next(iterator)
        assert _threads(), "there are threads to end"
    assert _threads() == []
    check_batch(first, next(reference(data, ROWS)), sharding)
    with pytest.raises(StopIteration):
        next(iterator)

    left = loader()
    iterator = iter(left)
    for step in range(1, 4):
        next(iterator)
        assert (left.step, left.get_state()["step"]) == (step, step)
    left.close()
    assert _threads() == []

    # The next loop goes on behind what was delivered, whatever was ready ahead.
    iterator = iter(left)
    for expected in itertools.islice(reference(data, ROWS, epochs=None), 3, 6):
        check_batch(next(iterator), expected, sharding)
    iterator = iter(left)
    check_batch(
        next(iterator),
        next(itertools.islice(reference(data, ROWS, epochs=None), 6, 7)),
        sharding,
    )
    left.close()
    assert _threads() == []

    whole = tl.DataLoader(data, ROWS, sharding=sharding)
    assert sum(1 for _ in whole) == len(whole)
    assert _threads() == []

    for _ in left:
        break
    _wait_until(lambda: not _threads())
    iterator = iter(loader())
    next(iterator)
    del iterator
    gc.collect()
    _wait_until(lambda: not _threads())


def _check_damage(data: Any, sharding: NamedSharding) -> None:
    """What a thread finds is raised where its batch would have been, and raised
    again by who tries again.
    """
    told: list[tuple[int, str]] = []
    for options in (
        {},
        {"sharding": sharding},
        {"sharding": sharding, "prefetch": 0, "workers": 0},
    ):
        # In windows of a row group the damage comes after some batches.
        loader = tl.DataLoader(data, ROWS, seed=4, window=1, **options)
        with pytest.raises(
            IntegrityError, match=r"small@v1: data/.*row group \d+"
        ) as caught:
            for _ in loader:
                pass
        assert _threads() == []
        told.append((loader.step, str(caught.value)))
        with pytest.raises(IntegrityError):
            next(iter(loader))
        assert loader.step == told[0][0]
    assert told == told[:1] * 3
    assert 0 < told[0][0] < len(tl.DataLoader(data, ROWS))


def _check_bad_batch(placement: Placement, prefetch: int) -> None:
    """The devices' own errors come in their place too, and what is read from is
    closed.
    """
    given = _Given([_batch(0), _batch(1)[:-1], _batch(2)])
    batches = Prefetched(given, placed(placement), ahead=prefetch)
    assert next(batches)[0, 0] == 0
    with pytest.raises(ValueError, match="shape"):
        next(batches)
    batches.close()
    assert given.closed
    assert _threads() == []


def _check_ahead(placement: Placement) -> None:
    """Two batches are put ahead of the one that was asked for, and no more."""
    given = _Given(_batch(step) for step in range(100))
    batches = Prefetched(given, placed(placement), ahead=2)
    for step in range(5):
        assert next(batches)[0, 0] == step
        _wait_until(lambda step=step: given.drawn == step + 3)
    time.sleep(0.05)
    assert given.drawn == 7
    batches.close()
    assert [given.drawn, given.closed, _threads()] == [7, True, []]
    with pytest.raises(StopIteration):
        next(batches)


def _check_interrupt(placement: Placement) -> None:
    """Ctrl-C while the next batch is waited for."""
    go = threading.Event()

    def slow() -> Iterator[np.ndarray]:
        yield _batch(0)
        assert go.wait(120)
        yield _batch(1)

    def interrupt() -> None:
        main = threading.main_thread().ident or 0
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()

    def interrupted(number: int, frame: FrameType | None) -> None:
        if not _waits(frame):
            interrupt()  # later, then
            return
        go.set()  # or the wait for the thread that makes the batch would not end
        signal.default_int_handler(number, frame)

    given = _Given(slow())
    batches = Prefetched(given, placed(placement), ahead=2)
    next(batches)
    before = signal.signal(signal.SIGINT, interrupted)
    with pytest.raises(KeyboardInterrupt):
        interrupt()
        next(batches)
    signal.signal(signal.SIGINT, before)
    assert [given.closed, _threads()] == [True, []]


def _waits(frame: FrameType | None) -> bool:
    """Say whether what a signal came into waits for a batch."""
    while frame is not None and frame.f_code is not Future.result.__code__:
        frame = frame.f_back
    return frame is not None


class _Given(Iterator[np.ndarray]):
    """Batches of a host that are there already; knows what became of it."""

    def __init__(self, batches: Any) -> None:
        self._batches, self.drawn, self.closed = iter(batches), 0, False

    def __next__(self) -> np.ndarray:
        batch = next(self._batches)
        self.drawn += 1
        return batch

    def close(self) -> None:
        self.closed = True


def _batch(step: int) -> np.ndarray:
    return np.full((ROWS, LENGTH), step, np.int32)


def placed(placement: Placement) -> Callable[[np.ndarray], Any]:
    return lambda ids: placement.place({"input_ids": ids}, ROWS)["input_ids"]


def _threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("tokenlake-")
    ]


def _wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, _threads()
        time.sleep(0.005)

"""Threads that work ahead and end before the interpreter does, and threads that do the same work on many things.

A daemon thread that is inside a library's own code when the interpreter goes down can take the process with it (an
abort instead of an exit code). So each that works ahead is started here, with what ends it, and at exit all are ended
and waited for.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Final, TypeVar, final

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE: Final = 10.0  # seconds at exit: a read that hangs must not keep the process from ending

_LOOK: Final = 0.1  # seconds
_MANY: Final = "tokenlake-many"

_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()


def start_thread(work: Callable[[], None], *, end: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread.

    Args:
        work: what it does; it returns soon after `end` was called.
        end: asks it to; called at exit, perhaps more than once.
        name: of the thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    _RUNNING[thread] = end
    thread.start()
    return thread


def available_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_threads() -> None:
    """End all that still run, and wait for them, but not for ever."""
    running = [(thread, end) for thread, end in list(_RUNNING.items()) if thread.is_alive()]
    for _, end in running:
        end()
    until = time.monotonic() + _PATIENCE
    for thread, _ in running:
        thread.join(max(0.0, until - time.monotonic()))


class Stopped(Exception):
    """Nobody waits for the result any more."""


@final
class Stop:
    """Says whether work is still wanted; any number of threads."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask for an end."""
        self._asked.set()

    def check(self) -> None:
        """Raise :class:`Stopped` if the work is not wanted any more."""
        if self._asked.is_set():
            raise Stopped


def in_order(
    function: Callable[[T], R], items: Sequence[T], threads: int, *, stop: Stop | None = None
) -> Iterator[R]:
    """Yield ``function(item)`` for every item, in order; the first error ends it, later items are not begun.

    Nobody waits for the threads where it ends early: they may wait for a network. They are daemons, unlike those of
    ``concurrent.futures``: hashing terabytes must not keep a cancelled program alive. One thread is the caller's.

    Args:
        stop: `function` looks at it now and then, and any error, or Ctrl-C, asks for it at once.
    """
    if threads <= 1 or len(items) <= 1:
        yield from map(function, items)
        return
    results: dict[int, Future[R]] = {number: Future() for number in range(len(items))}
    numbers, errors, ended = itertools.count(), list[BaseException](), stop or Stop()

    def work() -> None:
        # next() of a count is one step of the interpreter: no two threads get the same number
        while not ended.asked and (number := next(numbers)) < len(items):
            try:
                results[number].set_result(function(items[number]))
            except BaseException as error:
                errors.append(error)
                results[number].set_exception(error)

    try:
        for _ in range(min(threads, len(items))):
            if stop is None:
                threading.Thread(target=work, name=_MANY, daemon=True).start()
            else:
                start_thread(work, end=stop.ask, name=_MANY)
        for number in range(len(items)):
            future = results[number]
            while not future.done():
                # Woken now and then: a signal that another thread got wakes nobody.
                wait([future], _LOOK)
                if stop is not None and errors:
                    raise errors[0]
            yield results.pop(number).result()  # what was handed over is not kept
    except BaseException:
        ended.ask()
        raise


atexit.register(end_threads)

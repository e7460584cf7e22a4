"""Threads that work ahead and end before the interpreter does, and threads that do the same work on many things.

A daemon thread that is inside a library's own code when the interpreter goes down can take the process with it (an
abort instead of an exit code). So each that works ahead is started here, with what ends it, and at exit all are ended
and waited for.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE: Final = 10.0  # seconds at exit: a read that hangs must not keep the process from ending

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


def end_threads() -> None:
    """End all that still run, and wait for them, but not for ever."""
    running = [(thread, end) for thread, end in list(_RUNNING.items()) if thread.is_alive()]
    for _, end in running:
        end()
    until = time.monotonic() + _PATIENCE
    for thread, _ in running:
        thread.join(max(0.0, until - time.monotonic()))


def in_order(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Yield ``function(item)`` for every item, in order; the first error ends it, later items are not begun.

    The threads are daemons, unlike those of ``concurrent.futures``: hashing terabytes must not keep a cancelled
    program alive. One thread is the caller's.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    results: list[Future[R]] = [Future() for _ in items]
    numbers, stopped = itertools.count(), threading.Event()

    def work() -> None:
        # next() of a count is one step of the interpreter: no two threads get the same number
        while not stopped.is_set() and (number := next(numbers)) < len(items):
            try:
                results[number].set_result(function(items[number]))
            except BaseException as error:
                results[number].set_exception(error)

    for _ in range(min(threads, len(items))):
        threading.Thread(target=work, name="tokenlake-many", daemon=True).start()
    try:
        for future in results:
            yield future.result()
    finally:
        stopped.set()


atexit.register(end_threads)

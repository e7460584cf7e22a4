"""The same work on many things by a few threads, results in order.

The threads are daemons, unlike those of ``concurrent.futures``: hashing terabytes must not keep a cancelled
program alive.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Yield ``function(item)`` for every item, in order; the first error ends it, later items are not begun."""
    results: list[Future[R]] = [Future() for _ in items]
    numbers, stopped = itertools.count(), threading.Event()

    def work() -> None:
        # next() of a count is one step of the interpreter: no two threads get the same number
        while not stopped.is_set() and (number := next(numbers)) < len(items):
            try:
                results[number].set_result(function(items[number]))
            except BaseException as error:
                results[number].set_exception(error)

    for _ in range(min(max(threads, 1), len(items))):
        threading.Thread(target=work, name="tokenlake-planning", daemon=True).start()
    try:
        for future in results:
            yield future.result()
    finally:
        stopped.set()

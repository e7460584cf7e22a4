"""Threads that work ahead, and threads that do the same work on many things.

Both end before the interpreter does. A daemon thread that is inside a library's own code
when the interpreter goes down can take the process with it (an abort instead of an exit
code). So each that works ahead is started here, with the function that ends it, and at
exit all are ended and waited for.

:class:`Prefetched` makes items ahead, in order, at most so many at a time. Each thread
draws the next item under a lock and leaves a promise of its result; the reader takes the
promises in the order in which they were left, and waits as long as the first of them
takes.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Final, Generic, TypeVar, final

T = TypeVar("T")
R = TypeVar("R")

# Seconds at exit: a read that hangs must not keep the process from ending.
_PATIENCE: Final = 10.0

_LOOK: Final = 0.1
"""Seconds between two looks at a result: Ctrl-C is not noticed while one waits."""
_MANY: Final = "tokenlake-many"

# Function that ends each thread. A thread that has ended is forgotten.
_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = (
    weakref.WeakKeyDictionary()
)


def start_thread(
    work: Callable[[], None], *, end: Callable[[], None], name: str
) -> threading.Thread:
    """Start a daemon thread.

    Args:
        work: Function that the thread runs; it returns soon after `end` was called.
        end: Function that asks for an end; called at exit, perhaps more than once.
        name: Name of the thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    _RUNNING[thread] = end
    thread.start()
    return thread


def available_cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_threads() -> None:
    """End all that still run, and wait for them, but not for ever."""
    running: list[threading.Thread] = []
    for thread, end in list(_RUNNING.items()):
        if thread.is_alive():
            running.append(thread)
            end()
    # All are asked first, and end at the same time; the patience is for all together.
    deadline = time.monotonic() + _PATIENCE
    for thread in running:
        thread.join(max(0.0, deadline - time.monotonic()))


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
    function: Callable[[T], R],
    items: Sequence[T],
    threads: int,
    *,
    stop: Stop | None = None,
) -> Iterator[R]:
    """Yield ``function(item)`` for every item, in order.

    The first error ends it, and later items are not begun.

    Nobody waits for the threads where it ends early: they may wait for a network. They
    are daemons, unlike those of ``concurrent.futures``: hashing terabytes must not keep
    a cancelled program alive. One thread is the caller's.

    Args:
        function: Function of an item.
        items: Items, in order.
        threads: Largest number of threads.
        stop: Request to end that `function` checks now and then; any error, or Ctrl-C,
            sets it at once.
    """
    if threads <= 1 or len(items) <= 1:
        yield from map(function, items)
        return
    # 1. A place for each result, which the threads fill in any order.
    results: dict[int, Future[R]] = {}
    for number in range(len(items)):
        results[number] = Future()
    next_numbers = itertools.count()
    errors: list[BaseException] = []
    end_request = stop or Stop()

    def work() -> None:
        # next() of a count is one step of the interpreter: no two threads get the same
        # number
        while not end_request.asked:
            number = next(next_numbers)
            if number >= len(items):
                return
            try:
                results[number].set_result(function(items[number]))
            except BaseException as error:
                errors.append(error)
                results[number].set_exception(error)

    # 2. The results in order. The caller may leave at any of them.
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
            yield results.pop(number).result()  # a delivered result is not kept
    except BaseException:
        end_request.ask()
        raise


Drawn = TypeVar("Drawn")
Made = TypeVar("Made")


@final
class Prefetched(Generic[Drawn, Made]):
    """An iterator over ``make(item)`` for the items of an iterator.

    Threads run ahead of the reader.

    Threads start with the first item that is asked for, and end with the last one, with
    an error, or when the iterator is closed or forgotten.

    Args:
        items: Iterator of items, which is closed with this one if it has a method
            `close`.
        make: Function of an item; several threads call it at the same time.
        workers: Number of threads.
        ahead: Largest number of results that are ready ahead; 0 for none, and no
            thread.
    """

    def __init__(
        self,
        items: Iterator[Drawn],
        make: Callable[[Drawn], Made],
        *,
        workers: int = 1,
        ahead: int,
    ) -> None:
        self._queue = _Queue(items, make, ahead)
        self._workers = workers if ahead else 0
        self._threads: list[threading.Thread] = []

    def __iter__(self) -> Prefetched[Drawn, Made]:
        return self

    def __next__(self) -> Made:
        """Return the next result, however long it takes.

        An error of a thread is raised here, in its place.
        """
        if len(self._threads) < self._workers:
            # Threads know the queue alone, so that a forgotten iterator is collected
            # and closes it.
            for number in range(self._workers):
                thread = start_thread(
                    self._queue.work,
                    end=self._queue.close,
                    name=f"tokenlake-prefetch-{number}",
                )
                self._threads.append(thread)
        try:
            if not self._workers:
                return self._queue.make_next()
            return self._queue.next()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the threads and wait for them.

        An item that is being drawn is drawn to its end.
        """
        self._queue.close()
        for thread in self._threads:
            thread.join()
        self._queue.close_items()

    def __del__(self) -> None:
        self._queue.close()


@final
class _Queue(Generic[Drawn, Made]):
    """Promises of results, in the order of the items, between threads and a reader."""

    def __init__(
        self, items: Iterator[Drawn], make: Callable[[Drawn], Made], ahead: int
    ) -> None:
        self.items = items
        self._make = make
        self._ahead = ahead
        # Held while an item is drawn. It may be taken again by its holder: items that
        # close themselves get an error of their own, not a wait without end.
        self._drawing = threading.RLock()
        self._changed = threading.Condition()  # of the fields below
        self._promised: deque[Future[Made]] = deque()
        self._unread = 0  # number of promises whose results were not delivered yet
        self._ended = False  # the items have ended
        self._closed = False  # no more results are wanted

    def work(self) -> None:
        """Draw and make until there is nothing more to do."""
        while True:
            with self._drawing:
                promise = self._promise()
                if promise is None:
                    return
                try:
                    item = next(self.items)
                # Also StopIteration: nothing comes after it.
                except BaseException as error:
                    self._ended = True
                    promise.set_exception(error)
                    return
            try:
                promise.set_result(self._make(item))
            except StopIteration as error:  # would look like the end of the items
                promise.set_exception(
                    RuntimeError(f"producing a batch raised {error!r}")
                )
            except BaseException as error:
                promise.set_exception(error)
            # A thread that waits must not keep its last result alive.
            del item, promise

    def next(self) -> Made:
        """Return the next result; StopIteration after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._promised or self._closed)
            if not self._promised:
                raise StopIteration
            promise = self._promised.popleft()
        try:
            return promise.result()
        finally:
            del promise  # an error refers to this frame
            with self._changed:
                self._unread -= 1
                self._changed.notify_all()

    def make_next(self) -> Made:
        """Make one without a thread."""
        if self._closed:
            raise StopIteration
        return self._make(next(self.items))

    def close(self) -> None:
        """Want no more results, and wake everybody who waits."""
        with self._changed:
            self._closed = True
            self._promised.clear()
            self._changed.notify_all()

    def close_items(self) -> None:
        """Close the iterator of items, if it can be closed, once no thread draws."""
        # Joined threads are not enough: another thread may be starting them just now,
        # as when a wait is cancelled at its first batch.
        with self._drawing:
            close = getattr(self.items, "close", None)
            if close is not None:
                close()

    def _promise(self) -> Future[Made] | None:
        """Append a promise once there is room for it; None if no more items come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._unread < self._ahead or self._ended or self._closed
            )
            if self._ended or self._closed:
                return None
            promise = Future[Made]()
            self._promised.append(promise)
            self._unread += 1
            self._changed.notify_all()
            return promise


atexit.register(end_threads)

"""Items made ahead by threads, in order, at most so many at a time.

Each thread draws the next item under a lock and leaves a promise of what it makes of it; the reader takes the promises
in the order in which they were left, and waits as long as the first of them takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar, final

from tokenlake.threads import start_thread

Drawn = TypeVar("Drawn")
Made = TypeVar("Made")


@final
class Prefetched(Generic[Drawn, Made]):
    """An iterator over ``make(item)`` for the items of an iterator, which threads run ahead of.

    Threads start with the first item that is asked for, and end with the last one, with an error, or when the iterator
    is closed or forgotten.

    Args:
        items: closed with this iterator, if they can be.
        make: called by the threads, for several items at once where there are several threads.
        workers: how many threads.
        ahead: results that are ready ahead, at most; 0: none, and no thread.
    """

    def __init__(
        self, items: Iterator[Drawn], make: Callable[[Drawn], Made], *, workers: int = 1, ahead: int
    ) -> None:
        self._queue = _Queue(items, make, ahead)
        self._workers = workers if ahead else 0
        self._threads: list[threading.Thread] = []

    def __iter__(self) -> Prefetched[Drawn, Made]:
        return self

    def __next__(self) -> Made:
        """Return the next result, however long it takes; whatever a thread raised is raised here, in its place."""
        if len(self._threads) < self._workers:
            self._start()
        try:
            return self._queue.next() if self._workers else self._queue.make_next()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the threads and wait for them; what is being drawn is drawn to its end."""
        self._queue.close()
        for thread in self._threads:
            thread.join()
        self._queue.close_items()

    def __del__(self) -> None:
        self._queue.close()

    def _start(self) -> None:
        # Threads know the queue alone, so that a forgotten iterator is collected and closes it.
        self._threads = [
            start_thread(self._queue.work, end=self._queue.close, name=f"tokenlake-prefetch-{number}")
            for number in range(self._workers)
        ]


@final
class _Queue(Generic[Drawn, Made]):
    def __init__(self, items: Iterator[Drawn], make: Callable[[Drawn], Made], ahead: int) -> None:
        self._items, self._make, self._ahead = items, make, ahead
        self._drawing, self._changed = threading.Lock(), threading.Condition()
        self._promised: deque[Future[Made]] = deque()
        self._unread = 0  # promises left, less those that were taken and kept
        self._ended = self._closed = False

    def work(self) -> None:
        """Draw and make until there is nothing more to do."""
        while True:
            with self._drawing:
                promise = self._promise()
                if promise is None:
                    return
                try:
                    item = next(self._items)
                except BaseException as error:  # also StopIteration: nothing comes after it
                    self._ended = True
                    promise.set_exception(error)
                    return
            self._keep(promise, item)
            del item, promise

    def next(self) -> Made:
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
        return self._make(next(self._items))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._promised.clear()
            self._changed.notify_all()

    def close_items(self) -> None:
        """Close what items are drawn from, once no thread draws."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def _promise(self) -> Future[Made] | None:
        """Leave a promise once there is room for it; None where nothing more comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread < self._ahead or self._ended or self._closed)
            if self._ended or self._closed:
                return None
            promise = Future[Made]()
            self._promised.append(promise)
            self._unread += 1
            self._changed.notify_all()
            return promise

    def _keep(self, promise: Future[Made], item: Drawn) -> None:
        try:
            promise.set_result(self._make(item))
        except StopIteration as error:  # would look like the end of the items
            promise.set_exception(RuntimeError(f"making a batch raised {error!r}"))
        except BaseException as error:
            promise.set_exception(error)

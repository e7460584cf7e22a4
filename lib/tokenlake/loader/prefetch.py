"""Batches prepared ahead by threads, in order, at most so many at a time.

Think of cooks at one hatch: each takes the next ticket and the ingredients for it (under a lock), cooks on its own,
and puts the plate on the shelf at its number. The waiter serves plates by number, waits as long as the next one takes,
and only the ticket that says "closed" ends the evening.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, final

from tokenlake.threads import start_thread

Drawn = TypeVar("Drawn")
Made = TypeVar("Made")


@final
class Prefetched(Generic[Drawn, Made]):
    """An iterator over ``make(item)`` for the items of an iterator, which threads run ahead of.

    Threads start with the first item that is asked for, and end with the last one, with an error, or when the iterator
    is closed or forgotten.
    """

    def __init__(
        self, items: Iterator[Drawn], make: Callable[[Drawn], Made], *, workers: int, ahead: int
    ) -> None:
        """Prepare at most `ahead` results, by `workers` threads."""
        self._kitchen = _Kitchen(items, make, ahead)
        self._workers = workers
        self._threads: list[threading.Thread] = []

    def __iter__(self) -> Prefetched[Drawn, Made]:
        return self

    def __next__(self) -> Made:
        """Return the next result, however long it takes; whatever a thread raised is raised here, in its place."""
        if not self._threads:
            self._start()
        try:
            return self._kitchen.serve()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the threads and wait for them; what is being drawn is drawn to its end."""
        self._kitchen.close()
        for thread in self._threads:
            thread.join()
        self._kitchen.clear_up()

    def __del__(self) -> None:
        self._kitchen.close()

    def _start(self) -> None:
        # Threads know the kitchen alone, so that a forgotten iterator is collected and closes it.
        self._threads = [
            start_thread(self._kitchen.work, end=self._kitchen.close, name=f"tokenlake-prefetch-{number}")
            for number in range(self._workers)
        ]


@final
class _Kitchen(Generic[Drawn, Made]):
    def __init__(self, items: Iterator[Drawn], make: Callable[[Drawn], Made], ahead: int) -> None:
        self._items, self._make, self._ahead = items, make, ahead
        self._drawing = threading.Lock()
        self._changed = threading.Condition()
        self._shelf: dict[int, Callable[[], Made]] = {}
        self._tickets = self._served = 0
        self._ended = self._closed = False

    def work(self) -> None:
        """Draw, make and shelve until there is nothing more to do."""
        while True:
            with self._drawing:
                if not self._wait_for_room():
                    return
                number, self._tickets = self._tickets, self._tickets + 1
                try:
                    item = next(self._items)
                except BaseException as error:  # also StopIteration: nothing comes after it
                    self._shelve(number, _raising(error))
                    self._end()
                    return
            self._shelve(number, self._cooked(item))
            del item

    def serve(self) -> Made:
        with self._changed:
            self._changed.wait_for(lambda: self._served in self._shelf or self._closed)
            plate = self._shelf.pop(self._served, None)
            if plate is None:
                raise StopIteration
            self._served += 1
            self._changed.notify_all()
        return plate()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._shelf.clear()
            self._changed.notify_all()

    def clear_up(self) -> None:
        """Close what items are drawn from, once no thread draws."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()

    def _cooked(self, item: Drawn) -> Callable[[], Made]:
        try:
            return _returning(self._make(item))
        except StopIteration as error:  # would look like the end of the items
            return _raising(RuntimeError(f"making a batch raised {error!r}"))
        except BaseException as error:
            return _raising(error)

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._tickets - self._served < self._ahead or self._over)
            return not self._over

    @property
    def _over(self) -> bool:
        return self._ended or self._closed

    def _shelve(self, number: int, plate: Callable[[], Made]) -> None:
        with self._changed:
            if not self._closed:
                self._shelf[number] = plate
            self._changed.notify_all()

    def _end(self) -> None:
        """Let no thread draw again: an iterator that raised is finished."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def _raising(error: BaseException) -> Callable[[], Any]:
    def plate() -> Any:
        raise error

    return plate

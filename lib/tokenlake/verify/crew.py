"""Work for many threads, that ends at once when its caller is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, final

from tokenlake.threads import start_thread

_LOOK_SECONDS: Final = 0.5

Item = TypeVar("Item")
Made = TypeVar("Made")


class Stopped(Exception):
    """Nobody waits for the result any more."""


@final
class Stop:
    """Says whether work is still wanted."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Ask for an end; from any thread."""
        self._asked.set()

    def check(self) -> None:
        """Raise :class:`Stopped` if the work is not wanted any more."""
        if self._asked.is_set():
            raise Stopped


def each(items: Sequence[Item], work: Callable[[Item], Made], *, threads: int, stop: Stop) -> list[Made]:
    """Return ``work(item)`` for all items, in their order.

    An error of one is raised here at once, as is Ctrl-C: the threads are asked to stop, and not waited for, since one
    of them may wait for a network.

    Args:
        work: asks `stop` now and then whether to go on.
    """
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    crew = _Crew(items, work)
    try:
        for number in range(min(threads, len(items))):
            start_thread(crew.run, end=stop.ask, name=f"tokenlake-verify-{number}")
        return crew.wait()
    except BaseException:
        crew.leave()
        stop.ask()
        raise


@final
class _Crew(Generic[Item, Made]):
    def __init__(self, items: Sequence[Item], work: Callable[[Item], Made]) -> None:
        self._items, self._work = items, work
        self._changed = threading.Condition()
        self._next, self._made = 0, dict[int, Made]()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Take one item after the other."""
        while (number := self._take()) is not None:
            try:
                made = self._work(self._items[number])
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            with self._changed:
                self._made[number] = made
                if len(self._made) == len(self._items):
                    self._changed.notify_all()

    def wait(self) -> list[Made]:
        with self._changed:
            # Woken now and then: a signal that another thread got wakes nobody.
            while self._error is None and len(self._made) < len(self._items):
                self._changed.wait(_LOOK_SECONDS)
            if self._error is not None:
                raise self._error
            return [self._made[number] for number in range(len(self._items))]

    def leave(self) -> None:
        """Give out no more items."""
        with self._changed:
            self._next = len(self._items)

    def _take(self) -> int | None:
        with self._changed:
            if self._error is not None or self._next >= len(self._items):
                return None
            self._next += 1
            return self._next - 1

"""Decoded row groups of a run, read ahead in the order of need.

The order of rows is known in advance, so that nothing has to be guessed: threads decode the row group that is needed
next and is not there yet, and where memory is full, the one goes that is needed last (Belady 1966), unless it is needed
before the new one. So decoding runs evenly ahead of a trainer, some steps far and no further than memory reaches.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple, final

from tokenlake.ragged import Int64, offsets_of
from tokenlake.reading.cache import Decoded
from tokenlake.reading.packed import PackedGroup
from tokenlake.reading.version import StoredRows
from tokenlake.threads import start_thread

_NEVER: Final = 1 << 62


class _Need(NamedTuple):
    """A row group, and the step that needs it first."""

    step: int
    number: int


@final
class DecodedAhead:
    """The row groups of some sources, numbered over all of them in their order.

    Args:
        sources: of the rows.
        loss_mask: decode it, where a source has one.
        max_bytes: of decoded row groups; what one batch needs is decoded however much it is.
        reach: steps that are read ahead.
        threads: that read ahead.
    """

    def __init__(
        self, sources: Sequence[StoredRows], *, loss_mask: bool, max_bytes: int, reach: int, threads: int
    ) -> None:
        self._first = offsets_of([len(rows.group_rows) for rows in sources])
        self._state = _Shelf(sources, self._first, loss_mask, max_bytes, reach)
        # Threads know the state alone, so that forgotten groups are collected, and end them.
        self._finalizer = weakref.finalize(self, self._state.close)
        self._threads = [
            start_thread(
                partial(_read_ahead, self._state), end=self._state.close, name=f"tokenlake-decode-{index}"
            )
            for index in range(threads)
        ]

    @property
    def decoded(self) -> Decoded:
        """What was decoded so far."""
        return self._state.decoded

    def number(self, source: Int64, group: Int64) -> Int64:
        """Return the number of row groups of sources, int64[n]."""
        return self._first[source] + group

    def plan(self, step: int, numbers: Iterable[int]) -> None:
        """Say which row groups a step needs; steps come in order."""
        self._state.plan(step, numbers)

    def take(self, step: int, numbers: Iterable[int]) -> dict[int, PackedGroup]:
        """Return the row groups of a step, decoding here what nobody has begun with; steps before it are over.

        Raises:
            IntegrityError: one is damaged.
        """
        return self._state.take(step, numbers)

    def release(self) -> None:
        """End the threads without waiting for them; let go of everything."""
        self._state.close()

    def close(self) -> None:
        """End the threads and wait for them; let go of everything."""
        self._state.close()
        for thread in self._threads:
            thread.join()


@final
class _Shelf:
    def __init__(
        self, sources: Sequence[StoredRows], first: Int64, loss_mask: bool, max_bytes: int, reach: int
    ) -> None:
        self._sources, self._begins = sources, first.tolist()
        self._loss_mask, self._max_bytes, self._reach = loss_mask, max_bytes, reach
        self._idle_bytes = _idle_bytes(sources, max_bytes)
        self._now, self._full = -1, False
        self._changed = threading.Condition()
        self._uses: defaultdict[int, deque[int]] = defaultdict(deque)
        self._queue: deque[_Need] = deque()
        self._held: dict[int, PackedGroup] = {}
        self._bytes = self._typical = 0
        self._under_way: dict[int, Future[PackedGroup]] = {}
        self._closed = False
        self.decoded = Decoded()

    def plan(self, step: int, numbers: Iterable[int]) -> None:
        with self._changed:
            for number in numbers:
                uses = self._uses[number]
                if not uses or uses[-1] <= self._now:
                    self._queue.append(_Need(step, number))
                uses.append(step)
            self._moved_on()

    def take(self, step: int, numbers: Iterable[int]) -> dict[int, PackedGroup]:
        with self._changed:
            if self._now < 0:
                self._now = step - 1  # the first step may be any
                self._moved_on()
            found = {number: self._held.get(number) for number in numbers}
        taken = {number: there for number, there in found.items() if there is not None}
        waiting = list[int]()
        for number in [number for number in found if number not in taken]:
            with self._changed:
                there = self._held.get(number)
                own = self._begin(number) if there is None else None
            if there is not None:
                taken[number] = there
            elif own is not None:
                taken[number] = self._decode(number, own)
            else:
                waiting.append(number)
        for number in waiting:
            taken[number] = self._wait_for(number)
        with self._changed:
            self._now = step
            self._drop_idle()
            self._moved_on()
        return taken

    def ahead(self) -> bool:
        """Decode what is needed next and not there; False when there is nothing more to do, ever."""
        with self._changed:
            while (wanted := self._next()) is None:
                if self._closed:
                    return False
                self._changed.wait()
            own = self._begin(wanted.number)
        if own is not None:
            # An error is raised again where the step that needs the row group is made.
            with contextlib.suppress(Exception):
                self._decode(wanted.number, own)
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._held.clear()
            self._queue.clear()
            self._changed.notify_all()

    def _next(self) -> _Need | None:
        """The row group to decode ahead of need; None where none is left or there is no room. Under the lock."""
        while self._queue and not self._closed:
            wanted = self._queue[0]
            # A step that came before the threads did has decoded what it needs; who needs it later does so as well.
            late = wanted.step <= self._now
            if late or wanted.number in self._held or wanted.number in self._under_way:
                self._queue.popleft()
            elif self._room_for(wanted):
                return self._queue.popleft()
            else:
                return None
        return None

    def _room_for(self, wanted: _Need) -> bool:
        if self._full or wanted.step > self._now + self._reach:
            return False
        coming = (len(self._under_way) + 1) * self._typical
        while self._held and self._bytes + coming > self._max_bytes:
            last = self._last_needed()
            if self._next_use(last) <= wanted.step:
                self._full = True  # until the next step: looking through all that is held takes its time
                return False
            self._drop(last)
        return True

    def _moved_on(self) -> None:
        """There may be room, or something to do, that was not there before. Under the lock."""
        self._full = False
        self._changed.notify_all()

    def _drop_idle(self) -> None:
        """Let go of what no planned step needs, but for what may be needed again. Under the lock."""
        idle = [number for number in self._held if self._next_use(number) == _NEVER]
        kept = 0
        for number in reversed(idle):
            kept += self._held[number].nbytes
            if kept > self._idle_bytes:
                self._drop(number)

    def _begin(self, number: int) -> Future[PackedGroup] | None:
        """Take on a row group, unless somebody has. Under the lock."""
        if number in self._under_way:
            return None
        self._under_way[number] = own = Future()
        return own

    def _wait_for(self, number: int) -> PackedGroup:
        """What another thread decodes; if it failed, or what it gave is gone again, decode here."""
        with self._changed:
            there, other = self._held.get(number), self._under_way.get(number)
            own = self._begin(number) if there is None else None
        if there is not None:
            return there
        if own is not None:
            return self._decode(number, own)
        assert other is not None
        try:
            return other.result()
        except Exception:
            return self._wait_for(number)

    def _decode(self, number: int, own: Future[PackedGroup]) -> PackedGroup:
        source = self._source_of(number)
        rows = self._sources[source]
        try:
            found = rows.packed(
                number - self._begins[source], loss_mask=self._loss_mask and rows.has_loss_mask
            )
        except BaseException as error:
            with self._changed:
                del self._under_way[number]
                self._changed.notify_all()
            own.set_exception(error)
            raise
        with self._changed:
            del self._under_way[number]
            self._keep(number, found)
            self._changed.notify_all()
        own.set_result(found)
        return found

    def _keep(self, number: int, found: PackedGroup) -> None:
        self.decoded = self.decoded.plus(found.rows, found.nbytes)
        if self._closed:
            return
        self._typical = max(self._typical, found.nbytes)
        self._held[number] = found
        self._bytes += found.nbytes
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._drop(self._last_needed())

    def _last_needed(self) -> int:
        return max(self._held, key=self._next_use)

    def _next_use(self, number: int) -> int:
        """The first step that is still to come and needs a row group. Under the lock."""
        uses = self._uses.get(number)
        while uses and uses[0] <= self._now:
            uses.popleft()
        if uses:
            return uses[0]
        self._uses.pop(number, None)
        return _NEVER

    def _drop(self, number: int) -> None:
        self._bytes -= self._held.pop(number).nbytes

    def _source_of(self, number: int) -> int:
        return next(at for at in range(len(self._sources)) if number < self._begins[at + 1])


def _idle_bytes(sources: Sequence[StoredRows], max_bytes: int) -> int:
    """How much is kept of what no planned step needs.

    All, where it is all that there is: further epochs decode nothing. Where several sources are mixed, a rare one's row
    group may be needed again after all that is planned. Of one large dataset it is done with.
    """
    whole = sum(4 * rows.rows * (rows.manifest.seq_length or 0) for rows in sources)
    if whole <= max_bytes:
        return max_bytes
    return max_bytes // 4 if len(sources) > 1 else 0


def _read_ahead(state: _Shelf) -> None:
    while state.ahead():
        pass

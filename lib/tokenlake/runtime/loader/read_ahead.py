"""Decoded row groups of a run, read ahead in the order of need.

The order of rows is known in advance, so that nothing has to be guessed: threads decode the row group that is needed
next and is not there yet, and where memory is full, the one goes that is needed last (Belady 1966), unless it is needed
before the new one. So decoding runs evenly ahead of a trainer, some steps far and no further than memory reaches.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.base.threads import start_thread
from tokenlake.runtime.reading.group_cache import Decoded, GroupCache
from tokenlake.runtime.reading.packed import PackedGroup
from tokenlake.runtime.reading.ragged_rows import RaggedGroup
from tokenlake.runtime.reading.version import StoredRows

_NEVER: Final = 1 << 62

DecodedGroup: TypeAlias = PackedGroup | RaggedGroup
Decode: TypeAlias = Callable[[StoredRows, int], DecodedGroup]


@final
class DecodedAhead:
    """The row groups of some sources, numbered over all of them in their order.

    What is needed when, over a cache that lets go of what is needed last; all under one lock. Threads refer to it:
    whoever forgets it calls :meth:`release`.

    Args:
        sources: of the rows.
        decode: (source, row group of it) -> decoded row group.
        times: how often each row comes; None: nobody knows.
        max_bytes: of decoded row groups; what one batch needs is decoded however much it is.
        reach: steps that are read ahead.
        threads: that read ahead.
    """

    def __init__(
        self,
        sources: Sequence[StoredRows],
        decode: Decode,
        *,
        times: int | None,
        max_bytes: int,
        reach: int,
        threads: int,
    ) -> None:
        self._sources, self._decode_one, self._reach = sources, decode, reach
        self._first = offsets_of([len(rows.group_rows) for rows in sources])
        # How much is kept of what no planned step needs. All, where it is all that there is: further epochs decode
        # nothing, and the last one lets go of it. Where several sources are mixed, a rare one's row group may be needed
        # again after all that is planned. Of one large dataset it is done with.
        shared = max_bytes // 4 if len(sources) > 1 else 0
        self._idle_bytes = max_bytes if sum(4 * rows.ids for rows in sources) <= max_bytes else shared
        # Rows of each row group that no step was planned for.
        self._left = None if times is None else times * np.concatenate([rows.group_rows for rows in sources])
        self._now, self._full, self._closed, self._typical = -1, False, False, 0
        self._changed = threading.Condition()
        self._uses: defaultdict[int, deque[int]] = defaultdict(deque)
        self._queue: deque[tuple[int, int]] = (
            deque()
        )  # the step that needs a row group first, and which it is
        self._cache: GroupCache[int, DecodedGroup] = GroupCache(
            max_bytes, self._decode, first_out=self._last_needed, lock=self._changed
        )
        self._groups = self._cache.groups
        self._threads = [
            start_thread(self._work, end=self.release, name=f"tokenlake-decode-{index}")
            for index in range(threads)
        ]

    @property
    def decoded(self) -> Decoded:
        """What was decoded so far."""
        return self._cache.decoded

    def number(self, source: Int64, group: Int64) -> Int64:
        """Return the number of row groups of sources, int64[n]."""
        return self._first[source] + group

    def plan(self, step: int, numbers: Int64) -> None:
        """Say which row groups the rows of a step lie in, int64[n]; steps come in order."""
        with self._changed:
            if self._left is not None:
                np.subtract.at(self._left, numbers, 1)
            for number in dict.fromkeys(numbers.tolist()):
                uses = self._uses[number]
                if not uses or uses[-1] <= self._now:
                    self._queue.append((step, number))
                uses.append(step)
            self._moved_on()

    def take(self, step: int, numbers: Collection[int]) -> dict[int, DecodedGroup]:
        """Return the row groups of a step, decoding here what nobody has begun with; steps before it are over.

        Raises:
            IntegrityError: one is damaged.
        """
        with self._changed:
            if self._now < 0:
                self._now = step - 1  # the first step may be any
                self._moved_on()
            kept = self._groups.kept
            found = {number: kept[number][0].value for number in numbers if number in kept}
            self._cache.hit(len(found))
        missing = [number for number in numbers if number not in found]
        # First what nobody has begun with: others decode the rest meanwhile.
        missing.sort(key=lambda number: number in self._groups.under_way)
        for number in missing:
            found[number] = self._cache.read(number)
        with self._changed:
            self._now = step
            self._drop_idle(numbers)
            self._moved_on()
        return {number: found[number] for number in numbers} if missing else found

    def release(self) -> None:
        """End the threads without waiting for them; let go of everything."""
        with self._changed:
            self._closed = True
            self._groups.invalidate()
            self._queue.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads and wait for them; let go of everything."""
        self.release()
        for thread in self._threads:
            thread.join()
        self._groups.invalidate()

    def _work(self) -> None:
        """Decode what is needed next and not there, until there is nothing more to do, ever."""
        while True:
            with self._changed:
                while (wanted := self._next()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
            # An error is raised again where the step that needs the row group is made.
            with contextlib.suppress(Exception):
                self._cache.read(wanted)
            with self._changed:
                self._changed.notify_all()  # what is under way takes room

    def _next(self) -> int | None:
        """The row group to decode ahead of need; None where none is left or there is no room. Under the lock."""
        while self._queue and not self._closed:
            step, number = self._queue[0]
            # A step that came before the threads did has decoded what it needs; who needs it later does so as well.
            late = step <= self._now
            if not late and number not in self._groups.kept and number not in self._groups.under_way:
                if not self._room_at(step):
                    return None
                self._queue.popleft()
                return number
            self._queue.popleft()
        return None

    def _room_at(self, step: int) -> bool:
        """Whether a row group that a step needs may be decoded now; what is needed later goes. Under the lock."""
        if self._full or step > self._now + self._reach:
            return False
        coming = (len(self._groups.under_way) + 1) * self._typical
        while self._groups.kept and self._groups.held + coming > self._groups.max_bytes:
            last = self._last_needed(self._groups.kept)
            if self._next_use(last) <= step:
                self._full = True  # until the next step: looking through all that is held takes its time
                return False
            self._groups.invalidate(last)
        return True

    def _moved_on(self) -> None:
        """There may be room, or something to do, that was not there before. Under the lock."""
        self._full = False
        if self._queue:
            self._changed.notify_all()

    def _drop_idle(self, numbers: Collection[int]) -> None:
        """Let go of what no planned step needs, but for what may be needed again. Under the lock.

        Args:
            numbers: what the step needed that was taken last.
        """
        groups, kept, some = self._groups, 0, [*numbers]
        if self._idle_bytes == groups.max_bytes:  # only what no step will be planned for any more
            kept = self._idle_bytes
            left = [1] * len(some) if self._left is None else self._left[some].tolist()
            some = [one for one, rows in zip(some, left, strict=True) if rows <= 0]
        elif self._idle_bytes:
            some = [*groups.kept]
        for number in reversed([one for one in some if one in groups.kept and self._next_use(one) == _NEVER]):
            kept += groups.kept[number][1]
            if kept > self._idle_bytes:
                groups.invalidate(number)

    def _decode(self, number: int) -> DecodedGroup:
        source = int(np.searchsorted(self._first, number, side="right")) - 1
        found = self._decode_one(self._sources[source], number - int(self._first[source]))
        self._typical = max(self._typical, found.nbytes)
        return found

    def _last_needed(self, numbers: Iterable[int]) -> int:
        return max(numbers, key=self._next_use)

    def _next_use(self, number: int) -> int:
        """The first step that is still to come and needs a row group. Under the lock."""
        uses = self._uses.get(number)
        while uses and uses[0] <= self._now:
            uses.popleft()
        if uses:
            return uses[0]
        self._uses.pop(number, None)
        return _NEVER

"""Decoded row groups of a run, read ahead in the order of need.

The order of rows is known in advance, and with it the steps that need each row group.
Threads decode row groups ahead of the trainer as follows:

1. The next row group to decode is the one that is needed first and is not in memory.
2. If memory is full, the row group that is needed last is dropped (Belady 1966), unless
   it is needed before the new one.
3. No row group is decoded more than `reach` steps ahead of the last step that was
   taken.
4. A row group that no planned step needs is *idle*. It is dropped, unless it is part of
   a mixture: rows of a rarely drawn source are farther apart than steps are planned
   ahead. There it stays until the last of its rows was planned, and the row groups that
   were used longest ago are dropped if idle ones need too much memory.

Example, with memory for two row groups and the steps ``A | B | A | C``: after step 0, A
and B are in memory. C has to wait: A is needed at step 2, before C. After step 2
neither A nor B is needed again, and C is decoded.
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
from tokenlake.runtime.mixing.order_form import open_bytes
from tokenlake.runtime.reading.group_cache import Decoded, GroupCache
from tokenlake.runtime.reading.packed import PackedGroup
from tokenlake.runtime.reading.ragged_rows import RaggedGroup
from tokenlake.runtime.reading.version import StoredRows

_NEVER: Final = 1 << 62
"""Step that stands for "not needed by any planned step"."""

DecodedGroup: TypeAlias = PackedGroup | RaggedGroup
Decode: TypeAlias = Callable[[StoredRows, int], DecodedGroup]
"""(source, index of a row group in it) -> decoded row group."""


@final
class DecodedAhead:
    """Decoded row groups of several sources, read ahead by threads.

    Row groups are numbered over all sources in their order. One lock protects
    everything. The threads refer to this object, so that the owner must call
    :meth:`close` or :meth:`release`.

    Args:
        sources: Rows of the sources.
        decode: Function that decodes a row group.
        times: Number of times that each row comes; None: unknown, or a mixture.
        max_bytes: Memory for decoded row groups. The row groups of one batch are
            decoded even if they need more.
        reach: Number of steps to read ahead.
        threads: Number of threads; 0: row groups are decoded when they are taken.
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
        self._sources = sources
        self._decode_one = decode
        self._reach = reach
        self._first_groups = offsets_of([len(rows.group_rows) for rows in sources])
        self._fits = _all_fit(sources, max_bytes)
        # Memory for idle row groups. If everything fits, none is dropped, so that later
        # epochs decode nothing.
        self._most_idle = 0
        if self._fits:
            self._most_idle = max_bytes
        elif len(sources) > 1:
            self._most_idle = open_bytes(max_bytes)
        # Rows of each row group for which no step is planned yet: of all epochs, or of
        # the current epoch in a mixture. None: unknown.
        self._unplanned: Int64 | None = None
        self._group_rows = np.concatenate([rows.group_rows for rows in sources])
        if times is not None:
            self._unplanned = times * self._group_rows
        elif self._most_idle and not self._fits:
            self._unplanned = self._group_rows.copy()
        self._finished: set[int] = set()  # row groups whose last row was planned
        # Idle row groups and their sizes, the one that was used longest ago first.
        self._idle: dict[int, int] = {}
        self._held_idle = 0
        self._step = -1  # the last step that was taken
        # Whether there was no room for the next row group since that step.
        self._is_full = False
        self._is_closed = False
        self._largest = 0  # bytes of the largest row group that was decoded
        self._changed = threading.Condition()
        self._uses: defaultdict[int, deque[int]] = defaultdict(
            deque
        )  # row group -> planned steps that need it
        # (step that needs it first, row group).
        self._queue: deque[tuple[int, int]] = deque()
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
        """Counts of the row groups that were decoded so far."""
        return self._cache.decoded

    def number(self, source: Int64, group: Int64) -> Int64:
        """Return the numbers of row groups of sources, int64[n]."""
        return self._first_groups[source] + group

    def plan(self, step: int, numbers: Int64) -> None:
        """Announce the row groups of a step's rows. Steps are announced in their order.

        Args:
            step: Number of the step.
            numbers: Number of the row group of each row, int64[n].
        """
        with self._changed:
            self._count_planned(numbers)
            for number in dict.fromkeys(numbers.tolist()):
                self._forget_idle(number)
                uses = self._uses[number]
                if not uses or uses[-1] <= self._step:
                    self._queue.append((step, number))
                uses.append(step)
            self._wake_threads()

    def take(self, step: int, numbers: Collection[int]) -> dict[int, DecodedGroup]:
        """Return the decoded row groups of a step. Earlier steps are over.

        Row groups that no thread has begun with are decoded here.

        Args:
            step: Number of the step.
            numbers: Numbers of its row groups.

        Raises:
            IntegrityError: A row group is damaged.
        """
        with self._changed:
            if self._step < 0:
                self._step = step - 1  # a run may begin at any step
                self._wake_threads()
            cached = self._groups.kept
            # A batch has hundreds of row groups, and the lock is held.
            groups = {
                number: cached[number][0].value
                for number in numbers
                if number in cached
            }
            self._cache.hit(len(groups))
        missing = [number for number in numbers if number not in groups]
        # Begin with those that no thread is decoding: meanwhile the threads finish the
        # others.
        missing.sort(key=lambda number: number in self._groups.under_way)
        for number in missing:
            groups[number] = self._cache.read(number)
        with self._changed:
            self._step = step
            self._drop_idle(numbers)
            self._wake_threads()
        if missing:
            return {number: groups[number] for number in numbers}
        return groups

    def release(self) -> None:
        """End the threads without waiting for them, and drop all row groups."""
        with self._changed:
            self._is_closed = True
            self._groups.invalidate()
            self._idle.clear()
            self._queue.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads, wait for them, and drop all row groups."""
        self.release()
        for thread in self._threads:
            thread.join()
        self._groups.invalidate()

    # -- threads

    def _work(self) -> None:
        """Decode one row group after the other until this object is closed."""
        while True:
            with self._changed:
                number = self._next()
                while number is None:
                    if self._is_closed:
                        return
                    self._changed.wait()
                    number = self._next()
            # An error is raised again when the step that needs the row group is taken.
            with contextlib.suppress(Exception):
                self._cache.read(number)
            with self._changed:
                # Others may have waited for this row group's room.
                self._changed.notify_all()

    # -- called under the lock

    def _next(self) -> int | None:
        """Return the row group to decode next; None if there is none, or no room."""
        while self._queue and not self._is_closed:
            step, number = self._queue[0]
            # A step that was taken already decoded its row groups itself. Later steps
            # that need them do so as well.
            is_late = step <= self._step
            groups = self._groups
            if is_late or number in groups.kept or number in groups.under_way:
                self._queue.popleft()
                continue
            if not self._make_room(step):
                return None
            self._queue.popleft()
            return number
        return None

    def _make_room(self, step: int) -> bool:
        """Return whether a row group that a step needs may be decoded now.

        Row groups that are needed later are dropped for it.
        """
        if self._is_full or step > self._step + self._reach:
            return False
        groups = self._groups
        coming_bytes = (len(groups.under_way) + 1) * self._largest
        while groups.kept and groups.held + coming_bytes > groups.max_bytes:
            last_needed = self._last_needed(groups.kept)
            is_idle = last_needed in self._idle
            if not is_idle and self._next_use(last_needed) <= step:
                # Do not look again before the next step: comparing all row groups in
                # memory takes time.
                self._is_full = True
                return False
            self._forget_idle(last_needed)
            groups.invalidate(last_needed)
        return True

    def _wake_threads(self) -> None:
        """Let the threads look again: a step was planned or taken."""
        self._is_full = False
        if self._queue:
            self._changed.notify_all()

    def _count_planned(self, numbers: Int64) -> None:
        """Count the rows of a step, and note the row groups whose last row it has.

        Args:
            numbers: Number of the row group of each row, int64[n].
        """
        if self._unplanned is None:
            return
        np.subtract.at(self._unplanned, numbers, 1)
        is_last = self._unplanned[numbers] <= 0
        if self._fits:
            self._finished.update(numbers[is_last].tolist())
            return
        # A mixture goes on with the next epoch of the source.
        self._finished.difference_update(numbers.tolist())
        finished = np.unique(numbers[is_last])
        self._unplanned[finished] += self._group_rows[finished]
        self._finished.update(finished.tolist())

    def _drop_idle(self, numbers: Collection[int]) -> None:
        """Drop row groups that no planned step needs.

        Those that fit into the memory that is kept for such stay.

        Args:
            numbers: Row groups of the step that was taken last.
        """
        # A step has hundreds of row groups, and steps are planned in their order: look
        # at the last use only.
        groups = self._groups
        for number in numbers:
            uses = self._uses.get(number)
            is_needed = uses is not None and uses[-1] > self._step
            if is_needed or number not in groups.kept:
                continue
            self._uses.pop(number, None)
            self._forget_idle(number)
            if self._most_idle and number not in self._finished:
                self._idle[number] = groups.kept[number][1]
                self._held_idle += self._idle[number]
            else:
                groups.invalidate(number)
        while self._held_idle > self._most_idle:
            number = next(iter(self._idle))
            self._forget_idle(number)
            groups.invalidate(number)

    def _forget_idle(self, number: int) -> None:
        """Note that a row group is not idle: it is needed, or not in memory."""
        self._held_idle -= self._idle.pop(number, 0)

    def _decode(self, number: int) -> DecodedGroup:
        """Decode a row group. Called without the lock."""
        source = int(np.searchsorted(self._first_groups, number, side="right")) - 1
        group = self._decode_one(
            self._sources[source], number - int(self._first_groups[source])
        )
        self._largest = max(self._largest, group.nbytes)
        return group

    def _last_needed(self, numbers: Iterable[int]) -> int:
        """Return the row group whose next use is the latest.

        Of idle ones it is the one that was used longest ago.
        """
        decoded_groups = self._groups.kept
        while self._idle:
            number = next(iter(self._idle))
            if number in decoded_groups:
                return number
            self._forget_idle(number)  # the cache dropped it
        return max(numbers, key=self._next_use)

    def _next_use(self, number: int) -> int:
        """Return the first step after the last one taken that needs a row group."""
        uses = self._uses.get(number)
        while uses and uses[0] <= self._step:
            uses.popleft()
        if uses:
            return uses[0]
        self._uses.pop(number, None)
        return _NEVER


def _all_fit(sources: Sequence[StoredRows], max_bytes: int) -> bool:
    """Return whether all sources fit into the memory for open row groups."""
    decoded_bytes = sum(rows.decoded_bytes for rows in sources)
    return decoded_bytes <= open_bytes(max_bytes)

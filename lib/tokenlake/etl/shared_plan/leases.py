"""Leases of units, so that two workers rarely build the same one.

1. Before a worker begins a unit, it creates a small object, the lease of the unit.
2. While it builds the unit, it changes the lease six times in the time after which a
   lease expires (60 s).
3. After the unit it removes the lease.
4. A lease that has not changed for that time belongs to a worker that died. Another
   worker takes it over by compare-and-swap. The time is measured by the clock of the
   worker that waits: no two clocks are compared.

A worker also keeps an object of its own, which it changes as often: a run that waits
learns from it that the worker is alive.

A lease proves nothing. A worker that slept until its lease expired builds a unit that
another one builds too. Both write the same parts, which are create-only, and the same
record.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias, final

from tokenlake import errors
from tokenlake.etl.pool import seconds_from
from tokenlake.etl.shared_plan.notes import Mark, note_path, notes_of, unit_name
from tokenlake.runtime.store.base import ObjectInfo, Store
from tokenlake.runtime.store.layout import Layout

LEASE_VARIABLE: Final = "TOKENLAKE_LEASE_SECONDS"
"""Environment variable: number of seconds without a change after which a lease
expires.
"""

_LEASE_SECONDS: Final = 60.0
"""Default of :data:`LEASE_VARIABLE`."""

_BEATS_PER_LEASE: Final = 6
"""Number of changes of a lease in the time after which it would expire."""

Sighting: TypeAlias = tuple[Mark, float]
"""A mark, and the time at which it was first seen."""


def lease_seconds() -> float:
    """Return the number of seconds after which a lease expires.

    Raises:
        ConfigError: The environment variable is no valid number.
    """
    return seconds_from(LEASE_VARIABLE, _LEASE_SECONDS)


def leased_units(infos: Iterable[ObjectInfo]) -> dict[int, Mark]:
    """Return the units with a lease among listed objects, and their marks."""
    marks = notes_of(infos, "lease")
    return {int(unit): mark for unit, mark in marks.items()}


def present_workers(infos: Iterable[ObjectInfo]) -> dict[str, Mark]:
    """Return the workers that are present among listed objects, and their marks."""
    return notes_of(infos, "worker")


def last_changes(
    marks: Mapping[Any, Mark], sightings: Mapping[Any, Sighting], now: float
) -> dict[Any, Sighting]:
    """Return the mark of each object, and the time since which it has had it.

    Example: an object with the mark A at time 0 and 10, and with B at time 20, has
    (A, 0) at time 10 and (B, 20) at time 20.

    Args:
        marks: Mark of each object of the new listing.
        sightings: Result of this function for the listing before.
        now: Time of the new listing, in seconds of a monotonic clock.
    """
    updated: dict[Any, Sighting] = {}
    for name, mark in marks.items():
        sighting = sightings.get(name)
        if sighting is None or sighting[0] != mark:
            sighting = (mark, now)
        updated[name] = sighting
    return updated


def lease_key(layout: Layout, unit: int) -> str:
    """Return the key of a unit's lease."""
    return layout.key(note_path("lease", unit_name(unit)))


def progress_of(store: Store, layout: Layout, unit: int) -> dict[str, int]:
    """Return the progress of a unit that its lease states.

    It is empty if the lease is gone or cannot be read.
    """
    with suppress(errors.StoreError, ValueError, KeyError, TypeError):
        lease: Any = json.loads(store.read(lease_key(layout, unit)))
        return {str(name): int(count) for name, count in lease["progress"].items()}
    return {}


@final
class Leases:
    """The leases of one worker; thread-safe.

    Args:
        store: Store of the build.
        layout: Layout of the version.
        worker: Name of the worker, unique and valid in a key.
        seconds: Number of seconds without a change after which a lease expires.
        clock: Clock that returns seconds, monotonic.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        worker: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._layout = layout
        self._worker = worker
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        # Content of each lease of this worker, as it is in the store.
        self._own_leases: dict[int, bytes] = {}
        self._progress: dict[int, Counter[str]] = {}
        # Content of the object that shows that this worker is present; None if it is
        # not in the store.
        self._presence: bytes | None = None
        self._leases_of_others: dict[int, Sighting] = {}

    def look(self, marks: Mapping[int, Mark]) -> None:
        """Learn from a listing which other leases exist, and which of them changed."""
        now = self._clock()
        with self._lock:
            other_marks = dict(marks)
            for unit in self._own_leases:
                other_marks.pop(unit, None)
            self._leases_of_others = last_changes(
                other_marks, self._leases_of_others, now
            )

    def is_free(self, unit: int) -> bool:
        """Whether a unit may be taken.

        It had no lease in the last listing, or one that has expired.
        """
        with self._lock:
            if unit in self._own_leases:
                return False
            sighting = self._leases_of_others.get(unit)
            return sighting is None or self._clock() - sighting[1] >= self._seconds

    def take(self, unit: int) -> bool:
        """Begin a lease, or take over an expired one.

        Returns:
            False if another worker has it.
        """
        if not self.is_free(unit):
            return False
        unit_key = lease_key(self._layout, unit)
        content = self._content(0, {})
        with self._lock:
            has_expired_lease = unit in self._leases_of_others
        # An expired lease is replaced only if it is unchanged since this read, and a
        # new one is created only if there is none.
        try:
            expired = None
            if has_expired_lease:
                expired = self._store.read(unit_key)
            self._store.swap(unit_key, content, expired)
        except (errors.VersionConflictError, errors.NotFoundError):
            return False
        with self._lock:
            self._leases_of_others.pop(unit, None)
            self._own_leases[unit] = content
            self._progress[unit] = Counter()
        return True

    def tell(self, unit: int, progress: Mapping[str, int]) -> None:
        """Add an increment to the progress of a unit.

        The next :meth:`beat` publishes it.
        """
        with self._lock:
            if unit in self._own_leases:
                self._progress[unit].update(progress)

    def beat(self) -> None:
        """Change the worker's own object and all its leases.

        A lease that another worker took over is given up.
        """
        self._beat_presence()
        with self._lock:
            leases = list(self._own_leases.items())
        for number, (unit, old_content) in enumerate(leases):
            # No two leases of a beat have the same time, so that each content is new.
            content = self._content(self._clock() + number, self._progress[unit])
            try:
                self._store.swap(lease_key(self._layout, unit), content, old_content)
            except errors.VersionConflictError:
                with self._lock:
                    self._own_leases.pop(unit, None)
            except errors.StoreError:
                # The next beat comes before the lease expires.
                continue
            else:
                # A thread may have released the lease during the swap.
                with self._lock:
                    was_released = self._own_leases.get(unit) is not old_content
                    if not was_released:
                        self._own_leases[unit] = content

    def _beat_presence(self) -> None:
        """Change the object that shows that this worker is present."""
        content = self._content(self._clock(), {})
        old_content = self._presence
        # Where the object was removed, as with the plan, the swap fails, and the next
        # beat creates it again.
        self._presence = None
        with suppress(errors.StoreError, errors.VersionConflictError):
            self._store.swap(self._presence_key, content, old_content)
            self._presence = content

    def release(self, unit: int) -> None:
        """Remove a lease of this worker; a lease that cannot be removed expires."""
        with self._lock:
            content = self._own_leases.pop(unit, None)
        if content is not None:
            with suppress(errors.StoreError):
                self._store.delete(lease_key(self._layout, unit))

    @property
    def _presence_key(self) -> str:
        """Key of the object that shows that this worker is present."""
        return self._layout.key(note_path("worker", self._worker))

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep the leases alive during the block, by a thread.

        They are removed after it, also after an error.
        """
        has_ended = threading.Event()

        def beat() -> None:
            self.beat()
            while not has_ended.wait(self._seconds / _BEATS_PER_LEASE):
                self.beat()

        thread = threading.Thread(target=beat, name="tokenlake-leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()
            with suppress(errors.StoreError):
                self._store.delete(self._presence_key)
            for unit in list(self._own_leases):
                self.release(unit)

    def _content(self, beat: float, progress: Mapping[str, int]) -> bytes:
        """Return the content of a lease or of the worker's own object.

        Args:
            beat: Number that is another one at each change.
            progress: Progress of the unit.
        """
        fields = {
            "worker": self._worker,
            "beat": round(beat, 3),
            "progress": dict(progress),
        }
        return json.dumps(fields, sort_keys=True).encode()

"""Leases: who builds which unit now, so that two workers rarely build one; and who is there at all.

A lease is a small object that is created before a unit is begun, changed every few seconds while it is built, and
removed afterwards. One that did not change for a while is of a worker that died, and is taken over by
compare-and-swap. That while is measured by the clock of whoever waits: no two clocks are compared.

A worker keeps one object more, which it changes as often: whoever waits learns from it that the worker is alive.

A lease proves nothing. A worker that slept through its own builds a unit that another builds, too; both make the same
parts, which are create-only, and the same record.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.etl.pool import seconds_from
from tokenlake.etl.shared_plan import WORK
from tokenlake.store.base import ObjectInfo, Store
from tokenlake.store.layout import Layout

VARIABLE: Final = "TOKENLAKE_LEASE_SECONDS"
"""Environment variable: after how many seconds without a change a lease is taken over."""

_SECONDS: Final = 60.0
_BEATS: Final = 6  # changes in that time

_NAME: Final = re.compile(rf".*/{WORK}/lease-(\d+)\.json")
_WORKER: Final = re.compile(rf".*/{WORK}/worker-(.+)\.json")

Mark: TypeAlias = tuple[float | None, str, int]
"""What a listing says of a lease; another one where it was changed."""


def lease_seconds() -> float:
    """Return after how many seconds a lease is over; ConfigError where the environment says no number."""
    return seconds_from(VARIABLE, _SECONDS)


def leased_units(infos: Iterable[ObjectInfo]) -> dict[int, Mark]:
    """Return unit to mark of the leases among listed objects."""
    found = ((_NAME.fullmatch(info.key), info) for info in infos)
    return {int(name[1]): (info.modified, info.token, info.size) for name, info in found if name}


def present_workers(infos: Iterable[ObjectInfo]) -> dict[str, Mark]:
    """Return worker to mark of those who say that they are there, among listed objects."""
    found = ((_WORKER.fullmatch(info.key), info) for info in infos)
    return {name[1]: (info.modified, info.token, info.size) for name, info in found if name}


@final
@dataclass(slots=True)
class _Held:
    """A lease of ours: the bytes that are in the store, and what is done of the unit."""

    data: bytes
    progress: Counter[str] = field(default_factory=Counter[str])


@final
class Leases:
    """The leases of one worker; thread-safe.

    Args:
        worker: its name, which no other has, and which a key may hold.
        seconds: after which a lease that does not change is over.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        worker: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._layout, self._worker = store, layout, worker
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._presence: bytes | None = None
        self._others: dict[int, tuple[Mark, float]] = {}
        self.every = seconds / _BEATS
        """Seconds between two calls of :meth:`beat`."""

    def look(self, marks: Mapping[int, Mark]) -> None:
        """Learn from a listing which leases there are, and which of them changed."""
        now = self._clock()
        with self._lock:
            self._others = {
                unit: before if (before := self._others.get(unit)) and before[0] == mark else (mark, now)
                for unit, mark in marks.items()
                if unit not in self._held
            }

    def is_free(self, unit: int) -> bool:
        """Say whether nobody builds a unit, as far as is known here."""
        with self._lock:
            found = self._others.get(unit)
            return unit not in self._held and (found is None or self._clock() - found[1] >= self._seconds)

    def take(self, unit: int) -> bool:
        """Begin a lease, or take over one that is over; False where somebody else has it."""
        if not self.is_free(unit):
            return False
        data, key = self._content(0, {}), self._key(unit)
        try:
            with self._lock:
                known = unit in self._others
            self._store.swap(key, data, self._store.read(key) if known else None)
        except (VersionConflictError, NotFoundError):
            return False
        with self._lock:
            self._others.pop(unit, None)
            self._held[unit] = _Held(data)
        return True

    def tell(self, unit: int, progress: Mapping[str, int]) -> None:
        """Count what more is done of a unit; the next beat says it."""
        with self._lock:
            if unit in self._held:
                self._held[unit].progress.update(progress)

    def beat(self) -> None:
        """Say that this worker is there, and change all leases that are held; a lost one is held no longer."""
        self._appear()
        with self._lock:
            held = list(self._held.items())
        for number, (unit, lease) in enumerate(held):
            data = self._content(self._clock() + number, lease.progress)
            try:
                self._store.swap(self._key(unit), data, lease.data)
                lease.data = data
            except VersionConflictError:
                with self._lock:
                    self._held.pop(unit, None)
            except StoreError:
                continue  # the next beat comes before the lease is over

    def release(self, unit: int) -> None:
        """End a lease of ours; where that fails, it ends by itself."""
        with self._lock:
            held = self._held.pop(unit, None)
        if held is not None:
            with suppress(StoreError):
                self._store.delete(self._key(unit))

    def _appear(self) -> None:
        """Change the object that says so; one that was taken away, as with the plan, is made again."""
        data, before = self._content(self._clock(), {}), self._presence
        self._presence = None
        with suppress(StoreError, VersionConflictError):
            self._store.swap(self._presence_key, data, before)
            self._presence = data

    @property
    def _presence_key(self) -> str:
        return self._layout.key(f"{WORK}/worker-{self._worker}.json")

    def release_all(self) -> None:
        """End all leases of ours, and be gone."""
        with suppress(StoreError):
            self._store.delete(self._presence_key)
        for unit in list(self._held):
            self.release(unit)

    def _key(self, unit: int) -> str:
        return lease_key(self._layout, unit)

    def _content(self, beat: float, progress: Mapping[str, int]) -> bytes:
        facts = {"worker": self._worker, "beat": round(beat, 3), "progress": dict(progress)}
        return json.dumps(facts, sort_keys=True).encode()


def lease_key(layout: Layout, unit: int) -> str:
    """Return the key of a unit's lease."""
    return layout.key(f"{WORK}/lease-{unit:05d}.json")


def progress_of(store: Store, layout: Layout, unit: int) -> dict[str, int]:
    """Return what a lease says is done of a unit; nothing where it is gone or is no lease."""
    with suppress(StoreError, ValueError, KeyError, TypeError):
        facts: Any = json.loads(store.read(lease_key(layout, unit)))
        return {str(name): int(count) for name, count in facts["progress"].items()}
    return {}

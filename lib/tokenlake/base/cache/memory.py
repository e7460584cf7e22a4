"""A bounded cache in memory, which removes the least recently used entries first."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final, Generic, TypeVar, cast, final

from tokenlake.base.cache.disk import CacheMetadata, Entry
from tokenlake.errors import ConfigError

K = TypeVar("K")
MEMORY_BYTES: Final = 1 << 30


def value_bytes(value: object) -> int:
    """Return about how many bytes of memory a value takes: those of its buffers, else those of its objects."""
    if isinstance(size := getattr(value, "nbytes", None), int):
        return size
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return sys.getsizeof(value) + sum(value_bytes(key) + value_bytes(each) for key, each in pairs)
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(value_bytes, cast("Iterable[object]", value)))
    return sys.getsizeof(value)


@final
class MemoryCache(Generic[K]):
    """A bounded cache in memory; may be used by several threads.

    A value is the very object that was put, not a copy: whoever gets it must not change it.

    Args:
        max_size: entries at most; None for any number.
        max_bytes: of all values together; a value that alone has more is not kept.
        expiry_seconds: after which an entry is a miss; None for never.
        clock: seconds since 1970.
        size_of: bytes of a value.
        first_out: which key goes where there is no room, of all in the order of use; None: the one used longest ago.
        stay: so many of the last entries stay, however large they are.
        lock: that everything is done under, `first_out` included; None: one of its own.

    Raises:
        ConfigError: a bound is negative.
    """

    def __init__(
        self,
        max_size: int | None = 1000,
        max_bytes: int = MEMORY_BYTES,
        expiry_seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
        size_of: Callable[[Any], int] = value_bytes,
        first_out: Callable[[Iterable[K]], K] | None = None,
        stay: int = 0,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if max_bytes < 0 or (max_size is not None and max_size < 0):
            raise ConfigError(
                f"a cache of {max_size} entries and {max_bytes} bytes; expected 0 or more of each"
            )
        self.max_size, self.max_bytes, self._expiry, self._clock = max_size, max_bytes, expiry_seconds, clock
        self._size_of, self._first_out, self._stay = size_of, first_out, stay
        self._lock: Final = Lock() if lock is None else lock
        self._kept: dict[K, tuple[Entry, int]] = {}
        self._under_way: dict[K, Future[Entry]] = {}
        self._held = self._hits = self._misses = 0

    @property
    def held(self) -> int:
        """Bytes of the values that are here."""
        return self._held

    @property
    def kept(self) -> Mapping[K, tuple[Entry, int]]:
        """What is here, each with its bytes, the least recently used first; to be looked at under the lock."""
        return self._kept

    @property
    def under_way(self) -> Mapping[K, object]:
        """What is being computed, to be looked at under the lock."""
        return self._under_way

    @property
    def stats(self) -> dict[str, Any]:
        """Entries and bytes with their bounds, hits, misses, and the share of hits in [0, 1]."""
        with self._lock:
            asked = self._hits + self._misses
            return {
                "size": len(self._kept),
                "max_size": self.max_size,
                "bytes": self._held,
                "max_bytes": self.max_bytes,
                "hits": self._hits,
                "misses": self._misses,
                "hit_rate": self._hits / asked if asked else 0.0,
            }

    def get(self, key: K) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss."""
        found = self.entry(key)
        return None if found is None else found[:2]

    def entry(self, key: K) -> Entry | None:
        """Return what is here of a key, with the time at which it expires; None for a miss."""
        with self._lock:
            return self._find(key)

    def put(
        self, key: K, value: Any, metadata: CacheMetadata | None = None, *, expires: float | None = None
    ) -> None:
        """Keep a value, and let others go where there is no room.

        Args:
            expires: when, in seconds since 1970; None: after `expiry_seconds`.
        """
        with self._lock:
            self._add(key, Entry(value, metadata, expires))

    def compute(self, key: K, make: Callable[[], Entry]) -> Entry:
        """Return the entry of a key, or make and keep it: once, when several threads ask at a time.

        Raises:
            BaseException: whatever `make` raises; nothing is kept then.
        """
        while True:
            with self._lock:
                if (there := self._find(key)) is not None:
                    return there
                if (other := self._under_way.get(key)) is None:
                    own = self._under_way[key] = Future[Entry]()
                    break
            if other.exception() is None:  # else it is tried again here
                with self._lock:
                    self._misses, self._hits = self._misses - 1, self._hits + 1
                return other.result()
        try:
            found = make()
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            own.set_exception(error)
            raise
        with self._lock:
            self._add(key, found)
            del self._under_way[key]
        own.set_result(found)
        return found

    def contains(self, key: K) -> bool:
        """Say whether an entry is here and holds still; that is no use of it."""
        with self._lock:
            return (there := self._kept.get(key)) is not None and self._fresh(there[0])

    def invalidate(self, key: K | None = None) -> None:
        """Let one entry go, or all of them."""
        with self._lock:
            for each in [*self._kept] if key is None else [key]:
                self._forget(each)

    def _find(self, key: K) -> Entry | None:
        there = self._kept.pop(key, None)
        if there is not None and self._fresh(there[0]):
            self._kept[key] = there  # used last
            self._hits += 1
            return there[0]
        self._held -= 0 if there is None else there[1]
        self._misses += 1
        return None

    def _fresh(self, entry: Entry) -> bool:
        return entry.expires is None or self._clock() < entry.expires

    def _add(self, key: K, entry: Entry) -> None:
        self._forget(key)
        size = self._size_of(entry.value)
        if not self._stay and (size > self.max_bytes or self.max_size == 0):
            return
        if entry.expires is None and self._expiry is not None:
            entry = entry._replace(expires=self._clock() + self._expiry)
        self._kept[key] = entry, size
        self._held += size
        most = sys.maxsize if self.max_size is None else self.max_size
        while (self._held > self.max_bytes or len(self._kept) > most) and len(self._kept) > self._stay:
            self._forget(next(iter(self._kept)) if self._first_out is None else self._first_out(self._kept))

    def _forget(self, key: K) -> None:
        if (there := self._kept.pop(key, None)) is not None:
            self._held -= there[1]

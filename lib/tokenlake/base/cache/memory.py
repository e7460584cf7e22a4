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
    """Return the approximate memory of a value in bytes.

    It is that of its buffers, otherwise that of its objects.
    """
    # Arrays and tables know the size of their buffers.
    buffer_bytes = getattr(value, "nbytes", None)
    if isinstance(buffer_bytes, int):
        return buffer_bytes
    total_bytes = sys.getsizeof(value)
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            total_bytes += value_bytes(key) + value_bytes(item)
    elif isinstance(value, list | tuple):
        for item in cast("Iterable[object]", value):
            total_bytes += value_bytes(item)
    return total_bytes


def _least_recently_used(keys: Iterable[K]) -> K:
    """Return the first of the keys, which are in the order of use."""
    return next(iter(keys))


@final
class MemoryCache(Generic[K]):
    """A bounded cache in memory; may be used by several threads.

    A value is the very object that was put, not a copy: whoever gets it must not change
    it.

    Args:
        max_size: Largest number of entries; None for any number.
        max_bytes: Largest size of all values together. A larger value is not kept.
        expiry_seconds: Age at which an entry becomes a miss; None for never.
        clock: Function that returns the seconds since 1970.
        size_of: Function that returns the bytes of a value.
        first_out: Function that chooses the key to remove, of all keys in the order of
            use; None for the least recently used one.
        stay: Number of the last entries that stay, however large they are.
        lock: Lock of all operations, `first_out` included; None for an own one.

    Raises:
        ConfigError: A bound is negative.
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
        self.max_size = max_size
        self.max_bytes = max_bytes
        self._expiry = expiry_seconds
        self._clock = clock
        self._size_of = size_of
        self._first_out = first_out or _least_recently_used
        self._stay = stay
        self._lock: Final = Lock() if lock is None else lock
        # Entries by key in the order of use, entries that are being made, and counters.
        self._kept: dict[K, tuple[Entry, int]] = {}
        self._under_way: dict[K, Future[Entry]] = {}
        self._held = 0
        self._hits = 0
        self._misses = 0

    @property
    def held(self) -> int:
        """Bytes of the values that are here."""
        return self._held

    @property
    def kept(self) -> Mapping[K, tuple[Entry, int]]:
        """Entries and their bytes by key, the least recently used first.

        They are to be read under the lock.
        """
        return self._kept

    @property
    def under_way(self) -> Mapping[K, object]:
        """Keys whose values are being computed; to be read under the lock."""
        return self._under_way

    @property
    def stats(self) -> dict[str, Any]:
        """Entries and bytes with their bounds, hits, misses, and the share of hits."""
        with self._lock:
            lookups = self._hits + self._misses
            return {
                "size": len(self._kept),
                "max_size": self.max_size,
                "bytes": self._held,
                "max_bytes": self.max_bytes,
                "hits": self._hits,
                "misses": self._misses,
                "hit_rate": self._hits / lookups if lookups else 0.0,
            }

    def get(self, key: K) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss."""
        entry = self.entry(key)
        if entry is None:
            return None
        return entry.value, entry.metadata

    def entry(self, key: K) -> Entry | None:
        """Return the entry of a key, with its time of expiry; None for a miss."""
        with self._lock:
            return self._find(key)

    def put(
        self,
        key: K,
        value: Any,
        metadata: CacheMetadata | None = None,
        *,
        expires: float | None = None,
    ) -> None:
        """Keep a value, and remove others where the room does not suffice.

        Args:
            key: Key of the value.
            value: Value, which is not copied.
            metadata: Metadata of the value.
            expires: Time of expiry in seconds since 1970; None for `expiry_seconds`
                from now.
        """
        with self._lock:
            self._add(key, Entry(value, metadata, expires))

    def compute(self, key: K, make: Callable[[], Entry]) -> Entry:
        """Return the entry of a key, or make and keep it.

        It is made once if several threads ask at the same time.

        Args:
            key: Key of the entry.
            make: Function that makes the entry.

        Raises:
            BaseException: The error of `make`; nothing is kept then.
        """
        # 1. An entry that is there, or the right to make it.
        while True:
            with self._lock:
                entry = self._find(key)
                if entry is not None:
                    return entry
                running_task = self._under_way.get(key)
                if running_task is None:
                    own_task = Future[Entry]()
                    self._under_way[key] = own_task
                    break
            # Another thread makes the entry. If it fails, this thread tries again.
            if running_task.exception() is None:
                with self._lock:
                    self._misses -= 1
                    self._hits += 1
                return running_task.result()
        # 2. The entry is made without the lock: it may take long.
        try:
            entry = make()
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            own_task.set_exception(error)
            raise
        with self._lock:
            self._add(key, entry)
            del self._under_way[key]
        own_task.set_result(entry)
        return entry

    def contains(self, key: K) -> bool:
        """Return whether the cache has an entry that has not expired.

        This does not count as a use.
        """
        with self._lock:
            entry_and_size = self._kept.get(key)
            return entry_and_size is not None and self._is_fresh(entry_and_size[0])

    def invalidate(self, key: K | None = None) -> None:
        """Remove one entry, or all of them."""
        with self._lock:
            keys = list(self._kept) if key is None else [key]
            for removed_key in keys:
                self._remove(removed_key)

    def _find(self, key: K) -> Entry | None:
        """Return the entry of a key and make it the last used one.

        An expired entry is removed.
        """
        entry_and_size = self._kept.pop(key, None)
        if entry_and_size is None:
            self._misses += 1
            return None
        entry, entry_bytes = entry_and_size
        if not self._is_fresh(entry):
            self._held -= entry_bytes
            self._misses += 1
            return None
        self._kept[key] = entry_and_size  # the last key is the last used one
        self._hits += 1
        return entry

    def _is_fresh(self, entry: Entry) -> bool:
        return entry.expires is None or self._clock() < entry.expires

    def _add(self, key: K, entry: Entry) -> None:
        """Keep an entry in place of an older one, and remove others to keep the bounds."""
        self._remove(key)
        entry_bytes = self._size_of(entry.value)
        # A value that would have to go at once is not kept, and removes nothing.
        if not self._stay and (entry_bytes > self.max_bytes or self.max_size == 0):
            return
        if entry.expires is None and self._expiry is not None:
            entry = entry._replace(expires=self._clock() + self._expiry)
        self._kept[key] = entry, entry_bytes
        self._held += entry_bytes
        max_size = sys.maxsize if self.max_size is None else self.max_size
        while len(self._kept) > self._stay:
            is_too_large = self._held > self.max_bytes or len(self._kept) > max_size
            if not is_too_large:
                break
            self._remove(self._first_out(self._kept))

    def _remove(self, key: K) -> None:
        """Remove an entry, if there is one."""
        entry_and_size = self._kept.pop(key, None)
        if entry_and_size is not None:
            _, entry_bytes = entry_and_size
            self._held -= entry_bytes

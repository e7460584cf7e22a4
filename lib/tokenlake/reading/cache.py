"""Decoded row groups, kept as long as they fit, and an account of what was decoded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Generic, TypeVar, final

import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.reading.packed import PackedGroup
from tokenlake.reading.ragged_rows import RaggedGroup
from tokenlake.reading.version import StoredRows

K = TypeVar("K")
T = TypeVar("T", pa.RecordBatch, PackedGroup, PackedGroup | RaggedGroup)
Group = tuple[StoredRows, int]
"""A dataset, and the number of a row group."""


@final
@dataclass(frozen=True, slots=True)
class Decoded:
    """What a cache has done.

    Attributes:
        hits: row groups that were asked for and were there.
        groups, rows: decoded, once for each time.
        bytes: of the decoded row groups in memory.
        seconds: that threads spent on reading and decoding, summed over them.
    """

    hits: int = 0
    groups: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = field(default=0.0, compare=False)

    def __add__(self, other: Decoded) -> Decoded:
        hits, groups, rows = self.hits + other.hits, self.groups + other.groups, self.rows + other.rows
        return Decoded(hits, groups, rows, self.bytes + other.bytes, self.seconds + other.seconds)


@final
class GroupCache(Generic[K, T]):
    """Decoded row groups; may be used by several threads.

    One that two threads ask for at once is decoded by one of them, and the other waits.

    Args:
        max_bytes: of decoded row groups; the last one stays, however large.
        decode: makes of a key what is kept.
        first_out: which of those that are kept goes where there is no room, in the order in which they were used; None:
            the one that was used longest ago.
        lock: that `first_out` is called under; None: one of its own.
    """

    def __init__(
        self,
        max_bytes: int,
        decode: Callable[[K], T],
        *,
        first_out: Callable[[Iterable[K]], K] | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if max_bytes < 0:
            raise ConfigError(f"a cache of {max_bytes} bytes; expected 0 or more")
        self.max_bytes, self._decode, self._first_out = max_bytes, decode, first_out
        self._lock: Final = Lock() if lock is None else lock
        self._decoded = Decoded()
        self._held, self._kept = 0, dict[K, T]()
        self._under_way: dict[K, Future[T]] = {}

    @property
    def decoded(self) -> Decoded:
        """What was done so far."""
        return self._decoded

    @property
    def held(self) -> int:
        """Bytes of decoded row groups that are kept."""
        return self._held

    @property
    def kept(self) -> Mapping[K, T]:
        """What is here, to be looked at under the lock."""
        return self._kept

    @property
    def under_way(self) -> Mapping[K, object]:
        """What is being decoded, to be looked at under the lock."""
        return self._under_way

    def read(self, key: K) -> T:
        """Return a row group, decoded before or now; errors are those of decoding it."""
        while True:
            with self._lock:
                if (there := self._kept.pop(key, None)) is not None:
                    self._kept[key] = there  # used last
                    return self._hit(there)
                if (other := self._under_way.get(key)) is None:
                    own = self._under_way[key] = Future[T]()
                    break
            if other.exception() is None:  # else it is tried again here
                with self._lock:
                    return self._hit(other.result())
        return self._decode_now(key, own)

    def hit(self, count: int) -> None:
        """Account for row groups that were found in :attr:`kept`; under the lock."""
        self._decoded += Decoded(hits=count)

    def drop(self, key: K) -> None:
        """Let go of one row group, if it is here; the account goes on."""
        with self._lock:
            self._forget(key)

    def clear(self) -> None:
        """Let go of all row groups; the account goes on."""
        with self._lock:
            self._kept.clear()
            self._held = 0

    def _decode_now(self, key: K, promise: Future[T]) -> T:
        began = time.perf_counter()
        try:
            found = self._decode(key)
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            promise.set_exception(error)
            raise
        with self._lock:
            self._keep(key, found, time.perf_counter() - began)
            del self._under_way[key]
        promise.set_result(found)
        return found

    def _keep(self, key: K, found: T, seconds: float) -> None:
        rows, size = measure(found)
        self._decoded += Decoded(0, 1, rows, size, seconds)
        self._kept[key] = found
        self._held += size
        while self._held > self.max_bytes and len(self._kept) > 1:
            self._forget(next(iter(self._kept)) if self._first_out is None else self._first_out(self._kept))

    def _forget(self, key: K) -> None:
        if (found := self._kept.pop(key, None)) is not None:
            self._held -= measure(found)[1]

    def _hit(self, found: T) -> T:
        self.hit(1)
        return found


def batch_cache(max_bytes: int) -> GroupCache[Group, pa.RecordBatch]:
    """Return a cache of whole rows, all columns as stored."""
    return GroupCache(max_bytes, lambda key: key[0].read(key[1]))


def measure(found: pa.RecordBatch | PackedGroup | RaggedGroup) -> tuple[int, int]:
    """Return rows and bytes of a decoded row group."""
    if isinstance(found, PackedGroup | RaggedGroup):
        return found.rows, found.nbytes
    return found.num_rows, found.get_total_buffer_size()

"""Cache of decoded row groups, and counts of the decoded row groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar, final

import pyarrow as pa

from tokenlake.base.cache.disk import Entry
from tokenlake.base.cache.manager import MemoryCache
from tokenlake.runtime.reading.packed import PackedGroup
from tokenlake.runtime.reading.ragged_rows import RaggedGroup
from tokenlake.runtime.reading.version import StoredRows

K = TypeVar("K")
T = TypeVar("T", pa.RecordBatch, PackedGroup, PackedGroup | RaggedGroup)
Group = tuple[StoredRows, int]
"""Dataset and number of a row group."""


@final
@dataclass(frozen=True, slots=True)
class Decoded:
    """Work of a cache.

    Attributes:
        hits: Number of requested row groups that were in the cache.
        groups: Number of decoded row groups; one that was decoded twice counts twice.
        rows: Number of rows in them.
        bytes: Number of bytes in memory that they took.
        seconds: Time that threads spent on reading and decoding, summed over the
            threads.
    """

    hits: int = 0
    groups: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = field(default=0.0, compare=False)

    def __add__(self, other: Decoded) -> Decoded:
        return Decoded(
            hits=self.hits + other.hits,
            groups=self.groups + other.groups,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            seconds=self.seconds + other.seconds,
        )


@final
class GroupCache(Generic[K, T]):
    """Cache of decoded row groups. It may be used by several threads.

    A row group that two threads request at once is decoded by one of them, and the
    other waits.

    Args:
        max_bytes: Limit of the decoded row groups in bytes; the last one stays, however
            large it is.
        decode: Function that decodes the row group of a key.
        first_out: Function that chooses the key to remove where space is needed, from
            the keys in the order of their last use; None to remove the one that was
            used longest ago.
        lock: Lock that is held while `first_out` is called; None for a lock of the
            cache.
    """

    def __init__(
        self,
        max_bytes: int,
        decode: Callable[[K], T],
        *,
        first_out: Callable[[Iterable[K]], K] | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._decode = decode
        self._groups: MemoryCache[K] = MemoryCache(
            None,
            max_bytes,
            size_of=lambda group: measure(group)[1],
            first_out=first_out,
            stay=1,
            lock=lock,
        )
        self._decoded = Decoded()
        self._counted_hits = 0
        self._counting = Lock()

    @property
    def decoded(self) -> Decoded:
        """Work of the cache so far."""
        return self._decoded + Decoded(
            hits=self._groups.stats["hits"] + self._counted_hits
        )

    @property
    def groups(self) -> MemoryCache[K]:
        """Row groups in the cache, and those that are being decoded."""
        return self._groups

    def read(self, key: K) -> T:
        """Return a decoded row group; the errors are those of decoding it."""
        return self._groups.compute(key, lambda: self._decode_now(key)).value

    def hit(self, count: int) -> None:
        """Count row groups that a caller found in :attr:`groups`.

        The caller must hold their lock.
        """
        self._counted_hits += count

    def _decode_now(self, key: K) -> Entry:
        # Threads decode at the same time; only the sums need the lock.
        start = time.perf_counter()
        group = self._decode(key)
        rows, size = measure(group)
        seconds = time.perf_counter() - start
        with self._counting:
            self._decoded += Decoded(groups=1, rows=rows, bytes=size, seconds=seconds)
        return Entry(group)


def batch_cache(max_bytes: int) -> GroupCache[Group, pa.RecordBatch]:
    """Return a cache of row groups with all columns as stored.

    Args:
        max_bytes: Limit of the decoded row groups in bytes.
    """
    return GroupCache(max_bytes, lambda key: key[0].read(key[1]))


def measure(group: pa.RecordBatch | PackedGroup | RaggedGroup) -> tuple[int, int]:
    """Return the number of rows and of bytes of a decoded row group."""
    if isinstance(group, PackedGroup | RaggedGroup):
        return group.rows, group.nbytes
    return group.num_rows, group.get_total_buffer_size()

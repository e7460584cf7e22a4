"""Decoded row groups that are kept in memory, and counts of what was decoded."""

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
        self._decode = decode
        self._groups: MemoryCache[K] = MemoryCache(
            None, max_bytes, size_of=lambda found: measure(found)[1], first_out=first_out, stay=1, lock=lock
        )
        self._decoded, self._found, self._counting = Decoded(), 0, Lock()

    @property
    def decoded(self) -> Decoded:
        """What was done so far."""
        return self._decoded + Decoded(hits=self._groups.stats["hits"] + self._found)

    @property
    def groups(self) -> MemoryCache[K]:
        """What is here, and what is being decoded."""
        return self._groups

    def read(self, key: K) -> T:
        """Return a row group, decoded before or now; errors are those of decoding it."""
        return self._groups.compute(key, lambda: self._decode_now(key)).value

    def hit(self, count: int) -> None:
        """Account for row groups that were found in :attr:`groups`; under its lock."""
        self._found += count

    def _decode_now(self, key: K) -> Entry:
        began = time.perf_counter()
        found = self._decode(key)
        rows, size = measure(found)
        with self._counting:
            self._decoded += Decoded(0, 1, rows, size, time.perf_counter() - began)
        return Entry(found)


def batch_cache(max_bytes: int) -> GroupCache[Group, pa.RecordBatch]:
    """Return a cache of whole rows, all columns as stored."""
    return GroupCache(max_bytes, lambda key: key[0].read(key[1]))


def measure(found: pa.RecordBatch | PackedGroup | RaggedGroup) -> tuple[int, int]:
    """Return rows and bytes of a decoded row group."""
    if isinstance(found, PackedGroup | RaggedGroup):
        return found.rows, found.nbytes
    return found.num_rows, found.get_total_buffer_size()

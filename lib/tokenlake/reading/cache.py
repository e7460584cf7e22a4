"""Decoded row groups, kept as long as they fit, and an account of what was decoded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar, final, overload

import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.reading.version import StoredRows

T = TypeVar("T")
_Key = tuple[StoredRows, int]


def _batch_size(batch: pa.RecordBatch) -> int:
    return batch.get_total_buffer_size()


@final
@dataclass(frozen=True, slots=True)
class Decoded:
    """What a cache has done.

    Attributes:
        hits: row groups that were asked for and were there.
        groups, rows: decoded, once for each time.
        bytes: of the decoded row groups in memory.
    """

    hits: int = 0
    groups: int = 0
    rows: int = 0
    bytes: int = 0

    def plus(self, rows: int, size: int) -> Decoded:
        """Return the account with one more row group decoded."""
        return Decoded(self.hits, self.groups + 1, self.rows + rows, self.bytes + size)


@final
class GroupCache(Generic[T]):
    """The row groups that were used last, of any number of sources; may be used by several threads.

    A row group that two threads ask for at once is decoded by one of them, and the other waits.

    Args:
        max_bytes: of decoded row groups; the one used last stays, however large.
        decode: makes of a source and the number of a row group what is kept; whole rows where it is left out.
        size: bytes of what `decode` gave.
    """

    @overload
    def __init__(self: GroupCache[pa.RecordBatch], max_bytes: int) -> None: ...
    @overload
    def __init__(
        self, max_bytes: int, decode: Callable[[StoredRows, int], T], size: Callable[[T], int]
    ) -> None: ...

    def __init__(
        self,
        max_bytes: int,
        decode: Callable[..., Any] = StoredRows.read,
        size: Callable[..., int] = _batch_size,
    ) -> None:
        if max_bytes < 0:
            raise ConfigError(f"a cache of {max_bytes} bytes; expected 0 or more")
        self._max_bytes, self._decode, self._size = max_bytes, decode, size
        self._held = 0
        self._decoded = Decoded()
        self._kept: OrderedDict[_Key, tuple[T, int]] = OrderedDict()
        self._under_way: dict[_Key, Future[T]] = {}
        self._lock = Lock()

    @property
    def decoded(self) -> Decoded:
        """What was done so far."""
        return self._decoded

    @property
    def held(self) -> int:
        """Bytes of decoded row groups that are kept."""
        return self._held

    def read(self, rows: StoredRows, group: int) -> T:
        """Return a row group, decoded before or now; errors are those of decoding it."""
        key = (rows, group)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                self._count_hit()
                return self._kept[key][0]
            other = self._under_way.get(key)
            own = self._under_way[key] = Future() if other is None else other
            if other is not None:
                self._count_hit()
        return own.result() if other is not None else self._decode_now(key, own)

    def drop(self, rows: StoredRows, group: int) -> None:
        """Let go of one row group, if it is here; the account goes on."""
        with self._lock:
            if (found := self._kept.pop((rows, group), None)) is not None:
                self._held -= found[1]

    def clear(self) -> None:
        """Let go of all row groups; the account goes on."""
        with self._lock:
            self._kept.clear()
            self._held = 0

    def _decode_now(self, key: _Key, promise: Future[T]) -> T:
        rows, group = key
        try:
            found: T = self._decode(rows, group)
            size = self._size(found)
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            promise.set_exception(error)
            raise
        with self._lock:
            self._keep(key, found, size)
            del self._under_way[key]
        promise.set_result(found)
        return found

    def _keep(self, key: _Key, found: T, size: int) -> None:
        rows, group = key
        self._decoded = self._decoded.plus(int(rows.group_rows[group]), size)
        self._kept[key] = (found, size)
        self._held += size
        while self._held > self._max_bytes and len(self._kept) > 1:
            self._held -= self._kept.popitem(last=False)[1][1]

    def _count_hit(self) -> None:
        done = self._decoded
        self._decoded = Decoded(done.hits + 1, done.groups, done.rows, done.bytes)

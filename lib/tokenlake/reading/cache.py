"""Decoded row groups, kept as long as they fit, and an account of what was decoded."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import final

import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.reading.version import StoredRows

_Key = tuple[StoredRows, int]


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

    def plus(self, batch: pa.RecordBatch, size: int) -> Decoded:
        """Return the account with one more row group decoded."""
        return Decoded(self.hits, self.groups + 1, self.rows + batch.num_rows, self.bytes + size)


@final
class GroupCache:
    """The row groups that were used last, of any number of sources; may be used by several threads.

    A row group that two threads ask for at once is decoded by one of them, and the other waits.

    Args:
        max_bytes: of decoded row groups; the one used last stays, however large.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ConfigError(f"a cache of {max_bytes} bytes; expected 0 or more")
        self._max_bytes = max_bytes
        self._held = 0
        self._decoded = Decoded()
        self._batches: OrderedDict[_Key, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._under_way: dict[_Key, Future[pa.RecordBatch]] = {}
        self._lock = Lock()

    @property
    def decoded(self) -> Decoded:
        """What was done so far."""
        return self._decoded

    @property
    def held(self) -> int:
        """Bytes of decoded row groups that are kept."""
        return self._held

    def read(self, rows: StoredRows, group: int) -> pa.RecordBatch:
        """Return a row group, decoded before or now; errors are those of :meth:`StoredRows.read`."""
        key = (rows, group)
        with self._lock:
            if key in self._batches:
                self._batches.move_to_end(key)
                self._count_hit()
                return self._batches[key][0]
            other = self._under_way.get(key)
            own = self._under_way[key] = Future() if other is None else other
            if other is not None:
                self._count_hit()
        return own.result() if other is not None else self._decode(key, own)

    def drop(self, rows: StoredRows, group: int) -> None:
        """Let go of one row group, if it is here; the account goes on."""
        with self._lock:
            if (found := self._batches.pop((rows, group), None)) is not None:
                self._held -= found[1]

    def clear(self) -> None:
        """Let go of all row groups; the account goes on."""
        with self._lock:
            self._batches.clear()
            self._held = 0

    def _decode(self, key: _Key, promise: Future[pa.RecordBatch]) -> pa.RecordBatch:
        rows, group = key
        try:
            batch = rows.read(group)
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            promise.set_exception(error)
            raise
        with self._lock:
            self._keep(key, batch)
            del self._under_way[key]
        promise.set_result(batch)
        return batch

    def _keep(self, key: _Key, batch: pa.RecordBatch) -> None:
        size = batch.get_total_buffer_size()
        self._decoded = self._decoded.plus(batch, size)
        self._batches[key] = (batch, size)
        self._held += size
        while self._held > self._max_bytes and len(self._batches) > 1:
            self._held -= self._batches.popitem(last=False)[1][1]

    def _count_hit(self) -> None:
        done = self._decoded
        self._decoded = Decoded(done.hits + 1, done.groups, done.rows, done.bytes)

"""Open Parquet files: each is used by one thread at a time, and a few stay open for the next."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import BinaryIO, Final, final

import pyarrow.parquet as pq

from tokenlake.reading.shardfile import ShardFile

KEPT_OPEN: Final = 16


@final
@dataclass(slots=True)
class _Opened:
    shard: int
    stream: BinaryIO
    file: pq.ParquetFile | None = None

    def parquet(self) -> pq.ParquetFile:
        """Return it as Parquet; its footer is read the first time."""
        if self.file is None:
            self.file = ShardFile(self.stream)
        return self.file


@final
class OpenFiles:
    """The shards of a version that are open and idle, the one used last at the end.

    Args:
        open_shard: opens a shard by its number, seekable.
        kept: how many idle ones stay open.
    """

    def __init__(self, open_shard: Callable[[int], BinaryIO], *, kept: int = KEPT_OPEN) -> None:
        self._open, self._kept, self._lock, self._tickets = open_shard, kept, Lock(), count()
        self._idle: OrderedDict[int, _Opened] = OrderedDict()
        # Where nobody closes the rows, the files are closed when nobody can read them any more.
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def borrow(self, shard: int) -> Generator[pq.ParquetFile]:
        """Give a shard's file to this thread alone; after an error it is closed instead of kept."""
        with self._borrowed(shard) as opened:
            yield opened.parquet()

    @contextlib.contextmanager
    def borrow_stream(self, shard: int) -> Generator[BinaryIO]:
        """Give a shard's stream to this thread alone, wherever it stands; as :meth:`borrow`. It may be closed."""
        with self._borrowed(shard) as opened:
            yield opened.stream

    def close(self) -> None:
        """Close what is idle; the files can be borrowed again."""
        with self._lock:
            _close_all(self._idle)

    def _take(self, shard: int) -> _Opened | None:
        with self._lock:
            tickets = [ticket for ticket, opened in self._idle.items() if opened.shard == shard]
            return self._idle.pop(tickets[-1]) if tickets else None

    @contextlib.contextmanager
    def _borrowed(self, shard: int) -> Generator[_Opened]:
        opened = self._take(shard) or _Opened(shard, self._open(shard))
        try:
            yield opened
        except BaseException:
            opened.stream.close()
            raise
        if not opened.stream.closed:
            self._put(opened)

    def _put(self, opened: _Opened) -> None:
        with self._lock:
            self._idle[next(self._tickets)] = opened
            oldest = self._idle.popitem(last=False)[1] if len(self._idle) > self._kept else None
        if oldest is not None:
            oldest.stream.close()


def _close_all(idle: OrderedDict[int, _Opened]) -> None:
    while idle:
        idle.popitem()[1].stream.close()

"""Bytes of shards by their place, for any number of threads at once.

A file of this machine is read through its descriptor: a positional read moves nothing that threads share, so that one
descriptor serves them all. What the store opens otherwise is a stream that one thread uses at a time.
"""

from __future__ import annotations

import io
import os
import weakref
from collections import OrderedDict
from threading import Lock
from typing import BinaryIO, Final, final

from tokenlake.reading.files import OpenFiles
from tokenlake.reading.footer import Footer

KEPT_OPEN: Final = 32  # of each of the datasets of a mixture; a process may have some 1,000 files open


@final
class Descriptor:
    """A file of this machine; closed when nobody holds this any more.

    Attributes:
        size: bytes of the file.
        footer: what was read of it, for whoever needs it.
    """

    def __init__(self, stream: io.FileIO) -> None:
        self._number = os.dup(stream.fileno())
        weakref.finalize(self, os.close, self._number)
        self.size = os.fstat(self._number).st_size
        self.footer: Footer | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        data = os.pread(self._number, size, offset)
        while len(data) < size:
            # One read gives at most 2 GiB.
            more = os.pread(self._number, size - len(data), offset + len(data))
            if not more:
                raise _too_short(offset, size, len(data))
            data += more
        return data


@final
class Streamed:
    """A shard that is read through streams; attributes as of :class:`Descriptor`."""

    def __init__(self, files: OpenFiles, shard: int, size: int) -> None:
        self._files, self._shard, self.size = files, shard, size
        self.footer: Footer | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        with self._files.borrow_stream(self._shard) as stream:
            stream.seek(offset)
            data = stream.read(size)
            if len(data) != size:
                raise _too_short(offset, size, len(data))
        return data


@final
class Ranges:
    """The shards of a version whose bytes were read last.

    Args:
        files: opens them.
        kept: how many stay open as descriptors.
    """

    def __init__(self, files: OpenFiles, *, kept: int = KEPT_OPEN) -> None:
        self._files, self._kept, self._lock = files, kept, Lock()
        self._open: OrderedDict[int, Descriptor | Streamed] = OrderedDict()
        self._footers: dict[int, Footer] = {}

    def of(self, shard: int) -> tuple[Descriptor | Streamed, Footer]:
        """Return a shard and its footer, which is read once.

        Raises:
            ValueError: it has no footer, or not one that can be.
        """
        source = self._source(shard)
        if source.footer is None:
            known = self._footers.get(shard)
            # A file that was closed meanwhile may have been replaced; an object of a remote store is created once.
            if known is None or (isinstance(source, Descriptor) and not known.is_of(source)):
                known = self._footers[shard] = Footer.read(source)
            source.footer = known
        return source, source.footer

    def close(self, shard: int | None = None) -> None:
        """Let go of one shard or of all; who reads one just now reads on."""
        with self._lock:
            if shard is None:
                self._open.clear()
            else:
                self._open.pop(shard, None)

    def _source(self, shard: int) -> Descriptor | Streamed:
        with self._lock:
            if (found := self._open.get(shard)) is not None:
                self._open.move_to_end(shard)
                return found
        opened = self._opened(shard)
        with self._lock:
            self._open[shard] = opened
            if len(self._open) > self._kept:
                self._open.popitem(last=False)
        return opened

    def _opened(self, shard: int) -> Descriptor | Streamed:
        with self._files.borrow_stream(shard) as stream:
            if (file := _file(stream)) is not None:
                found = Descriptor(file)
                stream.close()
                return found
            return Streamed(self._files, shard, stream.seek(0, io.SEEK_END))


def _file(stream: BinaryIO) -> io.FileIO | None:
    raw = stream.raw if isinstance(stream, io.BufferedReader) else stream
    return raw if isinstance(raw, io.FileIO) and hasattr(os, "pread") else None


def _too_short(offset: int, size: int, found: int) -> ValueError:
    return ValueError(f"the file ends {size - found} bytes before byte {offset + size}")

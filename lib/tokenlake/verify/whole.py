"""A file of a version, read whole once: its size, its sha256, and its bytes to be looked into.

What is decoded was compared with its hash before: decoders of Parquet are written for files that are whole. A file of
this machine is read again from the page cache; what lies elsewhere is kept in a nameless file of the local disk
meanwhile, so that it is fetched once and memory does not depend on its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast, final

from tokenlake.storage.base import ReadStore

_NEAR: Final = 1 << 20  # bytes read at once: they stay in the processor's cache until they are hashed
_FAR: Final = 8 << 20  # where each read is a request


@final
@dataclass(frozen=True, slots=True)
class Whole:
    """A file that was read.

    Attributes:
        size: in bytes.
        sha256: hex; None where the size is not the wanted one, and nothing was read.
        stream: its bytes, at the beginning; only where they are to be looked into.
    """

    size: int
    sha256: str | None
    stream: BinaryIO | None


@contextlib.contextmanager
def read_whole(
    store: ReadStore, key: str, size: int, *, keep: bool, on_read: Callable[[int], None]
) -> Generator[Whole]:
    """Read a file.

    Args:
        size: it should have.
        keep: whether its bytes are looked into.
        on_read: called with the size of each piece; what it raises ends the reading.

    Raises:
        NotFoundError: there is none.
        StoreError: it cannot be read.
    """
    # Without size and hash: what is stored is asked for, and no copy of it.
    with contextlib.ExitStack() as held:
        stream = held.enter_context(contextlib.closing(store.open(key)))
        near = isinstance(stream, io.BufferedReader)
        if (found := stream.seek(0, io.SEEK_END)) != size:
            yield Whole(found, None, None)
            return
        stream.seek(0)
        spool = None if near or not keep else cast("BinaryIO", held.enter_context(tempfile.TemporaryFile()))
        sha256 = _hashed(stream, size, _NEAR if near else _FAR, spool, on_read)
        kept = stream if spool is None else spool
        kept.seek(0)
        yield Whole(size, sha256, kept if keep else None)


def _hashed(
    stream: BinaryIO, size: int, piece: int, spool: BinaryIO | None, on_read: Callable[[int], None]
) -> str:
    # The buffer of the stream would only be filled to be copied from.
    source: Any = stream.raw if isinstance(stream, io.BufferedReader) else stream
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(piece, size + 1)))
    done = 0
    # A byte too many is enough: a file that grows while it is read is not read for ever.
    while done <= size and (count := source.readinto(buffer)):
        digest.update(buffer[:count])
        if spool is not None:
            spool.write(buffer[:count])
        done += count
        on_read(count)
    return digest.hexdigest()

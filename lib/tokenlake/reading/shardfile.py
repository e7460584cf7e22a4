"""A shard as Parquet, for what Arrow decodes of it: checksums are verified, and bombs are not decoded.

Whoever writes a manifest writes its hashes, too: that a shard is what its manifest says makes it no shard of ours. 500
bytes can stand for 10 GB, in a dictionary, in runs, or in a page that is all zeros. So before a row group is decoded
the headers of its pages are looked at, which is what the decoder will believe; and the footer, which counts the pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NoReturn, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.reading.bombs import check_unfolded
from tokenlake.reading.footer import Footer
from tokenlake.reading.pageheaders import DELTA_BYTE_ARRAY, Page, walk_chunk

_WIDTHS: Final = (
    1,
    4,
    8,
    12,
    4,
    8,
    0,
    0,
)  # bytes of a value, by Parquet's number of its type; 0: as long as it is
_AHEAD: Final = 4096
_LEVELS: Final = 4  # bytes of the two levels of a value


@final
class ShardFile(pq.ParquetFile):
    """A ParquetFile whose row groups are looked at before they are decoded.

    Args:
        stream: seekable. Where it is of this machine, page headers are looked at; of a stream from elsewhere each would
            cost a request, and no more than the sum of the footer is.
    """

    def __init__(self, stream: BinaryIO) -> None:
        # A footer is small; the pages of a row group are read when it is, without keeping them.
        super().__init__(stream, page_checksum_verification=True, pre_buffer=False)
        self._local = _local(stream)
        self._footer: Footer | None = None

    def read_row_group(
        self,
        i: int,
        columns: Iterable[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Decode a row group.

        Raises:
            ValueError: what it unfolds to cannot be what was written, or there is no such row group.
            pa.ArrowException, OSError: it is damaged.
        """
        self._look_at([i])
        wanted = None if columns is None else list(columns)
        return super().read_row_group(i, wanted, use_threads, use_pandas_metadata)

    def read_row_groups(
        self,
        row_groups: Iterable[int],
        columns: Iterable[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Decode row groups together; as :meth:`read_row_group`."""
        groups = list(row_groups)
        self._look_at(groups)
        wanted = None if columns is None else list(columns)
        return super().read_row_groups(groups, wanted, use_threads, use_pandas_metadata)

    def read(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a shard is read by row groups."""
        raise TypeError(
            "a shard is not read whole: expected read_row_group or read_row_groups, which look at pages first"
        )

    iter_batches = read

    @property
    def footer(self) -> Footer:
        """What the footer says of places.

        Raises:
            ValueError: it is damaged, or the file is not of this machine.
        """
        if self._local is None:
            raise ValueError("the places of a file that is not of this machine are not looked at")
        self._footer = self._footer or Footer.read(self._local)
        return self._footer

    def _look_at(self, groups: Sequence[int]) -> None:
        for group in groups:
            if not 0 <= group < self.num_row_groups:
                raise ValueError(f"there is no row group {group}; it has {self.num_row_groups}")
            if self._local is None:
                check_unfolded(self.metadata.row_group(group).total_byte_size, 0)
            else:
                _check(self.footer, group, self._local)


@final
class _Local:
    """The bytes of an open file of this machine; nothing of what it shares with its stream is moved."""

    def __init__(self, number: int) -> None:
        self._number, self.size = number, os.fstat(number).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        return os.pread(self._number, size, offset)


@final
class _Window:
    """The bytes of a file, read a little further than is asked for: the small columns of a row group lie together."""

    def __init__(self, file: _Local) -> None:
        self._file, self._begin, self._held = file, 0, b""

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        at = offset - self._begin
        if not 0 <= at <= len(self._held) - size:
            self._begin, self._held, at = offset, self._file.read(offset, max(size, _AHEAD)), 0
        return self._held[at : at + size]


def _local(stream: BinaryIO) -> _Local | None:
    try:
        return _Local(stream.fileno())
    except (AttributeError, OSError):
        return None


def _check(footer: Footer, group: int, file: _Local) -> None:
    if group >= len(footer.facts):
        raise ValueError(f"there is no row group {group}")
    stored, decoded, window = 0, 0, _Window(file)
    # Not Arrow's own account of the columns: of a damaged footer it ends the process.
    for kind, values, size, begin in footer.facts[group].tolist():
        pages = walk_chunk(window.read, begin, size, values)
        stored += size
        for page_bytes in _unfolded(pages, _WIDTHS[kind] if 0 <= kind < len(_WIDTHS) else 0):
            decoded += page_bytes
            check_unfolded(decoded, stored)


def _unfolded(pages: Iterable[Page], width: int) -> Iterator[int]:
    """Yield of each page at most how many bytes it decodes to; an entry of a dictionary is at most all of it."""
    entry = 0
    for page in pages:
        if page.dictionary:
            entry = max(entry, width or page.size)
        # Where values share the beginning of the one before, each may be as long as all that is written of them.
        each = entry if page.indices else page.size if page.encoding == DELTA_BYTE_ARRAY else width
        yield max(page.size, page.values * (each + _LEVELS))

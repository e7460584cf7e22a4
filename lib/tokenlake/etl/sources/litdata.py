"""Chunks of litdata (``.bin``), whose items ``index.json`` describes.

Items are the ids of a document each (``TokensLoader``), or dictionaries of arrays. Both
kinds are read as records. The name of the ids of a ``TokensLoader`` is ``input_ids``.
See :mod:`tokenlake.etl.layouts.litdata` for the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import DamagedFileError
from tokenlake.etl.layouts import litdata as layout
from tokenlake.etl.sources.byte_stream import FREE_BYTES
from tokenlake.etl.sources.id_records import RecordFile, joined_bytes
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.numbered_records import (
    NumberedRecords,
    Numbers,
    id_batch,
    index_of,
)
from tokenlake.etl.sources.parsed import Want


def open_litdata(data: InputBytes, want: Want) -> LitdataRecords:
    """Return the items of a chunk, which `want` has the open index of."""
    return LitdataRecords(data, index_of(data.file, want, layout.INDEX))


@final
class LitdataRecords(NumberedRecords):
    """The items of a chunk.

    Args:
        data: The open chunk.
        index: The open ``index.json``.

    Raises:
        DamagedFileError: The index cannot be read or does not agree with the chunk, or
            the chunk is cut.
        UnsuitableFileError: The chunks are compressed in another form than zstd of
            whole chunks.
    """

    def __init__(self, data: InputBytes, index: InputBytes) -> None:
        self._data = data
        index_bytes = index.pread(index.file.size, 0)
        index_content = layout.LitdataIndex.of(index_bytes, index.file.url)
        # 1. The items, of a plain chunk where they are needed, of a compressed one from
        #    memory.
        chunk_content: bytes | None = None
        if index_content.compression is not None:
            chunk_content = self._decompressed(index_content, index)
        self._records = RecordFile(data, chunk_content)
        self._content_size = data.file.size
        if chunk_content is not None:
            self._content_size = len(chunk_content)
        self.count = self._records.count
        self._check_entry(index_content)
        # 2. Their values. Floating-point ones are no ids, and are not offered as fields.
        self._types = index_content.items.types
        self._is_stream = index_content.items.is_stream
        field_names: list[str] = []
        for field_name, type_name in self._types.items():
            if np.dtype(type_name).kind in "iub":
                field_names.append(field_name)
        self.names = tuple(field_names)

    def edges(self, first: int, last: int) -> Int64:
        """Return where items begin and the last one ends, in bytes.

        In a compressed chunk all bytes count as equally compressed.
        """
        # Ranges are measured in stored bytes, as those of other formats.
        content_edges = self._records.edges(first, last)
        return content_edges * self._data.file.size // max(self._content_size, 1)

    def read(self, first: int, last: int, names: Sequence[str]) -> pa.RecordBatch:
        """Return some values of items."""
        if self._is_stream:
            # An item is the ids alone: it is as long as its record.
            item_edges = self._records.edges(first, last)
            block = self._records.bytes_at(int(item_edges[0]), int(item_edges[-1]))
            block_edges = item_edges - item_edges[0]
            places = [(block_edges[:-1], block_edges[1:])]
        else:
            block, places = self._records.values(first, last, [None] * len(self._types))
        # Fields come in the order in which they were asked for.
        columns: dict[str, tuple[Numbers, Int64]] = {}
        for field_name, (begins, ends) in zip(self._types, places, strict=True):
            if field_name in names:
                columns[field_name] = self._arrays(
                    field_name, block, begins, ends, first
                )
        return id_batch({field_name: columns[field_name] for field_name in names})

    def _decompressed(self, content: layout.LitdataIndex, index: InputBytes) -> bytes:
        """Return the content of a chunk that is compressed as a whole with zstd."""
        # 1. The compression: its name may be followed by a level, ``zstd:4``.
        codec_name = str(content.compression).partition(":")[0]
        if codec_name != "zstd" or content.compression_level is not None:
            compression = str(content.compression)
            if content.compression_level is not None:
                compression += f", in units of a {content.compression_level}"
            raise unsuitable(
                index.file,
                f"its chunks are compressed ({compression}), expected plain ones, or zstd of whole chunks",
                "write them again without compression",
            )
        # 2. The size. A few bytes that expand to gigabytes would fill the memory.
        chunk_file = self._data.file
        content_size = self._entry(content).chunk_bytes
        max_expansion = self._data.max_expansion
        most_bytes = max(FREE_BYTES, max_expansion * chunk_file.size)
        if content_size > most_bytes:
            raise damaged(
                chunk_file,
                f"its {chunk_file.size} bytes hold {content_size} by its index, more than source.max_expansion = "
                f"{max_expansion} times as many (raise it if the content is really so repetitive)",
            )
        # 3. The content, which cannot be decompressed in parts.
        chunk_bytes = self._data.pread(chunk_file.size, 0)
        return layout.decompressed(chunk_bytes, content_size, chunk_file.url)

    def _entry(self, content: layout.LitdataIndex) -> layout.Chunk:
        """Return the entry of the chunk in the index."""
        file_name = self._data.file.path.rpartition("/")[2]
        for chunk in content.chunks:
            if chunk.filename == file_name:
                return chunk
        raise damaged(self._data.file, "index.json does not name it")

    def _check_entry(self, content: layout.LitdataIndex) -> None:
        """Require the entry of the chunk in the index to agree with it."""
        chunk = self._entry(content)
        if chunk.chunk_size != self.count or chunk.chunk_bytes > self._content_size:
            chunk_file = self._data.file
            raise DamagedFileError(
                f"{chunk_file.url}: it has {self.count} items and {self._content_size} bytes, its index states "
                f"{chunk.chunk_size} items and {chunk.chunk_bytes} bytes. One of them is damaged: replace both",
                file=chunk_file.path,
            )

    def _arrays(
        self, name: str, block: bytes, begins: Int64, ends: Int64, first: int
    ) -> tuple[Numbers, Int64]:
        """Return the numbers of a value, and their offsets by item.

        Args:
            name: Name of the value.
            block: Bytes of the items.
            begins: Place of the value in each item, int64[n].
            ends: End of the value in each item, int64[n].
            first: Number of the first item.
        """
        # The length of an array is not stored: it follows from its size.
        number_type = np.dtype(self._types[name]).newbyteorder("<")
        value_sizes = ends - begins
        is_uneven = value_sizes % number_type.itemsize != 0
        if is_uneven.any():
            uneven_index = int(is_uneven.argmax())
            raise damaged(
                self._data.file,
                f"{name!r} of item {first + uneven_index} has {int(value_sizes[uneven_index])} bytes, expected a "
                f"multiple of {number_type.itemsize} ({number_type.name})",
            )
        offsets = offsets_of(value_sizes // number_type.itemsize)
        value_bytes = joined_bytes(block, begins, ends)
        return np.frombuffer(value_bytes, number_type), offsets

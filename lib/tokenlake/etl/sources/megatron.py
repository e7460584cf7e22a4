"""Megatron-Core's ``IndexedDataset``.

The ids are in ``NAME.bin``, and their borders in ``NAME.idx``.

A record is a document: the ids of all its sequences, one after the other. The index has
20 bytes for a document of one sequence and is never read as a whole: a range reads the
borders of its own documents. See :mod:`tokenlake.etl.layouts.megatron` for the layout.

Example: documents [7, 8, 9, 4] (two sequences) and [5, 6], as uint16. The document
borders are [0, 2, 3], the places of the sequences [0, 6, 8], and the edges of the
records in bytes [0, 8, 12].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.errors import DamagedFileError
from tokenlake.etl.layouts import megatron as layout
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.numbered_records import (
    NumberedRecords,
    Numbers,
    id_batch,
    index_of,
)
from tokenlake.etl.sources.parsed import Want

INPUT_IDS = "input_ids"


def open_megatron(data: InputBytes, want: Want) -> MegatronRecords:
    """Return the documents of a ``.bin`` file, which `want` has the open index of."""
    return MegatronRecords(data, index_of(data.file, want, layout.INDEX_SUFFIX))


@final
class MegatronRecords(NumberedRecords):
    """The documents of a ``.bin`` file.

    Args:
        data: The open ``.bin`` file.
        index: The open ``.idx`` file.

    Raises:
        DamagedFileError: The index is cut or none, or does not end where the ``.bin``
            file ends.
        UnsuitableFileError: The file has numbers that are no ids.
    """

    def __init__(self, data: InputBytes, index: InputBytes) -> None:
        self._data = data
        self._index = index
        # 1. The header of the index.
        header = index.pread(layout.HEADER.size, 0)
        if len(header) < layout.HEADER.size:
            raise damaged(
                index.file,
                f"it has {len(header)} bytes, expected a header of {layout.HEADER.size}",
            )
        magic, version, type_code, sequences, borders = layout.HEADER.unpack(header)
        if magic != layout.MAGIC or version != layout.VERSION:
            raise damaged(
                index.file,
                f"it begins with {magic!r} and version {version}, expected {layout.MAGIC!r} and {layout.VERSION}",
            )
        type_names = {number: name for name, number in layout.TYPE_CODES.items()}
        type_name = type_names.get(type_code, f"code {type_code}")
        if type_code not in type_names or type_name.startswith("float"):
            raise unsuitable(
                index.file,
                f"its numbers have the type {type_name}, expected integers",
                "replace it",
            )
        self._dtype: np.dtype[Any] = np.dtype(type_name).newbyteorder("<")
        # 2. The arrays of the index, one after the other. Files of several modalities
        #    have one more.
        self._sequences = int(sequences)
        self._lengths_at = layout.HEADER.size
        self._offsets_at = self._lengths_at + 4 * self._sequences
        self._borders_at = self._offsets_at + 8 * self._sequences
        expected_bytes = self._borders_at + 8 * borders
        possible_sizes = (expected_bytes, expected_bytes + self._sequences)
        if borders < 1 or index.file.size not in possible_sizes:
            raise damaged(
                index.file,
                f"it has {index.file.size} bytes, expected {expected_bytes} for {sequences} sequences and {borders} "
                "borders of documents",
            )
        self.count = int(borders) - 1
        self.names = (INPUT_IDS,)
        self._check_ends()

    def edges(self, first: int, last: int) -> Int64:
        """Return where documents begin and the last one ends, in bytes.

        Raises:
            DamagedFileError: The borders of the documents do not ascend.
        """
        # Borders are numbers of sequences; the places of these are in bytes.
        borders = self._borders(first, last)
        first_sequence = int(borders[0])
        places = self._places(first_sequence, int(borders[-1]))
        document_edges = places[borders - first_sequence]
        is_descending = np.diff(document_edges) < 0
        if is_descending.any():
            document = first + int(is_descending.argmax())
            raise damaged(
                self._index.file, f"document {document} ends before it begins"
            )
        return document_edges

    def read(self, first: int, last: int, names: Sequence[str]) -> pa.RecordBatch:
        """Return the ids of documents."""
        # The sequences of a document follow each other, so that one read has them all.
        document_edges = self.edges(first, last)
        first_byte = int(document_edges[0])
        byte_count = int(document_edges[-1]) - first_byte
        id_bytes = self._data.pread(byte_count, first_byte)
        token_ids: Numbers = np.frombuffer(id_bytes, self._dtype)
        offsets = (document_edges - first_byte) // self._dtype.itemsize
        return id_batch(dict.fromkeys(names, (token_ids, offsets)))

    def _borders(self, first: int, last: int) -> Int64:
        """Return the first sequence of documents ``first:last`` and of the next one."""
        # int64[D], of which the last one is the number of all sequences.
        border_bytes = self._index.pread(
            8 * (last - first + 1), self._borders_at + 8 * first
        )
        borders = np.frombuffer(border_bytes, "<i8").astype(np.int64)
        is_inside = (borders >= 0) & (borders <= self._sequences)
        if not is_inside.all() or (np.diff(borders) < 0).any():
            raise damaged(
                self._index.file,
                f"the borders of documents {first} to {last} do not ascend from 0 to {self._sequences} sequences",
            )
        return borders

    def _places(self, first: int, last: int) -> Int64:
        """Return the edges of sequences ``first:last`` in bytes.

        They are the beginnings, and the end of the last one, int64[last - first + 1].
        """
        # 1. Lengths and offsets of these sequences, and the end of the last one: that is
        #    the offset of the next one if there are none, or the end of the ids.
        lengths = np.frombuffer(
            self._index.pread(4 * (last - first), self._lengths_at + 4 * first), "<i4"
        )
        offsets = np.frombuffer(
            self._index.pread(8 * (last - first), self._offsets_at + 8 * first), "<i8"
        )
        places = np.empty(last - first + 1, np.int64)
        places[:-1] = offsets
        if last > first:
            places[-1] = offsets[-1] + lengths[-1] * self._dtype.itemsize
        elif last < self._sequences:
            places[-1] = int.from_bytes(
                self._index.pread(8, self._offsets_at + 8 * last), "little", signed=True
            )
        else:
            places[-1] = self._data.file.size
        # 2. Both state the same thing twice, so that damage of one shows.
        is_gap = np.diff(places) != lengths.astype(np.int64) * self._dtype.itemsize
        if is_gap.any():
            sequence = first + int(is_gap.argmax())
            raise damaged(
                self._index.file,
                f"sequence {sequence} does not end where the next one begins",
            )
        return places

    def _check_ends(self) -> None:
        """Check that the last document, the last sequence and the ids end together."""
        # 1. Borders that lie outside of the sequences raise an error of their own, which
        #    would name the wrong documents here.
        outer_borders: tuple[int, int] = (0, 0)
        try:
            first_border = int(self._borders(0, 0)[0])
            last_border = int(self._borders(self.count, self.count)[0])
            outer_borders = (first_border, last_border)
        except DamagedFileError:
            outer_borders = (-1, -1)
        if outer_borders != (0, self._sequences):
            raise damaged(
                self._index.file,
                f"its document borders do not go from 0 to {self._sequences}, its number of sequences",
            )
        # 2. The end of the ids: a file that was cut ends before it.
        ids_end = 0
        if self._sequences:
            ids_end = int(self._places(self._sequences - 1, self._sequences)[-1])
        if ids_end != self._data.file.size:
            raise damaged(
                self._data.file,
                f"it has {self._data.file.size} bytes, but its index {self._index.file.path} ends at {ids_end}",
            )

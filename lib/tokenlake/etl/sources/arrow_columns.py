"""The wanted columns of Arrow batches: their buffers, memory, and rows in pieces.

A batch can be much larger than a block. Of a large column of plain strings that is not
compressed, the texts are read in slices, straight from the file
(:func:`_sliced_texts`); any other batch is decoded by pyarrow as a whole, after its
size in memory was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from tokenlake.base.arrays import Int64s, Pread
from tokenlake.etl.sources import arrow_messages, columnar
from tokenlake.etl.sources.arrow_messages import BATCH, Message
from tokenlake.etl.sources.columnar import Piece
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.parsed import Want
from tokenlake.etl.sources.unfolding import plain_type, unfold, unfolded_bytes
from tokenlake.runtime.reading.unfolding import Bomb, check_unfolded

MAX_BATCH_BYTES: Final = 1 << 30
"""Largest size in memory of a batch."""
SLICED_BYTES: Final = 64 << 20
"""Size of a column of strings above which it is read in slices."""

# A slice ends at the first of these limits, so that it is about as large as a block of
# any other format, also where texts are short.
_SLICE_BYTES: Final = 16 << 20
_SLICE_ROWS: Final = 1 << 16
# The checks of a batch do not see the size of a text that is read in slices.
_MAX_TEXT_BYTES: Final = 1 << 30
# Memory that a row takes however little is stored of it: nulls cost no bytes in a file.
_ROW_BYTES: Final = 8
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_IPC: Final[Any] = pyarrow.ipc


class StoredBatch(NamedTuple):
    """A record batch of a file or stream that is not decoded yet.

    Attributes:
        message: Metadata of the batch.
        size: Number of stored bytes that count as read with it.
        read: Function of (size, offset) that returns bytes of its body.
        decode: Function that returns the wanted columns as pyarrow decodes them.
    """

    message: Message
    size: int
    read: Pread
    decode: Callable[[], pa.RecordBatch]


@final
class WantedColumns:
    """The columns that are wanted of the batches of one Arrow file or stream.

    Attributes:
        text: Path of the text, () if none is wanted.
        names: Names of the columns that are wanted as rows.
        options: Options for pyarrow's readers, which then decode nothing else.
    """

    def __init__(self, file: InputFile, schema: pa.Schema, want: Want) -> None:
        """Choose the columns.

        Raises:
            DamagedFileError: A wanted column is missing or there twice, or the text
                does not consist of strings.
        """
        all_names: list[str] = schema.names
        self.names: tuple[str, ...] = want.names(all_names)
        columnar.check_names(file, all_names, self.names)
        self.text: tuple[str, ...] = ()
        if want.text is not None:
            self.text = columnar.text_path(file, schema, want.text)

        # Top-level columns to decode, by their indices in the schema, and the types in
        # which they are handed over.
        self._schema = schema
        self._included: list[int] = []
        plain_fields: list[Any] = []
        for column_index, column_name in enumerate(all_names):
            if column_name in self.names or column_name in self.text[:1]:
                field: Any = schema.field(column_index)
                self._included.append(column_index)
                plain_fields.append(
                    pa.field(column_name, plain_type(field.type), field.nullable)
                )
        self._plain_schema = pa.schema(plain_fields)
        self.options = _IPC.IpcReadOptions(
            included_fields=self._included, use_threads=False
        )
        self._stored = 0  # bytes of the wanted part of messages
        self._unfolded = 0  # bytes of the rows that they became

    @property
    def nothing(self) -> bool:
        """Whether records are only counted."""
        return not self._included

    def check(self, message: Message, read: Pread) -> None:
        """Check the memory that the wanted part of a message takes.

        Args:
            message: Metadata of a batch or dictionary.
            read: Function of (size, offset) that returns bytes of its body.

        Raises:
            Bomb: The part takes too much.
        """
        # A few stored bytes can stand for a batch that fills the memory. The declared
        # sizes are summed before anything is decompressed.
        decoded_size = arrow_messages.decoded_bytes(
            message, self._wanted_buffers(message), read
        )
        if decoded_size > MAX_BATCH_BYTES:
            raise Bomb(
                f"a batch takes {decoded_size} bytes in memory, more than {MAX_BATCH_BYTES}; "
                "write the file with fewer rows in a batch"
            )
        check_unfolded(_ROW_BYTES * message.rows, message.body)
        self._stored += decoded_size

    def is_sliceable(self, message: Message) -> bool:
        """Say whether a batch is read in slices.

        It is if it is not compressed, and only a large column of plain strings is
        wanted of it.
        """
        if message.compressed or self.names or len(self.text) != 1:
            return False
        column_type: Any = self._schema.field(self.text[0]).type
        is_string = pa.types.is_string(column_type) or pa.types.is_large_string(
            column_type
        )
        # A small column is decoded as a whole, which takes fewer reads.
        stored_bytes = sum(length for _, length in self._wanted_buffers(message))
        return is_string and stored_bytes > SLICED_BYTES

    def slices(self, batch: StoredBatch) -> Iterator[Piece]:
        """Yield the texts of a batch that is sliceable.

        Raises:
            ValueError: Offsets descend or leave the data, or the buffers are too short.
            Bomb: One text has more than 1 GiB.
        """
        buffers = self._wanted_buffers(batch.message)
        has_64_bits = pa.types.is_large_string(self._schema.field(self.text[0]).type)
        texts = _sliced_texts(
            batch.read, buffers, batch.message.rows, has_64_bits=has_64_bits
        )
        return ((None, text) for text in texts)

    def rows(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Yield the rows of a decoded batch in pieces of about 16 MB.

        Raises:
            Bomb: All rows so far are much more than the messages can account for.
        """
        for piece in unfold(batch, self._plain_schema):
            self._unfolded += unfolded_bytes(piece)
            check_unfolded(self._unfolded, self._stored)
            text = None
            if self.text:
                text = columnar.as_text(columnar.pick(piece, self.text))
            columns = None
            if self.names:
                columns = piece.select(list(self.names))
            yield columns, text

    def _wanted_buffers(self, message: Message) -> list[tuple[int, ...]]:
        """Return (offset, size) of the buffers that are decoded; all of a dictionary."""
        if message.kind != BATCH:
            return message.buffers
        buffers_of_columns = arrow_messages.column_buffers(self._schema, message)
        buffers: list[tuple[int, ...]] = []
        # Buffers of all columns lie in one list, in the order of the schema.
        for column_index in self._included:
            buffers += [
                message.buffers[buffer_index]
                for buffer_index in buffers_of_columns[column_index]
            ]
        return buffers


def _sliced_texts(
    pread: Pread, buffers: list[tuple[int, ...]], row_count: int, *, has_64_bits: bool
) -> Iterator[pa.LargeStringArray]:
    """Yield the texts of a column of strings in slices of about 16 MB.

    Args:
        pread: Function of (size, offset) that returns bytes of the batch's body.
        buffers: (offset, size) of validity, offsets and data.
        row_count: Number of rows.
        has_64_bits: Whether offsets have 64 bits, not 32.

    Raises:
        ValueError: Offsets descend or leave the data, or the buffers are too short.
        Bomb: One text has more than 1 GiB.
    """
    # The column has three buffers: a validity bit per row, the offsets of the texts
    # (one more than rows), and their bytes. Without nulls the validity may be empty.
    offset_type = np.dtype("<i8" if has_64_bits else "<i4")
    (
        (validity_start, validity_size),
        (offsets_start, offsets_size),
        (data_start, data_size),
    ) = buffers
    if (
        offsets_size < offset_type.itemsize * (row_count + 1)
        or 0 < validity_size < (row_count + 7) // 8
    ):
        raise ValueError(f"its buffers are too short for {row_count} rows")

    first_row = 0
    while first_row < row_count:
        # 1. The offsets of the next rows, which must ascend within the data.
        max_rows = min(_SLICE_ROWS, row_count - first_row)
        raw_offsets = pread(
            offset_type.itemsize * (max_rows + 1),
            offsets_start + offset_type.itemsize * first_row,
        )
        stored_offsets = np.frombuffer(raw_offsets, offset_type, max_rows + 1)
        offsets = stored_offsets.astype(np.int64)
        if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > data_size:
            raise ValueError("an offset decreases, or is outside the data")

        # 2. As many rows as fit into a slice, at least one.
        slice_rows = _rows_of_slice(offsets)
        first_byte = int(offsets[0])
        text_bytes = int(offsets[slice_rows]) - first_byte

        # 3. Their texts, as an array whose offsets begin at 0.
        validity = None
        if validity_size:
            validity = _validity_of_rows(pread, validity_start, first_row, slice_rows)
        texts = _ARROW.py_buffer(pread(text_bytes, data_start + first_byte))
        slice_offsets = _ARROW.py_buffer(offsets[: slice_rows + 1] - first_byte)
        yield _ARROW.LargeStringArray.from_buffers(
            slice_rows, slice_offsets, texts, validity
        )
        del texts  # before the next slice is read
        first_row += slice_rows


def _rows_of_slice(offsets: Int64s) -> int:
    """Return the number of rows that fit into a slice, at least one.

    Args:
        offsets: Offsets of texts in the data, int64[n + 1], ascending.

    Raises:
        Bomb: The first text has more than 1 GiB.
    """
    largest_offset = offsets[0] + _SLICE_BYTES
    fitting_rows = int(np.searchsorted(offsets, largest_offset, side="right")) - 1
    slice_rows = max(1, fitting_rows)
    text_bytes = int(offsets[slice_rows]) - int(offsets[0])
    if text_bytes > _MAX_TEXT_BYTES:
        raise Bomb(f"one text has {text_bytes} bytes, more than {_MAX_TEXT_BYTES}")
    return slice_rows


def _validity_of_rows(
    pread: Pread, validity_start: int, first_row: int, row_count: int
) -> Any:
    """Return the validity bits of some rows.

    They begin at a whole byte only by chance, and are packed anew.
    """
    bits_before = first_row % 8
    byte_count = (bits_before + row_count + 7) // 8
    raw_bytes = np.frombuffer(
        pread(byte_count, validity_start + first_row // 8), np.uint8
    )
    all_bits = np.unpackbits(raw_bytes, bitorder="little")
    bits = all_bits[bits_before : bits_before + row_count]
    return _ARROW.py_buffer(np.packbits(bits, bitorder="little").tobytes())

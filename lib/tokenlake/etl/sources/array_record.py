"""ArrayRecord files (``.array_record``), which Grain reads.

Reading them needs the package ``array_record``.

Files hold records of bytes and nothing about them. ``metadata.json`` of an export names
the columns of its records (:mod:`tokenlake.etl.layouts.array_record`). Without it a
record is the ids of a document in one type, which the configuration states or the plan
finds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.base.lazy_names import load
from tokenlake.errors import StoreError
from tokenlake.etl.layouts import array_record as layout
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.numbered_records import (
    NumberedRecords,
    Numbers,
    id_batch,
    require_dtype,
)
from tokenlake.etl.sources.parsed import Want

INPUT_IDS = "input_ids"
_NUMPY_MAGIC: Final = b"\x93NUMPY"
"""First bytes of a file of NumPy, which people write into records by mistake."""

_COPIED_BYTES: Final = 8 << 20
"""Bytes of a file in a bucket that are copied at a time."""

_READER: Final = "array_record.python.array_record_module:ArrayRecordReader"


def open_array_record(data: InputBytes, want: Want) -> ArrayRecords:
    """Return the records of a file."""
    return ArrayRecords(data, want)


@contextmanager
def _local_path(data: InputBytes) -> Generator[str]:
    """Yield a path of this machine at which the package can open a file.

    The package reads files of this machine only. A file in a bucket is copied to the
    temporary folder (``TMPDIR``), and its name is removed as soon as the package has
    opened it, so that the copy takes the space of one file, and is gone with its
    reader, also if the process is killed.
    """
    if data.file.is_local:
        yield data.file.url
        return
    with tempfile.NamedTemporaryFile(suffix=layout.SUFFIX) as local_copy:
        byte_offset = 0
        try:
            while block := data.pread(_COPIED_BYTES, byte_offset):
                local_copy.write(block)
                byte_offset += len(block)
            local_copy.flush()
        except OSError as error:
            raise StoreError(
                f"cannot copy {data.file.url} to {local_copy.name}: {error.strerror}. The package array_record reads "
                f"files of this machine only; let TMPDIR name a folder with room for {data.file.size} bytes"
            ) from error
        yield local_copy.name


@final
class ArrayRecords(NumberedRecords):
    """The records of a file.

    Args:
        data: The open file.
        want: Form of its ids, and the open ``metadata.json`` of its folder, if there is
            one.

    Raises:
        DamagedFileError: The file cannot be read.
        MissingExtraError: The package ``array_record`` is not installed.
        StoreError: The disk of this machine cannot hold a copy of a file in a bucket.
    """

    def __init__(self, data: InputBytes, want: Want) -> None:
        # 1. The number of records, which the end of the file states.
        input_file = data.file
        reader_type: Any = load(_READER, "format 'array_record'", "array_record")
        self._data = data
        self._want = want
        try:
            with _local_path(data) as local_path:
                self._reader: Any = reader_type(local_path)
            self.count = int(self._reader.num_records())
        except (RuntimeError, ValueError) as error:
            raise damaged(
                input_file, f"it cannot be read as ArrayRecord ({error})"
            ) from error
        if not self._reader.ok():
            # The package counts no records then, and raises nothing.
            raise damaged(
                input_file,
                "it does not end as an ArrayRecord file does: it was cut, or is none",
            )
        # 2. The fields: those of our metadata, or ids alone.
        self.names = (INPUT_IDS,)
        self._has_metadata = layout.METADATA in want.companions
        if self._has_metadata:
            metadata = want.companions[layout.METADATA]
            self.names = layout.RecordMetadata.of(
                metadata.pread(metadata.file.size, 0), metadata.file.url
            ).columns

    def edges(self, first: int, last: int) -> Int64:
        """Return places of records in the file, int64[last - first + 1].

        The file does not state the sizes of records, so that all count as equal.
        """
        record_numbers = np.arange(first, last + 1, dtype=np.int64)
        return self._data.file.size * record_numbers // max(self.count, 1)

    def read(self, first: int, last: int, names: Sequence[str]) -> pa.RecordBatch:
        """Return the columns of records."""
        # Without records there are no arrays to join.
        if first == last:
            empty_column = (np.zeros(0, np.int32), np.zeros(1, np.int64))
            return id_batch(dict.fromkeys(names, empty_column))
        # Opening a file reads its end alone, so that damage of records shows here.
        try:
            records: list[bytes] = self._reader.read(first, last)
        except (RuntimeError, ValueError, IndexError) as error:
            raise damaged(
                self._data.file, f"records {first} to {last} cannot be read ({error})"
            ) from error
        if self._has_metadata:
            return self._lines(records, first, names)
        # Records of other tools: the ids of a document each, with nothing beside them.
        documents: list[Numbers] = []
        for record_number, record in enumerate(records, first):
            documents.append(self._ids(record, record_number))
        lengths = np.array([len(token_ids) for token_ids in documents], np.int64)
        id_column = (np.concatenate(documents), offsets_of(lengths))
        return id_batch(dict.fromkeys(names, id_column))

    def _lines(
        self, records: list[bytes], first: int, names: Sequence[str]
    ) -> pa.RecordBatch:
        """Return columns that are the lines of a matrix in each record."""
        # 1. Records must have whole lines of equal length.
        line_count = len(self.names)
        id_type = np.dtype(layout.ID_TYPE)
        position_bytes = line_count * id_type.itemsize  # one id of each line
        record_sizes = np.array([len(record) for record in records], np.int64)
        is_uneven = record_sizes % position_bytes != 0
        if is_uneven.any():
            uneven_index = int(is_uneven.argmax())
            raise damaged(
                self._data.file,
                f"record {first + uneven_index} has {int(record_sizes[uneven_index])} bytes, expected {line_count} "
                "lines of ids",
            )
        values = np.frombuffer(b"".join(records), id_type)
        lengths = record_sizes // position_bytes
        # 2. All lines of a record follow each other: every line is a list, and a column
        #    has each of its records' lists. For 2 lines, column 1 has the lists 1, 3, 5.
        line_starts = offsets_of(np.repeat(lengths, line_count))
        columns: dict[str, tuple[Numbers, Int64]] = {}
        for column_name in names:
            line_index = self.names.index(column_name)
            column_starts = line_starts[:-1][line_index::line_count]
            # Views of the values, which are copied once, when they are joined.
            column_lines = [
                values[line_start : line_start + length]
                for line_start, length in zip(column_starts, lengths, strict=True)
            ]
            columns[column_name] = (np.concatenate(column_lines), offsets_of(lengths))
        return id_batch(columns)

    def _ids(self, record: bytes, number: int) -> Numbers:
        """Return the ids of a record that is an array."""
        # A saved array would be read as ids from its header on.
        if record.startswith(_NUMPY_MAGIC):
            raise unsuitable(
                self._data.file,
                f"record {number} is a file of NumPy, expected ids alone",
                "write the bytes of the array (`ids.tobytes()`) as a record",
            )
        id_type = require_dtype(self._data.file, self._want, "a record of bytes")
        if len(record) % id_type.itemsize:
            raise damaged(
                self._data.file,
                f"record {number} has {len(record)} bytes, expected a multiple of {id_type.itemsize} ({id_type.name})",
            )
        return np.frombuffer(record, id_type)

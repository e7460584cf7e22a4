"""Files of ArrayRecord, which Grain reads: a record for each row.

See :mod:`tokenlake.etl.layouts.array_record` for the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.base.lazy_names import load
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.etl.export.flat_manifest import FlatFile
from tokenlake.etl.export.shard_record import Part
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.growing_hash import GrowingHash
from tokenlake.etl.export.trainers.token_layout import ID_TYPE, TokenFacts, TokenLayout
from tokenlake.etl.layouts import array_record
from tokenlake.etl.layouts.joined_rows import joined, ragged_parts

_WRITER: Final = "array_record.python.array_record_module:ArrayRecordWriter"

_RECORD_BYTES: Final = 16
"""Bytes of a record beside its numbers, roughly."""


def load_writer() -> Callable[[str, str], Any]:
    """Return the package's writer, a function of a path and options.

    Raises:
        MissingExtraError: The package ``array_record`` is not installed.
    """
    return load(_WRITER, "format 'array_record'", "array_record")


@final
class ArrayRecordLayout(TokenLayout):
    """The format ``array_record``.

    Args:
        facts: Facts about the rows.

    Raises:
        MissingExtraError: The package ``array_record`` is missing.
    """

    def __init__(self, facts: TokenFacts) -> None:
        self.facts = facts
        self._open_writer = load_writer()

    @property
    def schema(self) -> pa.Schema:
        # A record is one matrix, so that masks have the type of the ids, too.
        id_lists = pa.list_(pa.from_numpy_dtype(ID_TYPE))
        return pa.schema(dict.fromkeys(self.facts.column_types, id_lists))

    def row_bytes(self, rows: TokenRows) -> Int64:
        position_bytes = ID_TYPE.itemsize * len(self.facts.column_types)
        return np.diff(rows.row_offsets) * position_bytes + _RECORD_BYTES

    def open(self, path: Path, parts: Sequence[Part] = ()) -> ArrayRecordFile:
        return ArrayRecordFile(path, self.facts, self._open_writer)

    def export_index(self, files: Sequence[FlatFile]) -> Mapping[str, bytes]:
        # Records do not say which columns they hold; readers need this file.
        metadata = array_record.RecordMetadata(
            columns=tuple(self.facts.column_types),
            dtype=ID_TYPE.name,
            vocab_size=self.facts.vocab_size,
            bos_id=self.facts.bos_id,
            eos_id=self.facts.eos_id,
            pad_id=self.facts.pad_id,
            files={file.path: file.rows for file in files},
        )
        return {array_record.METADATA: metadata.to_bytes()}


@final
class ArrayRecordFile:
    """One file while it is written.

    Args:
        path: Path of the file without its suffix.
        facts: Facts about the rows.
        open_writer: Function that opens the writer of a path, with options.
    """

    def __init__(
        self, path: Path, facts: TokenFacts, open_writer: Callable[[str, str], Any]
    ) -> None:
        self._path = path.with_name(path.name + array_record.SUFFIX)
        self._facts = facts
        self._writer = open_writer(str(self._path), array_record.WRITER_OPTIONS)
        # The package writes the file itself, from its begin to its end, so that its
        # hash is computed from the bytes that it has appended.
        self._hash = GrowingHash(self._path)
        self.bytes = 0

    def write(self, rows: TokenRows) -> None:
        # A record is the lines of a matrix, one for each column. The package takes
        # records one by one.
        record_parts: list[pa.LargeBinaryArray] = []
        for numbers in self._facts.column_arrays(rows).values():
            column_ids = numbers.astype(ID_TYPE, copy=False)
            record_parts.append(ragged_parts(column_ids, rows.row_offsets))
        records: Any = joined(record_parts)
        for record in records.to_pylist():
            self._writer.write(record)
            self.bytes += len(record) + _RECORD_BYTES
        self._hash.follow()

    def so_far(self) -> Sequence[Part]:
        return ()  # the package cannot continue a file

    def close(self) -> list[Part]:
        self._writer.close()
        sha256 = self._hash.finish()
        self._path.chmod(file_mode(self._path.parent))
        return [Part(array_record.SUFFIX, self._hash.bytes, sha256)]

    def discard(self) -> None:
        with suppress(Exception):  # the disk may be full; the file is removed anyway
            self._writer.close()
        self._hash.discard()

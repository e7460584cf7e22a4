"""The quarantine of a unit: bad records with their location, reason and raw bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.etl.sources.bad_records import BadRecord
from tokenlake.etl.sources.position_kinds import place_of
from tokenlake.etl.unit.parts import UnitFile
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout, quarantine_path
from tokenlake.runtime.store.ledger import QuarantineEntry

_COLUMNS: Final = {
    "path": (pa.string(), "file"),
    "file": (pa.int64(), "file_id"),
    "position": (pa.int64(), "position"),
    "line": (pa.int64(), "line"),
    "reason": (pa.string(), "reason"),
    "detail": (pa.string(), "detail"),
    "raw": (pa.large_binary(), "raw"),
}
"""Column -> its type, and the attribute of a record that it holds."""

# Only a record of a file with lines has a line number, that of its first line. `path`
# and `line`, or the row in `position`, are the place of a record; the view of the bad
# records and the report write it as one text.
_SCHEMA: Final = pa.schema(
    [
        pa.field(name, column_type, nullable=name == "line")
        for name, (column_type, _) in _COLUMNS.items()
    ]
)

_FLUSH_BYTES: Final = 16 << 20
"""Raw bytes that are held before a row group is written."""


@final
class QuarantineWriter:
    """Writes the quarantine file of a unit, which exists only if a record is bad.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        unit: Number of the unit.

    Attributes:
        first: Location and reason of the first bad record, for messages; empty if there
            is none.
    """

    def __init__(self, store: Store, layout: Layout, unit: int) -> None:
        self._store = store
        self._layout = layout
        self._unit = unit
        self._held: list[BadRecord] = []
        self._held_bytes = 0
        self._file: UnitFile | None = None
        self.first: str = ""

    def add(self, records: Iterable[BadRecord]) -> None:
        """Append bad records."""
        for record in records:
            if not self.first:
                place = place_of(record.file, record.position, record.line, "")
                self.first = f"{place}: {record.reason}: {record.detail}"
            self._held.append(record)
            self._held_bytes += len(record.raw)
            if self._held_bytes >= _FLUSH_BYTES:
                self._flush()

    def publish(self) -> QuarantineEntry | None:
        """Write the rest and publish the file; None if no record was bad."""
        self._flush()
        if self._file is None:
            return None
        path = quarantine_path(self._unit)
        file_entry = self._file.publish(path)
        return QuarantineEntry(
            path=path,
            bytes=file_entry.bytes,
            sha256=file_entry.sha256,
            rows=self._file.rows,
        )

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        if self._file is not None:
            self._file.discard()

    def _flush(self) -> None:
        """Write the records that are held as one row group."""
        if not self._held:
            return
        if self._file is None:
            self._file = UnitFile(self._store, self._layout, self._unit, _open_writer)
        arrays: list[Any] = []
        for column_type, attribute in _COLUMNS.values():
            values = [getattr(record, attribute) for record in self._held]
            arrays.append(pa.array(values, column_type))
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        self._held = []
        self._held_bytes = 0


def _open_writer(sink: Any) -> pq.ParquetWriter:
    return pq.ParquetWriter(sink, _SCHEMA, compression="zstd", write_page_checksum=True)

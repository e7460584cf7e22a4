"""The quarantine of a unit: bad records with their location, reason and raw bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.etl.sources.bad_records import BadRecord
from tokenlake.etl.unit.parts import UnitFile
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout, quarantine_path
from tokenlake.runtime.store.ledger import QuarantineEntry

_QUARANTINE_COLUMNS: Final = {
    "path": (pa.string(), "file"),
    "file": (pa.int64(), "file_id"),
    "position": (pa.int64(), "position"),
    "line": (pa.int64(), "line"),
    "reason": (pa.string(), "reason"),
    "detail": (pa.string(), "detail"),
    "raw": (pa.large_binary(), "raw"),
}
"""Column -> its type, and what of a record is in it."""
_QUARANTINE: Final = pa.schema(
    [pa.field(name, kind, nullable=name == "line") for name, (kind, _) in _QUARANTINE_COLUMNS.items()]
)
_FLUSH_BYTES: Final = 16 << 20  # raw bytes held before a row group is written


def _open_quarantine(sink: Any) -> pq.ParquetWriter:
    return pq.ParquetWriter(sink, _QUARANTINE, compression="zstd", write_page_checksum=True)


@final
class QuarantineWriter:
    """Writes one unit's quarantine file, which exists only if a record is bad."""

    def __init__(self, store: Store, layout: Layout, unit: int) -> None:
        self._store, self._layout, self._unit = store, layout, unit
        self._held: list[BadRecord] = []
        self._bytes = 0
        self._file: UnitFile | None = None
        self.first: str = ""

    def add(self, records: Iterable[BadRecord]) -> None:
        for record in records:
            if not self.first:
                self.first = f"{record.file} position {record.position}: {record.reason}: {record.detail}"
            self._held.append(record)
            self._bytes += len(record.raw)
            if self._bytes >= _FLUSH_BYTES:
                self._flush()

    def publish(self) -> QuarantineEntry | None:
        """Write what is left and publish the file; None when no record was bad."""
        self._flush()
        if self._file is None:
            return None
        path = quarantine_path(self._unit)
        entry = self._file.publish(path)
        return QuarantineEntry(path=path, bytes=entry.bytes, sha256=entry.sha256, rows=self._file.rows)

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        if self._file is not None:
            self._file.discard()

    def _flush(self) -> None:
        if not self._held:
            return
        if self._file is None:
            self._file = UnitFile(self._store, self._layout, self._unit, _open_quarantine)
        arrays = [
            pa.array([getattr(record, name) for record in self._held], kind)
            for kind, name in _QUARANTINE_COLUMNS.values()
        ]
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=_QUARANTINE))
        self._held, self._bytes = [], 0

"""Bad records, set aside with their location, reason and raw bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.sources.batch import BadRecord
from tokenlake.store.base import Store
from tokenlake.store.entries import QuarantineEntry
from tokenlake.store.layout import Layout, quarantine_path
from tokenlake.store.local_files import HashingFile, remove_temp

SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("file", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("line", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("raw", pa.large_binary(), nullable=False),
    ]
)

#: Raw bytes held before a row group is written.
_FLUSH_BYTES: Final = 16 << 20


@final
class QuarantineWriter:
    """Writes one unit's quarantine file, which exists only if a record is bad."""

    def __init__(self, store: Store, layout: Layout, unit: int) -> None:
        self._store = store
        self._layout = layout
        self._unit = unit
        self._path = quarantine_path(unit)
        self._buffer: list[BadRecord] = []
        self._bytes = 0
        self._rows = 0
        self._temp: Path | None = None
        self._open: tuple[HashingFile, pq.ParquetWriter] | None = None
        self.first: str = ""

    def add(self, records: Iterable[BadRecord]) -> None:
        for record in records:
            if not self.first:
                self.first = f"{record.file} position {record.position}: {record.reason}: {record.detail}"
            self._buffer.append(record)
            self._bytes += len(record.raw)
            if self._bytes >= _FLUSH_BYTES:
                self._flush()

    def publish(self) -> QuarantineEntry | None:
        """Write what is left and publish the file; None when no record was bad."""
        self._flush()
        if self._open is None or self._temp is None:
            return None
        file, writer = self._open
        writer.close()
        file.close()
        self._store.publish(
            self._temp, self._layout.key(self._path), file.sha256, replace_orphan=self._is_orphan
        )
        return QuarantineEntry(path=self._path, bytes=file.bytes, sha256=file.sha256, rows=self._rows)

    def _is_orphan(self) -> bool:
        """Whether an unequal file under our name belongs to no finished unit."""
        return not self._store.exists(self._layout.ledger(self._unit))

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        if self._open is not None:
            self._open[0].close()
            self._open = None
        if self._temp is not None:
            remove_temp(self._temp)

    def _flush(self) -> None:
        if not self._buffer:
            return
        if self._open is None:
            self._temp = self._store.temp(self._layout.prefix)
            file = HashingFile(self._temp)
            sink: Any = file
            writer = pq.ParquetWriter(sink, SCHEMA, compression="zstd", write_page_checksum=True)
            self._open = file, writer
        columns = [
            [record.file for record in self._buffer],
            [record.file_id for record in self._buffer],
            [record.position for record in self._buffer],
            [record.line for record in self._buffer],
            [record.reason for record in self._buffer],
            [record.detail for record in self._buffer],
            [record.raw for record in self._buffer],
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        self._open[1].write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        self._rows += len(self._buffer)
        self._buffer.clear()
        self._bytes = 0

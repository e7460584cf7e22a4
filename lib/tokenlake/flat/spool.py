"""Rows put aside until it is known how many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa

from tokenlake.flat.shards import ShardFiles

_ARROW: Final[Any] = pa
_NAME: Final = "spool"


@final
class Spool:
    """A compressed file of batches of one schema, read once."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.schema, self.rows = schema, 0
        self._path = folder / _NAME
        options = _ARROW.ipc.IpcWriteOptions(compression="lz4")
        self._sink = _ARROW.OSFile(str(self._path), "wb")
        self._writer = _ARROW.ipc.new_stream(self._sink, schema, options=options)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._writer.write_batch(batch)
        self.rows += len(batch)

    def pour(self, files: ShardFiles) -> None:
        """Move all rows to `files`."""
        self._writer.close()
        self._sink.close()
        with _ARROW.OSFile(str(self._path), "rb") as source, _ARROW.ipc.open_stream(source) as batches:
            for batch in batches:
                files.add(batch)
        self._path.unlink()

    def discard(self) -> None:
        """Close the file, which is for the caller to remove."""
        self._sink.close()

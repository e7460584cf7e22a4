"""A file that begins with the places of its records.

Shards of MDS and chunks of litdata do.

The places are known when the last record is. Until then, records wait in memory, and
past 64 MiB in a temporary file.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final, final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tokenlake.base.arrays import Int64
from tokenlake.etl.export.shard_record import Part
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.token_layout import PartFile
from tokenlake.etl.layouts.joined_rows import record_bytes, record_sizes

_IN_MEMORY_BYTES: Final = 1 << 26
"""Bytes of records that wait in memory: a whole file of the usual size."""

_COPIED_BYTES: Final = 1 << 20
"""Bytes that are copied at a time from the temporary file."""


@final
class IndexedFile:
    """One file while it is written.

    Args:
        path: Path of the file.
        encode: Function that returns the records of rows.
        head: Function of the sizes of all records that returns the bytes before them.
        compress: Function that compresses the content of the file, which then is in
            memory as a whole; None: it is not compressed.
    """

    def __init__(
        self,
        path: Path,
        encode: Callable[[TokenRows], pa.LargeBinaryArray],
        head: Callable[[Int64], bytes],
        compress: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._path = path
        self._encode = encode
        self._head = head
        self._compress = compress
        # Sizes of all records so far; records that wait in memory, and in a file.
        self._sizes: list[Int64] = []
        self._pieces: list[memoryview] = []
        self._piece_bytes = 0
        self._spool: IO[bytes] | None = None
        # The head of a file without records: its number and configuration.
        self.bytes = len(head(np.zeros(0, np.int64)))

    def write(self, rows: TokenRows) -> None:
        # The size of the file has the records and an offset of 4 bytes for each.
        records = self._encode(rows)
        self._sizes.append(record_sizes(records))
        record_block = record_bytes(records)
        self._pieces.append(record_block)
        self._piece_bytes += len(record_block)
        self.bytes += len(record_block) + 4 * len(rows)
        if self._piece_bytes > _IN_MEMORY_BYTES:
            self._move_to_spool()

    def so_far(self) -> Sequence[Part]:
        return ()  # the places of its records are written first, at the end

    def close(self) -> list[Part]:
        # All sizes are known: now the places of the records can be written before them.
        with PartFile(self._path, "") as part:
            if self._compress is None:
                self._write_content(part.file)
                return [part.close()]
            # A compressed file is one frame, which is made of the whole content.
            content = io.BytesIO()
            self._write_content(content)
            part.file.write(self._compress(content.getvalue()))
            return [replace(part.close(), content_bytes=content.tell())]

    def _write_content(self, file: Any) -> None:
        """Write the places of the records and the records to a file object."""
        # The records in the temporary file are older than those in memory.
        file.write(self._head(np.concatenate(self._sizes)))
        if self._spool is not None:
            self._spool.seek(0)
            shutil.copyfileobj(self._spool, file, _COPIED_BYTES)
            self._spool.close()
        for piece in self._pieces:
            file.write(piece)

    def discard(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _move_to_spool(self) -> None:
        """Move the records that wait in memory to the temporary file."""
        # Beside the file, so that it takes space where that is planned for; without a
        # name, so that nothing of it stays.
        if self._spool is None:
            self._spool = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115
        self._spool.writelines(self._pieces)
        self._pieces = []
        self._piece_bytes = 0

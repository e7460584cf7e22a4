"""A Parquet file that is continued after an interruption.

The footer of a Parquet file describes all row groups, and is written at the end. A
writer knows the row groups that it has written itself. A file that may be interrupted
is therefore written in stretches by several writers, whose footers are kept apart and
joined at the end::

    file      PAR1 | row groups of writer 1 | row groups of writer 2 | joined footer
    footers          footer of writer 1       footer of writer 2

Row groups have absolute offsets. Each further writer writes zeros up to the end of the
stretch before it, which are not stored, so that its offsets are those of the file. The
bytes are those of a file by one writer.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.runtime.schema import open_writer
from tokenlake.runtime.store.writes import HashingFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ARROW: Final[Any] = pa

_MAGIC: Final = b"PAR1"
"""First and last bytes of a file, and first ones of a footer by itself."""

_ZEROS: Final = bytes(1 << 23)
"""Bytes that are written at a time to reach an offset."""


@final
class ParquetFile:
    """One file while it is written, each batch as a row group.

    Args:
        sink: File, at whose end writing continues.
        schema: Schema of the rows.
        compression: Name of the codec.
        encoded: Paths of the columns that have dictionaries and statistics.
        footers: Footers of the stretches that the file has, in order.
    """

    def __init__(
        self,
        sink: HashingFile,
        schema: pa.Schema,
        compression: str,
        encoded: Sequence[str],
        footers: Sequence[bytes] = (),
    ) -> None:
        self._sink = sink
        self._schema = schema
        self._compression = compression
        self._encoded = encoded
        # Footer of all stretches that have ended; None: the file has one stretch.
        self._footer: Any = None
        for footer in footers:
            self._add_footer(pq.read_metadata(io.BytesIO(footer)))
        self._stretch: _StretchWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch as one row group."""
        self._opened().write(batch)

    def end_stretch(self) -> bytes:
        """End the stretch, after which the file can be continued; return its footer."""
        footer = self._opened().end()
        self._stretch = None
        self._add_footer(footer)
        return _bytes_of(footer)

    def close(self) -> None:
        """Write the footer of the file."""
        # A file of one stretch has the footer of its writer.
        if self._footer is None:
            self._opened().close()
            return
        if self._stretch is not None:
            self.end_stretch()
        self._sink.write(_bytes_of(self._footer).removeprefix(_MAGIC))

    def _opened(self) -> _StretchWriter:
        if self._stretch is None:
            self._stretch = _StretchWriter(
                self._sink, self._schema, self._compression, self._encoded
            )
        return self._stretch

    def _add_footer(self, footer: Any) -> None:
        if self._footer is None:
            self._footer = footer
        else:
            self._footer.append_row_groups(footer)


@final
class _StretchWriter:
    """Row groups that one writer writes at the end of a file.

    Args:
        sink: File.
        schema: Schema of the rows.
        compression: Name of the codec.
        encoded: Paths of the columns that have dictionaries and statistics.
    """

    def __init__(
        self,
        sink: HashingFile,
        schema: pa.Schema,
        compression: str,
        encoded: Sequence[str],
    ) -> None:
        # A writer takes offsets from its stream, which counts bytes, and begins at 0 by
        # the magic. Zeros after it lead to the end of the file. A file that has bytes
        # gets neither.
        self._gate = _Gate(sink)
        self._gate.is_open = sink.bytes == 0
        stream = _ARROW.PythonFile(self._gate, "w")
        missing_bytes = sink.bytes - len(_MAGIC)
        self._writer: Any = open_writer(stream, schema, compression, encoded)
        while missing_bytes > 0:
            zeros = memoryview(_ZEROS)[:missing_bytes]
            stream.write(zeros)
            missing_bytes -= len(zeros)
        self._gate.is_open = True

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch as one row group."""
        self._writer.write_batch(batch, row_group_size=max(1, len(batch)))

    def end(self) -> Any:
        """End the stretch without a footer in the file; return the footer."""
        self._gate.is_open = False
        self._writer.close()
        return self._writer.writer.metadata

    def close(self) -> None:
        """End the stretch with its footer in the file."""
        self._writer.close()


@final
class _Gate(io.RawIOBase):
    """Sink that passes bytes on to a file while it is open, and drops them otherwise.

    Args:
        file: File.

    Attributes:
        is_open: True if bytes are passed on.
    """

    def __init__(self, file: HashingFile) -> None:
        super().__init__()
        self._file = file
        self.is_open = True

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        if self.is_open:
            return self._file.write(data)
        return memoryview(data).nbytes


def _bytes_of(footer: Any) -> bytes:
    """Return a footer as a Parquet file without rows has it, magic included."""
    file = io.BytesIO()
    footer.write_metadata_file(file)
    return file.getvalue()

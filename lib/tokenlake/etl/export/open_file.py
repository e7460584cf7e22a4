"""One data file while it is written: Parquet, Arrow IPC or JSON Lines."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.etl.export.file_mode import file_mode
from tokenlake.etl.export.flat_manifest import FileFormat, FlatFile
from tokenlake.etl.export.parquet_file import ParquetFile
from tokenlake.etl.export.row_batches import text_of
from tokenlake.etl.export.shard_record import Part, Shard
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.store.writes import HashingFile

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
_GZIP_LEVEL: Final = 6

_STRETCHES: Final = ".stretches"
"""End of the name of the file from which a file is continued."""

_SIZE_BYTES: Final = 8
"""Bytes of the size before each stretch in it."""

# Upper bounds of the bytes that a file's end takes.
_FOOTER_BYTES: Final = 1024
_ARROW_BLOCK_BYTES: Final = 64
"""Bytes of a record batch in the footer of an Arrow file."""
_PARQUET_CHUNK_BYTES: Final = 256
"""Bytes of a column chunk in the footer of a Parquet file: place, sizes, counts."""
_STATISTIC_BYTES: Final = 4096
"""Bytes of the least or the largest text of a column chunk, at most."""


@final
@dataclass(frozen=True, slots=True)
class _Writer:
    """Writer of one format.

    Attributes:
        write: Function that writes a batch.
        flush: Function that writes the bytes that a compression holds back.
        close: Function that writes the end of the file.
        end_stretch: Function after which the file can be continued, and that returns
            the bytes which that needs beside the file; None: it cannot be continued.
    """

    write: Callable[[pa.RecordBatch], object]
    flush: Callable[[], object]
    close: Callable[[], object]
    end_stretch: Callable[[], bytes] | None = None


@final
class OpenFile:
    """One file while it is written.

    Each batch is a row group, a record batch, or lines.

    Args:
        path: Path of the file.
        form: Format of the file.
        schema: Schema of its rows.
        tight: True if the file is to end before a size so small that the bytes of its
            end count.
        growing: State of a file of an interrupted export that is continued; None: the
            file is new.

    Attributes:
        rows: Number of rows so far.
    """

    def __init__(
        self,
        path: Path,
        form: FileFormat,
        schema: pa.Schema,
        *,
        tight: bool = False,
        growing: Shard | None = None,
    ) -> None:
        self._path = path
        self._is_tight = tight
        self._format = form.format
        # Bytes after those of the state are of the interrupted run, and are cut off.
        self._stretches: HashingFile | None = None
        self.rows = 0
        recorded_bytes = 0
        stretches: list[bytes] = []
        if growing is not None:
            file_part, stretches_part = growing.parts
            self.rows = growing.rows
            recorded_bytes = file_part.bytes
            stretches = _stretches_of(self._stretches_path, stretches_part.bytes)
            self._stretches = HashingFile(
                self._stretches_path, begin=stretches_part.bytes
            )
        self._sink = HashingFile(path, begin=recorded_bytes)
        open_writer = _WRITERS[form.format]
        self._writer = open_writer(form.compression, self._sink, schema, stretches)
        self._largest_batch = 0  # in bytes, as written
        self._end_bytes = 0
        if form.format != "jsonl":
            self._end_bytes = _FOOTER_BYTES + 2 * schema.serialize().size

    def is_full(self, limit: int, following: pa.RecordBatch) -> bool:
        """Return True if another batch could exceed a size.

        Args:
            limit: Largest size of the file in bytes.
            following: The batch.
        """
        # In large files the end is too small to count.
        if not self._is_tight:
            return self._sink.bytes + self._largest_batch > limit
        end_bytes = self._end_bytes + self._end_bytes_of(following)
        batch_bytes = max(self._largest_batch, following.nbytes)
        return self._sink.bytes + end_bytes + batch_bytes > limit

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        # The size of a batch is known once it is written, encoded and compressed; a
        # small file must also know the bytes that a compression holds back.
        bytes_before = self._sink.bytes
        self._writer.write(batch)
        if self._is_tight:
            self._writer.flush()
            self._end_bytes += self._end_bytes_of(batch)
        self._largest_batch = max(self._largest_batch, self._sink.bytes - bytes_before)
        self.rows += len(batch)

    @property
    def bytes(self) -> int:
        """Size so far, in bytes."""
        return self._sink.bytes

    def so_far(self) -> Sequence[Part]:
        """Return the parts that are written; none if the file cannot be continued."""
        if self._writer.end_stretch is None:
            return ()
        if self._stretches is None:
            self._stretches = HashingFile(self._stretches_path)
        stretch = self._writer.end_stretch()
        self._stretches.write(len(stretch).to_bytes(_SIZE_BYTES, "little") + stretch)
        return (
            Part("", self._sink.bytes, self._sink.sha256),
            Part(_STRETCHES, self._stretches.bytes, self._stretches.sha256),
        )

    def close(self) -> FlatFile:
        """Write the end of the file and return its entry, without a split."""
        # The hash was computed while the bytes were written; the file is not read again.
        self._writer.close()
        self._sink.close()
        if self._stretches is not None:
            self._stretches.close()
        self._path.chmod(file_mode(self._path.parent))
        return FlatFile(
            path=self._path.name,
            split="",
            bytes=self._sink.bytes,
            sha256=self._sink.sha256,
            rows=self.rows,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file if an error left it open."""
        with suppress(Exception):  # the disk may be full; the file is removed anyway
            if not self._sink.closed:
                self._writer.close()
        self._sink.discard()
        if self._stretches is not None:
            self._stretches.discard()

    @property
    def _stretches_path(self) -> Path:
        """Path of the file beside the file, from which it is continued."""
        return self._path.with_name(self._path.name + _STRETCHES)

    def _end_bytes_of(self, batch: pa.RecordBatch) -> int:
        """Return the bytes that a batch takes at most at the file's end."""
        if self._format == "jsonl":
            return 0
        if self._format == "arrow":
            return _ARROW_BLOCK_BYTES
        # The footer of Parquet has an entry for each column of each row group.
        end_bytes = 0
        for field in batch.schema:
            end_bytes += _PARQUET_CHUNK_BYTES * len(_leaves(field.name, field.type))
        # The least and the largest text of a column are part of the footer.
        for column in batch.columns:
            if column.type in (pa.string(), pa.large_string()):
                longest_text = _COMPUTE.max(_COMPUTE.binary_length(column)).as_py() or 0
                end_bytes += 2 * min(_STATISTIC_BYTES, longest_text)
        return end_bytes


def _nothing() -> None:
    """Write nothing: the format holds back no bytes, or has no end."""


def _stretches_of(path: Path, size: int) -> list[bytes]:
    """Return the bytes that each stretch of a file has left beside it.

    Args:
        path: Path of the file beside the file.
        size: Number of its bytes that were recorded.
    """
    with path.open("rb") as file:
        content = file.read(size)
    # Each stretch begins with its size.
    stretches: list[bytes] = []
    position = 0
    while position < size:
        begin = position + _SIZE_BYTES
        position = begin + int.from_bytes(content[position:begin], "little")
        stretches.append(content[begin:position])
    return stretches


def _parquet_writer(
    compression: str,
    sink: HashingFile,
    schema: pa.Schema,
    stretches: Sequence[bytes],
) -> _Writer:
    # Dictionaries of lists of int32 (ids, labels, masks) would cost size and time.
    encoded_columns: list[str] = []
    for field in schema:
        is_int32_list = is_list(field.type) and field.type.value_type == pa.int32()
        if not is_int32_list:
            encoded_columns += _leaves(field.name, field.type)
    file = ParquetFile(sink, schema, compression, encoded_columns, stretches)
    return _Writer(file.write, _nothing, file.close, file.end_stretch)


def _arrow_writer(
    compression: str,
    sink: HashingFile,
    schema: pa.Schema,
    stretches: Sequence[bytes],
) -> _Writer:
    # The file format: any batch can be read alone, and memory-mapped if it is not
    # compressed.
    codec_name: str | None = None
    if compression != "none":
        codec_name = compression
    options = _ARROW.ipc.IpcWriteOptions(compression=codec_name)
    writer = _ARROW.ipc.new_file(sink, schema, options=options)
    return _Writer(writer.write_batch, _nothing, writer.close)


def _json_lines_writer(
    compression: str,
    sink: HashingFile,
    schema: pa.Schema,
    stretches: Sequence[bytes],
) -> _Writer:
    if compression == "none":
        return _Writer(lambda batch: sink.write(text_of(batch)), _nothing, _nothing)
    # Other libraries must be able to read a file that is compressed as one stream.
    stream: Any
    if compression == "gzip":
        # Neither name nor clock in gzip's header: equal rows make equal bytes.
        stream = gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0)
    else:
        stream = _ARROW.CompressedOutputStream(
            _ARROW.PythonFile(sink, "w"), compression
        )
    return _Writer(
        lambda batch: stream.write(text_of(batch)), stream.flush, stream.close
    )


_WRITERS: Final = {
    "parquet": _parquet_writer,
    "arrow": _arrow_writer,
    "jsonl": _json_lines_writer,
}


def _leaves(path: str, kind: Any) -> list[str]:
    """Return the paths of a field's columns as Parquet names them."""
    # Parquet stores each leaf of a nested field as a column of its own. The groups
    # between the names are those of its standard layout of maps and lists.
    types = _ARROW.types
    if types.is_struct(kind):
        leaf_paths: list[str] = []
        for child in kind:
            leaf_paths += _leaves(f"{path}.{child.name}", child.type)
        return leaf_paths
    if types.is_map(kind):
        key_paths = _leaves(f"{path}.key_value.key", kind.key_type)
        return key_paths + _leaves(f"{path}.key_value.value", kind.item_type)
    if is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [path]

"""One file while it is written, in each format."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Final, Protocol, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.flat.form import Form
from tokenlake.flat.lines import text_of
from tokenlake.flat.listtypes import is_list
from tokenlake.storage.writing import HashingFile

_ARROW: Final[Any] = pa
_PARQUET: Final[Any] = pq
_GZIP_LEVEL: Final = 6


class RowsFile(Protocol):
    """Takes batches of one schema. Each batch is a row group, a record batch, or lines."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        ...

    def flush(self) -> None:
        """Write what a compression holds back."""
        ...

    def close(self) -> None:
        """Write what belongs at the end."""
        ...


def open_rows_file(form: Form, sink: HashingFile, schema: pa.Schema) -> RowsFile:
    """Return a writer onto `sink`, which stays open when it is closed."""
    if form.format == "parquet":
        return _ParquetFile(form, sink, schema)
    if form.format == "arrow":
        return _ArrowFile(form, sink, schema)
    return _JsonLinesFile(form, sink)


@final
class _ParquetFile:
    """Page checksums always; token ids PLAIN, because dictionaries and statistics of them cost size and time."""

    def __init__(self, form: Form, sink: HashingFile, schema: pa.Schema) -> None:
        encoded = [path for field in schema for path in leaves(field.name, field.type) if not _is_ids(field)]
        # Parquet's own lz4 is a frame that no two readers agree on; what is called lz4 here is LZ4_RAW.
        self._writer = _PARQUET.ParquetWriter(
            sink,
            schema,
            compression=form.compression,
            compression_level=3 if form.compression == "zstd" else None,
            use_dictionary=encoded or False,
            write_statistics=encoded or False,
            write_page_checksum=True,
            data_page_size=1 << 20,
            write_batch_size=1 << 16,
            version="2.6",
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, row_group_size=max(1, len(batch)))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._writer.close()


@final
class _ArrowFile:
    """The IPC file format: any batch can be read alone, and memory-mapped where nothing is compressed."""

    def __init__(self, form: Form, sink: HashingFile, schema: pa.Schema) -> None:
        options = _ARROW.ipc.IpcWriteOptions(
            compression=None if form.compression == "none" else form.compression
        )
        self._writer = _ARROW.ipc.new_file(sink, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._writer.close()


@final
class _JsonLinesFile:
    """An object on every line."""

    def __init__(self, form: Form, sink: HashingFile) -> None:
        self._sink = sink
        self._packed: Any = None
        if form.compression == "gzip":
            # Neither name nor clock in the header: equal rows make equal bytes.
            self._packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0)
        elif form.compression == "zstd":
            self._packed = _ARROW.CompressedOutputStream(_ARROW.PythonFile(sink, "w"), "zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        data = text_of(batch)
        (self._sink if self._packed is None else self._packed).write(data)

    def flush(self) -> None:
        if self._packed is not None:
            self._packed.flush()

    def close(self) -> None:
        if self._packed is not None:
            self._packed.close()


def leaves(path: str, kind: Any) -> list[str]:
    """Return the paths of a field's columns as Parquet names them."""
    types = _ARROW.types
    if types.is_struct(kind):
        return [leaf for child in kind for leaf in leaves(f"{path}.{child.name}", child.type)]
    if types.is_map(kind):
        key = leaves(f"{path}.key_value.key", kind.key_type)
        return key + leaves(f"{path}.key_value.value", kind.item_type)
    if is_list(kind):
        return leaves(f"{path}.list.element", kind.value_type)
    return [path]


def _is_ids(field: Any) -> bool:
    """Whether a column holds lists of int32: ids, labels, masks."""
    return is_list(field.type) and field.type.value_type == pa.int32()


def file_mode(folder: Path) -> int:
    """Return the permissions that a file of `folder` gets: the folder's own, without execution."""
    return folder.stat().st_mode & 0o666

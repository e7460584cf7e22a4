"""The files of a split while they are written: Parquet, Arrow IPC or JSON Lines.

A file ends at a size, or at given rows.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, final

import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.checks import expected
from tokenlake.errors import SourceError
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.etl.export.flat_manifest import FileFormat, FlatFile
from tokenlake.etl.export.row_batches import text_of
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.schema import open_writer
from tokenlake.runtime.store.writes import HashingFile

_ARROW: Final[Any] = pa

DEFAULT_NAMING: Final = "{split}-{index:05d}-of-{count:05d}"
_COMPUTE: Final[Any] = pc
_GROUP_BYTES: Final = 4 << 20  # Arrow data of a row group, at most where one row is not larger
_GZIP_LEVEL: Final = 6


def check_naming(naming: str, splits: Sequence[str], form: FileFormat) -> None:
    """Raise ConfigError unless `naming` makes names, and no two the same."""
    names = {_shard_name(split, index, 2, form, naming) for split in splits for index in range(2)}
    good = all(name[0] not in "._" and "/" not in name and "\x00" not in name for name in names)
    if not good or len(names) < 2 * len(splits):
        raise _bad_naming(naming, f"it makes {sorted(names)}, which are no different names of data files")


def _shard_name(split: str, index: int, count: int, form: FileFormat, naming: str) -> str:
    """Return ``train-00000-of-00042.parquet``, or what `naming` makes of the split, the index and the count."""
    try:
        return naming.format(split=split, index=index, count=count) + form.extension
    except (KeyError, IndexError, ValueError) as error:
        raise _bad_naming(naming, f"{type(error).__name__}: {error}") from None


def _bad_naming(naming: str, why: str) -> Exception:
    return expected("naming", naming, f"a name like '{{split}}-{{index:05d}}-of-{{count:05d}}': {why}")


def edges_of(rows: int, shards: int) -> tuple[int, ...]:
    """Return where each of `shards` files ends: contiguous shares of `rows`, whose sizes differ by one at most."""
    return tuple((index + 1) * rows // shards for index in range(shards))


@final
class ShardFiles:
    """The files of one split while they are written. Batches must be of one schema.

    Args:
        max_bytes: a file ends at the row group after which another one, of the size of its largest, would not fit;
            None: never. Below 8 MiB row groups are an eighth of it, and what belongs at a file's end is counted.
        edges: rows at which a file ends, ascending, the last of them the number of all rows; None: nowhere.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        form: FileFormat,
        schema: pa.Schema,
        *,
        max_bytes: int | None = None,
        edges: tuple[int, ...] | None = None,
    ) -> None:
        self._folder, self._split, self._form, self._schema = folder, split, form, schema
        self._max_bytes, self._edges = max_bytes, edges
        # Files so small that usual row groups would not do.
        self._tight = max_bytes is not None and max_bytes < 2 * _GROUP_BYTES
        self._group_bytes = max(1, (max_bytes or 0) // 8) if self._tight else _GROUP_BYTES
        self._done: list[FlatFile] = []
        self._open: OpenFile | None = None
        self._edge = 0  # index of the edge that the open file ends at
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        while len(batch):
            # So many rows make a row group.
            rows = max(1, len(batch) * self._group_bytes // max(batch.nbytes, 1))
            while self._tight and rows > 1 and batch.slice(0, rows).nbytes > 2 * self._group_bytes:
                rows //= 2
            part = batch.slice(0, min(self._room(), rows))
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            self._rows += len(part)
            if self._waiting_bytes >= self._group_bytes:
                self._flush()
            batch = batch.slice(len(part))

    def finish(self, naming: str) -> list[FlatFile]:
        """Close the last file, name all, and return what they are; at least one, be it without rows."""
        self._flush()
        if self._edges is not None and self._rows != self._edges[-1]:
            raise _miscounted(self._edges[-1], str(self._rows))
        while self._edges is not None and self._edge < len(self._edges):
            self._end()
        if self._open is not None or not self._done:
            self._end()
        for index, file in enumerate(self._done):
            name = _shard_name(self._split, index, len(self._done), self._form, naming)
            (self._folder / file.path).rename(self._folder / name)
            self._done[index] = replace(file, path=name)
        return self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open after an error; the files are for the caller to remove."""
        if self._open is not None:
            self._open.__exit__()

    def _room(self) -> int:
        """Return how many rows the file may still take, having ended those that may take none."""
        if (edges := self._edges) is None:
            return 1 << 62
        while self._edge < len(edges) and edges[self._edge] <= self._rows:
            self._flush()
            self._end()
        if self._edge == len(edges):
            raise _miscounted(edges[-1], f"more than {edges[-1]}")
        return edges[self._edge] - self._rows

    def _flush(self) -> None:
        """Write what waits as one row group, and end the file if it is full."""
        if not self._waiting:
            return
        batch = self._waiting[0] if len(self._waiting) == 1 else _ARROW.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        limit = self._max_bytes
        if limit is not None and self._open is not None and self._open.is_full(limit, batch):
            self._end(rolled=True)
        self._opened().write(batch)

    def _opened(self) -> OpenFile:
        if self._open is None:
            path = self._folder / f"{self._split}-{len(self._done)}"
            self._open = OpenFile(path, self._form, self._schema, tight=self._tight)
        return self._open

    def _end(self, *, rolled: bool = False) -> None:
        self._done.append(replace(self._opened().close(), split=self._split))
        self._open = None
        self._edge += not rolled


def _miscounted(expected: int, got: str) -> SourceError:
    return SourceError(
        f"the source said it has {expected} rows, but {got} came; nothing was written. Correct its length"
    )


@final
class OpenFile:
    """One file while it is written: each batch is a row group, a record batch, or lines.

    Args:
        tight: the file is to end before a size so small that its end counts.
    """

    def __init__(self, path: Path, form: FileFormat, schema: pa.Schema, *, tight: bool = False) -> None:
        self._path, self._tight, self._format = path, tight, form.format
        self._sink = HashingFile(path)
        self._write, self._flush, self._close = _WRITERS[form.format](form.compression, self._sink, schema)
        self._rows = self._largest = 0
        self._ending = 0 if form.format == "jsonl" else 1024 + 2 * schema.serialize().size

    def is_full(self, limit: int, following: pa.RecordBatch) -> bool:
        if not self._tight:
            return self._sink.bytes + self._largest > limit
        ending = self._ending + self._listed(following)
        return self._sink.bytes + ending + max(self._largest, following.nbytes) > limit

    def write(self, batch: pa.RecordBatch) -> None:
        before = self._sink.bytes
        self._write(batch)
        if self._tight:
            self._flush()
            self._ending += self._listed(batch)
        self._largest = max(self._largest, self._sink.bytes - before)
        self._rows += len(batch)

    def close(self) -> FlatFile:
        self._close()
        self._sink.close()
        self._path.chmod(file_mode(self._path.parent))
        return FlatFile(
            path=self._path.name, split="", bytes=self._sink.bytes, sha256=self._sink.sha256, rows=self._rows
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what an error left open."""
        with suppress(Exception):  # the disk may be full; the file goes anyway
            if not self._sink.closed:
                self._close()
        self._sink.close()

    def _listed(self, batch: pa.RecordBatch) -> int:
        """Return how many bytes a row group takes at most at the file's end: places, sizes, least and largest value."""
        if self._format != "parquet":
            return 0 if self._format == "jsonl" else 64
        texts = [column for column in batch.columns if column.type in (pa.string(), pa.large_string())]
        longest = [_COMPUTE.max(_COMPUTE.binary_length(text)).as_py() or 0 for text in texts]
        places = [path for field in batch.schema for path in _leaves(field.name, field.type)]
        return 256 * len(places) + sum(2 * min(4096, size) for size in longest)


_Writer = tuple[Callable[[pa.RecordBatch], object], Callable[[], object], Callable[[], object]]
"""How to write a batch, how to write what a compression holds back, and how to write what belongs at the end."""


def _nothing() -> None:
    pass


def _parquet(compression: str, sink: HashingFile, schema: pa.Schema) -> _Writer:
    # Not of lists of int32 (ids, labels, masks), where they cost size and time.
    fields = [each for each in schema if not (is_list(each.type) and each.type.value_type == pa.int32())]
    encoded = [path for field in fields for path in _leaves(field.name, field.type)]
    writer: Any = open_writer(sink, schema, compression, encoded)
    return lambda batch: writer.write_batch(batch, row_group_size=max(1, len(batch))), _nothing, writer.close


def _arrow(compression: str, sink: HashingFile, schema: pa.Schema) -> _Writer:
    # The file format: any batch can be read alone, and memory-mapped where nothing is compressed.
    options = _ARROW.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    writer = _ARROW.ipc.new_file(sink, schema, options=options)
    return writer.write_batch, _nothing, writer.close


def _json_lines(compression: str, sink: HashingFile, schema: pa.Schema) -> _Writer:
    if compression == "none":
        return lambda batch: sink.write(text_of(batch)), _nothing, _nothing
    # Neither name nor clock in gzip's header: equal rows make equal bytes.
    packed: Any = (
        gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0)
        if compression == "gzip"
        else _ARROW.CompressedOutputStream(_ARROW.PythonFile(sink, "w"), compression)
    )
    return lambda batch: packed.write(text_of(batch)), packed.flush, packed.close


_WRITERS: Final = {"parquet": _parquet, "arrow": _arrow, "jsonl": _json_lines}


def _leaves(path: str, kind: Any) -> list[str]:
    """Return the paths of a field's columns as Parquet names them."""
    types = _ARROW.types
    if types.is_struct(kind):
        return [leaf for child in kind for leaf in _leaves(f"{path}.{child.name}", child.type)]
    if types.is_map(kind):
        key = _leaves(f"{path}.key_value.key", kind.key_type)
        return key + _leaves(f"{path}.key_value.value", kind.item_type)
    if is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [path]

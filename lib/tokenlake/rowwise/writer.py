"""Rows into a flat directory.

The files of a split: rows in order, a file ended at a size or at given rows.

Rows put aside until it is known how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, final

import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.config.sizes import MIB
from tokenlake.errors import ConfigError, SourceError
from tokenlake.etl.produced_by import produced_by
from tokenlake.rowwise.directory import (
    NO_ORIGIN,
    FlatFile,
    FlatManifest,
    Origin,
    Workplace,
    WriteStats,
    check_target,
    local_target,
    placed,
    write_manifest,
)
from tokenlake.rowwise.formats import (
    LINES,
    Form,
    Row,
    RowsFile,
    RowsToArrow,
    file_mode,
    leaves,
    lines_of,
    open_rows_file,
)
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.store.local_files import HashingFile

GROUP_BYTES: Final = 4 << 20
"""Arrow data of a row group, at most where one row is not larger."""

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc


def shard_name(split: str, index: int, count: int, form: Form, naming: str) -> str:
    """Return ``train-00000-of-00042.parquet``, or what `naming` makes of the split, the index and the count."""
    try:
        stem = naming.format(split=split, index=index, count=count)
    except (KeyError, IndexError, ValueError) as error:
        raise _bad_naming(naming, f"{type(error).__name__}: {error}") from None
    if not stem or stem.startswith((".", "_")) or "/" in stem or "\x00" in stem:
        raise _bad_naming(naming, f"it makes {stem!r}, which is no name of a data file")
    return stem + form.extension


def check_naming(naming: str, splits: Sequence[str], form: Form) -> None:
    """Raise ConfigError unless `naming` makes names, and no two the same."""
    names = {shard_name(split, index, 2, form, naming) for split in splits for index in range(2)}
    if len(names) < 2 * len(splits):
        raise _bad_naming(
            naming, "two files would get the same name; it must hold {index} (and {split}, with several)"
        )


def _bad_naming(naming: str, why: str) -> ConfigError:
    return ConfigError(
        f"naming: got {naming!r}: {why}. Expected something like '{{split}}-{{index:05d}}-of-{{count:05d}}'",
        got=naming,
    )


def edges_of(rows: int, shards: int) -> tuple[int, ...]:
    """Return where each of `shards` files ends: contiguous shares of `rows`, whose sizes differ by one at most."""
    return tuple((index + 1) * rows // shards for index in range(shards))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When files end.

    Attributes:
        max_bytes: a file ends at the row group after which another one, of the size of its largest, would not fit;
            None: never. Below 8 MiB row groups are an eighth of it, and what belongs at a file's end is counted.
        edges: rows at which a file ends, ascending, the last of them the number of all rows; None: nowhere.
    """

    max_bytes: int | None = None
    edges: tuple[int, ...] | None = None

    @property
    def tight(self) -> bool:
        """Whether files are so small that usual row groups would not do."""
        return self.max_bytes is not None and self.max_bytes < 2 * GROUP_BYTES

    @property
    def group_bytes(self) -> int:
        """Arrow data of a row group."""
        return max(1, self.max_bytes // 8) if self.tight and self.max_bytes else GROUP_BYTES


@final
class ShardFiles:
    """The files of one split while they are written. Batches must be of one schema."""

    def __init__(self, folder: Path, split: str, form: Form, schema: pa.Schema, limits: Limits) -> None:
        self._folder, self._split, self._form, self._schema, self._limits = (
            folder,
            split,
            form,
            schema,
            limits,
        )
        self._done: list[FlatFile] = []
        self._open: _OpenFile | None = None
        self._edge = 0  # index of the edge that the open file ends at
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        while len(batch):
            part = batch.slice(0, min(self._room(), _fitting(batch, self._limits)))
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            self._rows += len(part)
            if self._waiting_bytes >= self._limits.group_bytes:
                self._flush()
            batch = batch.slice(len(part))

    def finish(self, naming: str) -> list[FlatFile]:
        """Close the last file, name all, and return what they are; at least one, be it without rows."""
        self._flush()
        if self._limits.edges is not None and self._rows != self._limits.edges[-1]:
            raise _miscounted(self._limits.edges[-1], str(self._rows))
        while self._limits.edges is not None and self._edge < len(self._limits.edges):
            self._end()
        if self._open is not None or not self._done:
            self._end()
        return [self._named(index, naming) for index in range(len(self._done))]

    def discard(self) -> None:
        """Close what is open; the files are for the caller to remove."""
        if self._open is not None:
            self._open.discard()

    def _room(self) -> int:
        """Return how many rows the file may still take, having ended those that may take none."""
        edges = self._limits.edges
        if edges is None:
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
        limit = self._limits.max_bytes
        if limit is not None and self._open is not None and self._open.is_full(limit, batch):
            self._end(rolled=True)
        self._opened().write(batch)

    def _opened(self) -> _OpenFile:
        if self._open is None:
            self._open = _OpenFile(
                self._folder / f"{self._split}-{len(self._done)}",
                self._form,
                self._schema,
                tight=self._limits.tight,
            )
        return self._open

    def _end(self, *, rolled: bool = False) -> None:
        self._done.append(replace(self._opened().close(), split=self._split))
        self._open = None
        self._edge += not rolled

    def _named(self, index: int, naming: str) -> FlatFile:
        name = shard_name(self._split, index, len(self._done), self._form, naming)
        (self._folder / self._done[index].path).rename(self._folder / name)
        return replace(self._done[index], path=name)


@final
class _OpenFile:
    def __init__(self, path: Path, form: Form, schema: pa.Schema, *, tight: bool) -> None:
        self._path, self._tight, self._format = path, tight, form.format
        self._sink = HashingFile(path)
        self._file: RowsFile = open_rows_file(form, self._sink, schema)
        self._rows = self._largest = 0
        self._ending = 0 if form.format == "jsonl" else 1024 + 2 * schema.serialize().size

    def is_full(self, limit: int, following: pa.RecordBatch) -> bool:
        if not self._tight:
            return self._sink.bytes + self._largest > limit
        ending = self._ending + self._listed(following)
        return self._sink.bytes + ending + max(self._largest, following.nbytes) > limit

    def write(self, batch: pa.RecordBatch) -> None:
        before = self._sink.bytes
        self._file.write(batch)
        if self._tight:
            self._file.flush()
            self._ending += self._listed(batch)
        self._largest = max(self._largest, self._sink.bytes - before)
        self._rows += len(batch)

    def _listed(self, batch: pa.RecordBatch) -> int:
        """Return how many bytes a row group takes at most at the file's end: places, sizes, least and largest value."""
        if self._format != "parquet":
            return 0 if self._format == "jsonl" else 64
        texts = [column for column in batch.columns if column.type in (pa.string(), pa.large_string())]
        longest = [_COMPUTE.max(_COMPUTE.binary_length(text)).as_py() or 0 for text in texts]
        places = [path for field in batch.schema for path in leaves(field.name, field.type)]
        return 256 * len(places) + sum(2 * min(4096, size) for size in longest)

    def close(self) -> FlatFile:
        self._file.close()
        self._sink.close()
        self._path.chmod(file_mode(self._path.parent))
        return FlatFile(
            path=self._path.name, split="", bytes=self._sink.bytes, sha256=self._sink.sha256, rows=self._rows
        )

    def discard(self) -> None:
        with suppress(Exception):  # the disk may be full; the file goes anyway
            self._file.close()
        self._sink.close()


def _miscounted(expected: int, got: str) -> SourceError:
    return SourceError(
        f"the source said it has {expected} rows, but {got} came; nothing was written. Mend its length"
    )


def _fitting(batch: pa.RecordBatch, limits: Limits) -> int:
    """Return how many rows of a batch make a row group."""
    rows = max(1, len(batch) * limits.group_bytes // max(batch.nbytes, 1))
    while limits.tight and rows > 1 and batch.slice(0, rows).nbytes > 2 * limits.group_bytes:
        rows //= 2
    return rows


_SpoolARROW: Final[Any] = pa
_NAME: Final = "spool"


@final
class Spool:
    """A compressed file of batches of one schema, read once."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.schema, self.rows = schema, 0
        self._path = folder / _NAME
        options = _SpoolARROW.ipc.IpcWriteOptions(compression="lz4")
        self._sink = _SpoolARROW.OSFile(str(self._path), "wb")
        self._writer = _SpoolARROW.ipc.new_stream(self._sink, schema, options=options)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._writer.write_batch(batch)
        self.rows += len(batch)

    def pour(self, files: ShardFiles) -> None:
        """Move all rows to `files`."""
        self._writer.close()
        self._sink.close()
        with (
            _SpoolARROW.OSFile(str(self._path), "rb") as source,
            _SpoolARROW.ipc.open_stream(source) as batches,
        ):
            for batch in batches:
                files.add(batch)
        self._path.unlink()

    def discard(self) -> None:
        """Close the file, which is for the caller to remove."""
        self._sink.close()


DEFAULT_SHARD_SIZE: Final = 500 * MIB
DEFAULT_NAMING: Final = "{split}-{index:05d}-of-{count:05d}"

_BATCH_ROWS: Final = 1000
_BATCH_SIZE: Final = 1 << 20  # characters and items of a batch
_FIRST_SIZE: Final = 16 << 20  # of the first one, which decides on the types of the columns
_SPLIT: Final = "train"

Rows = ShardedDataSource | Iterable[Row]


@final
class DatasetWriter:
    """Writes one flat directory; :func:`create_writer` makes it.

    Everything at once, or some rows at a time::

        stats = create_writer("out", "jsonl").write(source)

        with create_writer("out", "parquet") as writer:
            writer.add({"text": "one row"})
            writer.extend(more_rows)
        writer.stats

    The directory appears when all is written. An exception inside the block leaves nothing.
    """

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        form: Form,
        *,
        max_bytes: int | None,
        num_shards: int | None,
        overwrite: bool,
        schema: pa.Schema | None,
        naming: str,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        check_naming(naming, [_SPLIT], form)
        self._target = local_target(output_path)
        check_target(self._target, overwrite=overwrite)
        self._form, self._overwrite, self._naming, self._origin = form, overwrite, naming, origin
        self._max_bytes, self._num_shards = max_bytes, num_shards
        self._converter = RowsToArrow(schema)
        # Any row is a line of JSON; columns need one type each.
        self._lines = form.format == "jsonl" and schema is None
        self._stack = ExitStack()
        self._place: Workplace | None = None
        self._files: ShardFiles | Spool | None = None
        self._edges: tuple[int, ...] | None = None
        self._waiting: list[Row] = []
        self._rows = self._waiting_size = 0
        self._stats: WriteStats | None = None

    @property
    def stats(self) -> WriteStats:
        """What was written; ConfigError before that."""
        if self._stats is None:
            raise ConfigError(
                "stats: nothing is written yet; they are there when the writer is closed without an error"
            )
        return self._stats

    def write(self, source: Rows) -> WriteStats:
        """Write all rows of a source or iterable, in order.

        Raises:
            BadRecordError: a row does not fit the columns that the first rows decided.
            ConfigError, StoreError: as :func:`.directory.placed`. Whatever is raised, also by the source,
                leaves the target as it was.
        """
        if self._num_shards is not None and (rows := _known_rows(source)) is not None:
            self._edges = edges_of(rows, self._num_shards)
        with self:
            self.extend(iter(source))
        return self.stats

    def __enter__(self) -> Self:
        if self._place is not None:
            raise ConfigError("this writer was used already; create another one")
        self._place = self._stack.enter_context(placed(self._target, overwrite=self._overwrite))
        return self

    def add(self, row: Row) -> None:
        """Add one row; ConfigError outside of a ``with`` block."""
        if self._place is None or self._stats is not None:
            raise ConfigError("rows are added inside of `with create_writer(...) as writer:`")
        self._waiting.append(row)
        self._waiting_size += _size(row)
        if len(self._waiting) >= _BATCH_ROWS or self._waiting_size >= self._most:
            self._flush()

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        for row in rows:
            self.add(row)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._discard()
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            try:
                manifest = self._finish()
            except BaseException:
                self._discard()
                raise
        self._stats = WriteStats.of(manifest, self._target)

    @property
    def _most(self) -> int:
        return _BATCH_SIZE if self._rows or self._lines else _FIRST_SIZE

    def _flush(self) -> None:
        rows, self._waiting, self._waiting_size = self._waiting, [], 0
        batch = lines_of(rows, self._rows) if self._lines else self._converter.batch(rows)
        self._rows += len(rows)
        self._opened(batch.schema).add(batch)

    def _opened(self, schema: pa.Schema) -> ShardFiles | Spool:
        if self._files is None:
            assert self._place is not None
            if self._num_shards is not None and self._edges is None:
                self._files = Spool(self._place.new, schema)
            else:
                self._files = self._shards(schema, self._edges)
        return self._files

    def _shards(self, schema: pa.Schema, edges: tuple[int, ...] | None) -> ShardFiles:
        assert self._place is not None
        limits = Limits(max_bytes=self._max_bytes, edges=edges)
        return ShardFiles(self._place.new, _SPLIT, self._form, schema, limits)

    def _finish(self) -> FlatManifest:
        assert self._place is not None
        if self._waiting:
            self._flush()
        schema = pa.schema([]) if self._lines else self._converter.schema or pa.schema([])
        manifest = FlatManifest(
            kind=self._origin.kind,
            format=self._form.format,
            compression=self._form.compression,
            columns={name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)},
            files=tuple(self._poured(LINES if self._lines else schema).finish(self._naming)),
            made_of=dict(self._origin.made_of),
            produced_by=produced_by(),
        )
        write_manifest(self._place.new, manifest)
        return manifest

    def _poured(self, schema: pa.Schema) -> ShardFiles:
        files = self._opened(schema)
        if isinstance(files, Spool):
            assert self._num_shards is not None
            self._files = shards = self._shards(files.schema, edges_of(files.rows, self._num_shards))
            files.pour(shards)
            return shards
        return files

    def _discard(self) -> None:
        if self._files is not None:
            self._files.discard()


def _known_rows(source: Rows) -> int | None:
    """Return how many rows a source has, where it says so."""
    if isinstance(source, ShardedDataSource | Sequence):
        try:
            return len(source)
        except TypeError:
            return None
    return None


def _size(row: object) -> int:
    """Return about how large a row is, in characters and items, without looking into what is nested."""
    values = row.values() if isinstance(row, dict) else ()
    return sum(len(value) for value in values if hasattr(value, "__len__"))

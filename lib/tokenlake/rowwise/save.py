"""Any rows as a flat directory: data files that any tool reads, and ``_tokenlake/manifest.json`` beside them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self, final

import pyarrow as pa

from tokenlake.config.sizes import MIB, parse_size
from tokenlake.errors import ConfigError
from tokenlake.etl.produced_by import produced_by
from tokenlake.rowwise.arrow_rows import RowsToArrow
from tokenlake.rowwise.directory import (
    FlatManifest,
    Origin,
    Workplace,
    WriteStats,
    check_target,
    local_target,
    placed,
    write_manifest,
)
from tokenlake.rowwise.files import ArrowShardedSource, JsonShardedSource, ParquetShardedSource
from tokenlake.rowwise.shard_files import (
    LINES,
    FileFormat,
    OpenFile,
    ShardFiles,
    check_naming,
    edges_of,
    lines_of,
)
from tokenlake.rowwise.source import (
    Numbered,
    NumberedSource,
    Row,
    ShardedDataSource,
    ShardInfo,
    known_length,
)

DEFAULT_NAMING: Final = "{split}-{index:05d}-of-{count:05d}"
MOST_SHARDS: Final = 100_000

_SHARD_BYTES: Final = 500 * MIB
_BATCH_ROWS: Final = 1000
_BATCH_SIZE: Final = 1 << 20  # characters and items of a batch
_FIRST_SIZE: Final = 16 << 20  # of the first one, which decides on the types of the columns
_SPLIT: Final = "train"
_SPOOL: Final = "spool"
_READERS: Final = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource}

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
        form: FileFormat,
        *,
        max_bytes: int | None,
        num_shards: int | None,
        overwrite: bool,
        schema: pa.Schema | None,
        naming: str,
        origin: Callable[[], Origin],
    ) -> None:
        check_naming(naming, [_SPLIT], form)
        self.target = local_target(output_path)
        check_target(self.target, overwrite=overwrite)
        self._form, self._overwrite, self._naming, self._origin = form, overwrite, naming, origin
        self._max_bytes, self._num_shards = max_bytes, num_shards
        self._converter = RowsToArrow(schema)
        # Any row is a line of JSON; columns need one type each.
        self._lines = form.format == "jsonl" and schema is None
        self._stack = ExitStack()
        self._place: Workplace | None = None
        self._files: ShardFiles | None = None
        self._spool: OpenFile | None = None  # rows, until their number is known
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
            ConfigError, StoreError: as :func:`tokenlake.rowwise.directory.placed`. Whatever is raised, also by the
                source, leaves the target as it was.
        """
        counts = self._num_shards is not None and isinstance(source, ShardedDataSource | Sequence)
        if counts and (rows := known_length(source)) is not None:
            self._edges = edges_of(rows, self._num_shards or 1)
        with self:
            self.extend(iter(source))
        return self.stats

    def __enter__(self) -> Self:
        if self._place is not None:
            raise ConfigError("this writer was used already; create another one")
        self._place = self._stack.enter_context(placed(self.target, overwrite=self._overwrite))
        return self

    def add(self, row: Row) -> None:
        """Add one row; ConfigError outside of a ``with`` block."""
        if self._place is None or self._stats is not None:
            raise ConfigError("rows are added inside of `with create_writer(...) as writer:`")
        self._waiting.append(row)
        self._waiting_size += _size(row)
        most = _BATCH_SIZE if self._rows or self._lines else _FIRST_SIZE
        if len(self._waiting) >= _BATCH_ROWS or self._waiting_size >= most:
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
        self._stats = WriteStats.of(manifest, self.target)

    def _flush(self) -> None:
        rows, self._waiting, self._waiting_size = self._waiting, [], 0
        batch = lines_of(rows, self._rows) if self._lines else self._converter.batch(rows)
        self._rows += len(rows)
        if self._num_shards is None or self._edges is not None:
            self._shards(batch.schema).add(batch)
            return
        if self._spool is None:
            self._spool = OpenFile(self._new / _SPOOL, FileFormat("arrow", "lz4"), batch.schema)
        self._spool.write(batch)

    @property
    def _new(self) -> Path:
        assert self._place is not None
        return self._place.new

    def _shards(self, schema: pa.Schema) -> ShardFiles:
        if self._files is None:
            limits: Any = {"max_bytes": self._max_bytes, "edges": self._edges}
            self._files = ShardFiles(self._new, _SPLIT, self._form, schema, **limits)
        return self._files

    def _finish(self) -> FlatManifest:
        if self._waiting:
            self._flush()
        if self._num_shards is not None and self._edges is None:
            self._edges = edges_of(self._rows, self._num_shards)
        if self._spool is not None:
            self._pour(self._spool)
        schema = pa.schema([]) if self._lines else self._converter.schema or pa.schema([])
        origin = self._origin()
        manifest = FlatManifest(
            kind=origin.kind,
            format=self._form.format,
            compression=self._form.compression,
            columns={name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)},
            files=tuple(self._shards(LINES if self._lines else schema).finish(self._naming)),
            made_of=dict(origin.made_of),
            produced_by=produced_by(),
        )
        write_manifest(self._new, manifest)
        return manifest

    def _pour(self, spool: OpenFile) -> None:
        """Move the rows that were put aside to the files."""
        spool.close()
        path, arrow = self._new / _SPOOL, pa.ipc
        with pa.OSFile(str(path), "rb") as file, arrow.open_file(file) as batches:
            for number in range(batches.num_record_batches):
                batch = batches.get_batch(number)
                self._shards(batch.schema).add(batch)
        path.unlink()

    def _discard(self) -> None:
        for open_one in (self._files, self._spool):
            if open_one is not None:
                open_one.discard()


def create_writer(
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    *,
    schema: pa.Schema | None = None,
    naming: str = DEFAULT_NAMING,
    origin: Callable[[], Origin] = Origin,
) -> DatasetWriter:
    """Return a writer of a flat directory.

    Args:
        output_path: the directory; it is made when missing.
        format: ``parquet``, ``arrow`` (IPC files) or ``jsonl``.
        max_shard_size: a file ends where another row group would make it larger; bytes, or text like "500MB". None:
            500 MB, or no limit where `num_shards` is given.
        num_shards: exactly this many files, each with an equal share of the rows, in order. Only a file that would
            be larger than a `max_shard_size` given beside it is split into several.
        compression: ``none``, ``gzip``, ``lz4`` or ``zstd``; None: zstd in Parquet, else none. Arrow knows no gzip,
            JSON Lines no lz4.
        overwrite: replace the data files of a directory that is not empty; else it is an error.
        schema: types of the columns; None: the first 1,000 rows decide, and lines of JSON need none.
        naming: names of files, without extension, of ``split``, ``index`` and ``count``.
        origin: asked at the end what the manifest is to say of where the rows come from.

    Raises:
        ConfigError: an argument is not what is allowed, or the target is not empty.
        NotAvailableError: `output_path` is a URL.
    """
    return DatasetWriter(
        output_path,
        FileFormat.of(format, compression),
        max_bytes=shard_bytes(max_shard_size, num_shards),
        num_shards=num_shards,
        overwrite=overwrite,
        schema=schema,
        naming=naming,
        origin=origin,
    )


def save_dataset(
    source: Rows,
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    *,
    schema: pa.Schema | None = None,
    naming: str = DEFAULT_NAMING,
) -> WriteStats:
    """Write the rows of a source (or of any iterable of dicts) as a flat directory; in bounded memory, in order.

    Args:
        source: the rows; for the other arguments see :func:`create_writer`.

    Raises:
        as :func:`create_writer` and :meth:`DatasetWriter.write`; whatever is raised, the target stays as it was.
    """
    limits = (max_shard_size, num_shards, compression, overwrite)
    return create_writer(output_path, format, *limits, schema=schema, naming=naming).write(source)


def save_iterator(
    iterator: Iterable[Row],
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    compression: str | None = None,
    num_shards: int | None = None,
    overwrite: bool = False,
    *,
    schema: pa.Schema | None = None,
    naming: str = DEFAULT_NAMING,
) -> WriteStats:
    """As :func:`save_dataset`, for rows whose number is not known.

    With `num_shards` they are first written to a compressed file beside the target, to count them.
    """
    limits = (max_shard_size, num_shards, compression, overwrite)
    return save_dataset(iterator, output_path, format, *limits, schema=schema, naming=naming)


def shard_bytes(max_shard_size: int | str | None, num_shards: int | None) -> int | None:
    """Check both limits, and return that of bytes.

    Raises:
        ConfigError: one is no size or count.
    """
    counts = not isinstance(num_shards, bool) and hasattr(num_shards, "__index__")
    if num_shards is not None and not (counts and 1 <= num_shards <= MOST_SHARDS):
        raise ConfigError(
            f"num_shards: got {num_shards!r}, must be a whole number from 1 to {MOST_SHARDS}, or None"
        )
    if max_shard_size is None:
        return None if num_shards is not None else _SHARD_BYTES
    try:
        return parse_size(max_shard_size)
    except ConfigError as error:
        raise ConfigError(f"max_shard_size: {error}") from error


@final
class SavedShardedSource(NumberedSource):
    """Another source's rows, by way of a flat directory.

    They are written by the first call that needs them: :meth:`save`, the first row drawn, or a question about shards,
    which are the files. After that the other source is not asked again.
    """

    def __init__(self, source: ShardedDataSource, format: str, make: Callable[[], DatasetWriter]) -> None:
        """Write nothing yet; `make` returns what writes the rows, in files of that format."""
        self._source, self._format, self._make = source, format, make
        self._lock = threading.Lock()
        self._stats: WriteStats | None = None
        self._files: ShardedDataSource | None = None

    def save(self) -> WriteStats:
        """Write the rows, unless this source has done so; a call that fails leaves the target as it was.

        Raises:
            as :func:`save_dataset`.
        """
        with self._lock:
            if self._stats is None:
                stats = self._make().write(self._source)
                self._files = _READERS[self._format](stats.output_paths)
                self._stats = stats
            return self._stats

    @property
    def shard_names(self) -> Sequence[str]:
        return self._read().shard_names

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return self._read().open_shard_numbered(shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._read().get_shard_info(shard_name)

    def _read(self) -> ShardedDataSource:
        self.save()
        assert self._files is not None
        return self._files

    def __repr__(self) -> str:
        return f"SavedShardedSource({self._source!r}, {self._format!r})"


def _size(row: object) -> int:
    """Return about how large a row is, in characters and items, without looking into what is nested."""
    values = row.values() if isinstance(row, dict) else ()
    return sum(len(value) for value in values if hasattr(value, "__len__"))

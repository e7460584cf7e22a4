"""Any rows as a flat directory: data files that any tool reads, and ``_tokenlake/manifest.json`` beside them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self, final

import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.etl.job import produced_by
from tokenlake.export.arrow_rows import LINES, RowsToArrow, lines_of
from tokenlake.export.directory import NEW, target_of
from tokenlake.export.manifest import FileFormat, FlatManifest, Origin, WriteStats, put_manifest
from tokenlake.export.shard_files import DEFAULT_NAMING, OpenFile, ShardFiles, check_naming, edges_of
from tokenlake.export.version import shard_bytes
from tokenlake.rowwise.files import ArrowShardedSource, JsonShardedSource, ParquetShardedSource
from tokenlake.rowwise.shards import Numbered, Row, ShardInfo, known_length
from tokenlake.rowwise.source import NumberedSource, ShardedDataSource

_BATCH_ROWS: Final = 1000
_BATCH_SIZE: Final = 1 << 20  # characters and items of a batch
_FIRST_SIZE: Final = 16 << 20  # of the first one, which decides on the types of the columns
_SPLIT: Final = "train"
_SPOOL: Final = "spool"
_READERS: Final = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource}

Rows = ShardedDataSource | Iterable[Row]


@final
class DatasetWriter:
    """Writes one flat directory.

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
        format: str = "parquet",
        max_shard_size: int | str | None = None,
        num_shards: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
        *,
        schema: pa.Schema | None = None,
        naming: str = DEFAULT_NAMING,
        storage_options: Mapping[str, Any] | None = None,
        origin: Callable[[], Origin] = Origin,
    ) -> None:
        """Write nothing yet.

        Args:
            output_path: the directory, made when missing: a path, ``s3://bucket/folder`` or ``gs://bucket/folder``.
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
            storage_options: for a bucket; None: those of the environment.
            origin: asked at the end what the manifest is to say of where the rows come from.

        Raises:
            ConfigError: an argument is not what is allowed, or the target is not empty.
            NotAvailableError: `output_path` is a URL of something else.
        """
        self._form = FileFormat.of(format, compression)
        self._max_bytes, self._num_shards = shard_bytes(max_shard_size, num_shards), num_shards
        check_naming(naming, [_SPLIT], self._form)
        self.target = target_of(output_path, storage_options)
        self.target.check(overwrite=overwrite)
        self._overwrite, self._naming, self._origin = overwrite, naming, origin
        self._converter = RowsToArrow(schema)
        # Any row is a line of JSON; columns need one type each.
        self._lines = format == "jsonl" and schema is None
        self._stack = ExitStack()
        self._place: Path | None = None
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
            raise ConfigError("stats: nothing is written yet; they are there when the writer is closed")
        return self._stats

    def write(self, source: Rows) -> WriteStats:
        """Write all rows of a source or iterable, in order.

        Raises:
            BadRecordError: a row does not fit the columns that the first rows decided.
            ConfigError, StoreError: as :meth:`tokenlake.export.directory.Target.placed`. Whatever is raised, also by
                the source, leaves the target as it was.
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
        self._place = self._stack.enter_context(self.target.placed(overwrite=self._overwrite)) / NEW
        return self

    def add(self, row: Row) -> None:
        """Add one row; ConfigError outside of a ``with`` block."""
        self._in_place()
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
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            manifest = self._finish(self._in_place())
        self._stats = WriteStats.of(manifest, self.target.url)

    def _in_place(self) -> Path:
        if self._place is None or self._stats is not None:
            raise ConfigError("rows are added inside of `with create_writer(...) as writer:`")
        return self._place

    def _flush(self) -> None:
        rows, self._waiting, self._waiting_size = self._waiting, [], 0
        batch = lines_of(rows, self._rows) if self._lines else self._converter.batch(rows)
        self._rows += len(rows)
        if self._num_shards is None or self._edges is not None:
            self._shards(batch.schema).add(batch)
            return
        if self._spool is None:
            spool = OpenFile(self._in_place() / _SPOOL, FileFormat("arrow", "lz4"), batch.schema)
            self._spool = self._stack.enter_context(spool)
        self._spool.write(batch)

    def _shards(self, schema: pa.Schema) -> ShardFiles:
        if self._files is None:
            limits: Any = {"max_bytes": self._max_bytes, "edges": self._edges}
            files = ShardFiles(self._in_place(), _SPLIT, self._form, schema, **limits)
            self._files = self._stack.enter_context(files)
        return self._files

    def _finish(self, folder: Path) -> FlatManifest:
        if self._waiting:
            self._flush()
        if self._num_shards is not None and self._edges is None:
            self._edges = edges_of(self._rows, self._num_shards)
        if self._spool is not None:
            self._spool.close()
            self._pour(folder / _SPOOL)
        schema = pa.schema([]) if self._lines else self._converter.schema or pa.schema([])
        files = self._shards(LINES if self._lines else schema).finish(self._naming)
        origin = self._origin()
        if not origin.produced_by:
            origin = replace(origin, produced_by=produced_by())
        return put_manifest(folder, self._form, schema, files, origin)

    def _pour(self, spool: Path) -> None:
        """Move the rows that were put aside to the files."""
        arrow: Any = pa.ipc
        with pa.OSFile(str(spool), "rb") as file, arrow.open_file(file) as batches:
            for number in range(batches.num_record_batches):
                batch = batches.get_batch(number)
                self._shards(batch.schema).add(batch)
        spool.unlink()


create_writer = DatasetWriter


def _writer(
    format: Literal["parquet", "arrow", "jsonl"],
    output_path: str | os.PathLike[str],
    max_shard_size: int | str | None = None,
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> DatasetWriter:
    return create_writer(output_path, format, max_shard_size, num_shards, compression, overwrite, **options)


ParquetWriter: Final[Callable[..., DatasetWriter]] = partial(_writer, "parquet")
"""As :func:`tokenlake.create_writer`, for Parquet."""

ArrowWriter: Final[Callable[..., DatasetWriter]] = partial(_writer, "arrow")
"""As :func:`tokenlake.create_writer`, for Arrow IPC files."""

JsonlWriter: Final[Callable[..., DatasetWriter]] = partial(_writer, "jsonl")
"""As :func:`tokenlake.create_writer`, for JSON Lines."""


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
    storage_options: Mapping[str, Any] | None = None,
) -> WriteStats:
    """Write the rows of a source (or of any iterable of dicts) as a flat directory; in bounded memory, in order.

    Args:
        source: the rows; for the other arguments see :func:`create_writer`.

    Raises:
        as :func:`create_writer` and :meth:`DatasetWriter.write`; whatever is raised, the target stays as it was.
    """
    limits = (max_shard_size, num_shards, compression, overwrite)
    further: dict[str, Any] = {"schema": schema, "naming": naming, "storage_options": storage_options}
    return create_writer(output_path, format, *limits, **further).write(source)


def save_iterator(
    iterator: Iterable[Row],
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    max_shard_size: int | str | None = None,
    compression: str | None = None,
    num_shards: int | None = None,
    overwrite: bool = False,
    **options: Any,
) -> WriteStats:
    """As :func:`save_dataset`, for rows whose number is not known.

    With `num_shards` they are first written to a compressed file beside the target, to count them.
    """
    limits = (max_shard_size, num_shards, compression, overwrite)
    return save_dataset(iterator, output_path, format, *limits, **options)


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
        self._written: tuple[WriteStats, ShardedDataSource] | None = None

    def save(self) -> WriteStats:
        """Write the rows, unless this source has done so; a call that fails leaves the target as it was.

        Raises:
            as :func:`save_dataset`.
        """
        return self._saved()[0]

    def _saved(self) -> tuple[WriteStats, ShardedDataSource]:
        with self._lock:
            if self._written is None:
                writer = self._make()
                stats = writer.write(self._source)
                self._written = (
                    stats,
                    _READERS[self._format](stats.output_paths, storage_options=writer.target.options),
                )
            return self._written

    @property
    def shard_names(self) -> Sequence[str]:
        return self._saved()[1].shard_names

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._saved()[1].get_shard_info(shard_name)

    def _rows(self, index: int, row: int) -> Numbered:
        return self._saved()[1].open_shard_numbered(self.shard_names[index], row)

    def __repr__(self) -> str:
        return f"SavedShardedSource({self._source!r}, {self._format!r})"


def _size(row: object) -> int:
    """Return about how large a row is, in characters and items, without looking into what is nested."""
    values = row.values() if isinstance(row, dict) else ()
    return sum(len(value) for value in values if hasattr(value, "__len__"))

"""Any rows, or their tokens, as a flat directory.

It has data files that any tool reads, and ``_tokenlake/manifest.json`` beside them.

Files become tokens by a build in a private store, any other rows in this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self, cast, final

import pyarrow as pa

from tokenlake.base.checks import expected, require_one_of
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.formats import ROW_FORMATS
from tokenlake.config.load import load_config
from tokenlake.config.resolve import resolve_source
from tokenlake.config.stages import DEFAULT_MAX_LENGTH, PackStageConfig, TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.export import directory, flat_manifest, row_batches, shard_files
from tokenlake.etl.export.options import ExportOptions, shard_bytes
from tokenlake.etl.export.version import write_version
from tokenlake.etl.job import produced_by
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import build_dataset
from tokenlake.etl.sources.listing import list_inputs
from tokenlake.etl.text.cut import CutCount, warn_of_cut
from tokenlake.rowwise.combine import IterableShardedSource
from tokenlake.rowwise.files import (
    ArrowShardedSource,
    DataFiles,
    JsonShardedSource,
    ParquetShardedSource,
)
from tokenlake.rowwise.shards import Numbered, Row, ShardInfo, known_length
from tokenlake.rowwise.source import NumberedSource, ShardedDataSource
from tokenlake.rowwise.tokenized import TokenizedShardedSource
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import open_store

_BATCH_ROWS: Final = 1000
_BATCH_SIZE: Final = 1 << 20  # characters and items of a batch
# Characters and items of the first batch, which decides on the types of the columns.
_FIRST_SIZE: Final = 16 << 20
_SPLIT: Final = "train"  # split of the files
_SPOOL: Final = "spool"  # file of the rows whose number is not known yet
# Source that reads the files of a format.
_READERS: Final = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "jsonl": JsonShardedSource,
}

Rows = ShardedDataSource | Iterable[Row]


@final
class DatasetWriter:
    """Writer of one flat directory: everything at once, or some rows at a time.

    ::

        stats = create_writer("out", "jsonl").write(source)

        with create_writer("out", "parquet") as writer:
            writer.add({"text": "one row"})
            writer.extend(more_rows)
        writer.stats

    The directory appears when everything is written. An exception inside the block
    leaves nothing.
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
        naming: str = shard_files.DEFAULT_NAMING,
        storage_options: Mapping[str, Any] | None = None,
        origin: Callable[[], flat_manifest.Origin] = flat_manifest.Origin,
    ) -> None:
        """Check the arguments; nothing is written yet.

        Args:
            output_path: Directory, created if it is missing: a path,
                ``s3://bucket/folder`` or ``gs://bucket/folder``.
            format: ``parquet``, ``arrow`` (IPC files) or ``jsonl``.
            max_shard_size: Maximum size of a file in bytes, or text like "500MB"; a
                file ends before the row group that would exceed it. None for 500 MB, or
                for no limit if `num_shards` is given.
            num_shards: Exact number of files, each with an equal share of the rows, in
                order. Only a file that would be larger than a given `max_shard_size` is
                split into several.
            compression: ``none``, ``gzip``, ``lz4`` or ``zstd``. None for zstd in
                Parquet, else none. Arrow does not support gzip, and JSON Lines do not
                support lz4.
            overwrite: Whether data files of a directory are replaced. If false, a
                directory that is not empty is an error.
            schema: Types of the columns. None if the first 1,000 rows decide; lines of
                JSON need no types.
            naming: Pattern for the names of files without extension, with ``split``,
                ``index`` and ``count``.
            storage_options: Options of a bucket. None for those of the environment.
            origin: Function that returns the origin of the rows for the manifest;
                called at the end.

        Raises:
            ConfigError: An argument is not allowed, or the target is not empty.
            NotAvailableError: `output_path` is a URL of something else.
        """
        require_one_of("format", format, ROW_FORMATS)
        self._form = flat_manifest.FileFormat.of(format, compression)
        self._max_bytes = shard_bytes(max_shard_size, num_shards, self._form)
        self._num_shards = num_shards
        shard_files.check_naming(naming, [_SPLIT], self._form)
        self.target = directory.target_of(output_path, storage_options)
        self.target.check(overwrite=overwrite)
        self._overwrite = overwrite
        self._naming = naming
        self._origin = origin
        self._converter = row_batches.RowsToArrow(schema)
        # Any row is a line of JSON; columns need one type each.
        self._lines = format == "jsonl" and schema is None
        # The files and the target are closed together, in the reverse order.
        self._stack = ExitStack()
        self._place: Path | None = None
        self._files: shard_files.ShardFiles | None = None
        # Rows are put aside until their number is known, which decides on the files.
        self._spool: shard_files.OpenFile | None = None
        self._edges: tuple[int, ...] | None = None
        # Rows of the next batch, and their approximate size.
        self._waiting: list[Row] = []
        self._waiting_size = 0
        self._rows = 0
        self._stats: flat_manifest.WriteStats | None = None

    @property
    def stats(self) -> flat_manifest.WriteStats:
        """Statistics of the written directory; ConfigError before it is written."""
        if self._stats is None:
            raise ConfigError(
                "stats: nothing is written yet; statistics exist once the writer is closed"
            )
        return self._stats

    def write(self, source: Rows) -> flat_manifest.WriteStats:
        """Write all rows of a source or iterable, in order.

        Raises:
            BadRecordError: A row does not fit the columns that the first rows decided.
            ConfigError, StoreError: The target cannot be written, see
                :meth:`tokenlake.etl.export.directory.Target.placed`. Any error, also of
                the source, leaves the target as it was.
        """
        # With a known number of rows, they can be divided among files at once.
        can_count = isinstance(source, ShardedDataSource | Sequence)
        if self._num_shards is not None and can_count:
            row_count = known_length(source)
            if row_count is not None:
                self._edges = shard_files.edges_of(row_count, self._num_shards or 1)
        with self:
            self.extend(iter(source))
        return self.stats

    def __enter__(self) -> Self:
        if self._place is not None:
            raise ConfigError("this writer was already used; create a new one")
        work_folder = self._stack.enter_context(
            self.target.placed(overwrite=self._overwrite)
        )
        self._place = work_folder / directory.NEW
        return self

    def add(self, row: Row) -> None:
        """Add one row; ConfigError outside of a ``with`` block."""
        self._in_place()
        self._waiting.append(row)
        # Approximate size in characters and items, without nested ones.
        for value in row.values():
            if hasattr(value, "__len__"):
                self._waiting_size += len(value)
        # The first batch is larger, because its rows decide on the columns.
        max_size = _BATCH_SIZE if self._rows or self._lines else _FIRST_SIZE
        if len(self._waiting) >= _BATCH_ROWS or self._waiting_size >= max_size:
            self._flush()

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        for row in rows:
            self.add(row)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # After an error the target drops everything.
        if error is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            manifest = self._finish(self._in_place())
        self._stats = flat_manifest.WriteStats.of(manifest, self.target.url)

    def _in_place(self) -> Path:
        """Return the folder of the files; ConfigError outside of a ``with`` block."""
        if self._place is None or self._stats is not None:
            raise ConfigError(
                "rows are added inside `with create_writer(...) as writer:`"
            )
        return self._place

    def _flush(self) -> None:
        """Write the rows of the next batch."""
        rows = self._waiting
        self._waiting = []
        self._waiting_size = 0
        if self._lines:
            batch = row_batches.lines_of(rows, self._rows)
        else:
            batch = self._converter.batch(rows)
            if self._form.format == "jsonl":
                row_batches.refuse_non_finite(rows, self._rows)
        self._rows += len(rows)
        # To the files, or aside.
        if self._num_shards is None or self._edges is not None:
            self._shards(batch.schema).add(batch)
            return
        if self._spool is None:
            spool = shard_files.OpenFile(
                self._in_place() / _SPOOL,
                flat_manifest.FileFormat("arrow", "lz4"),
                batch.schema,
            )
            self._spool = self._stack.enter_context(spool)
        self._spool.write(batch)

    def _shards(self, schema: pa.Schema) -> shard_files.ShardFiles:
        """Return the data files; the first call opens them."""
        if self._files is None:
            limits: Any = {"max_bytes": self._max_bytes, "edges": self._edges}
            files = shard_files.ShardFiles(
                self._in_place(), _SPLIT, self._form, schema, **limits
            )
            self._files = self._stack.enter_context(files)
        return self._files

    def _finish(self, folder: Path) -> flat_manifest.FlatManifest:
        """Write the rest of the rows, and the manifest.

        Args:
            folder: Folder of the files.
        """
        if self._waiting:
            self._flush()
        # Now the number of rows is known: those that were put aside move to the files.
        if self._num_shards is not None and self._edges is None:
            self._edges = shard_files.edges_of(self._rows, self._num_shards)
        if self._spool is not None:
            self._spool.close()
            arrow: Any = pa.ipc
            with (
                pa.OSFile(str(folder / _SPOOL), "rb") as file,
                arrow.open_file(file) as batches,
            ):
                for number in range(batches.num_record_batches):
                    batch = batches.get_batch(number)
                    self._shards(batch.schema).add(batch)
            (folder / _SPOOL).unlink()
        # Lines of JSON have no columns.
        if self._lines:
            schema = pa.schema([])
            files = self._shards(row_batches.LINES).finish(self._naming)
        else:
            schema = self._converter.schema or pa.schema([])
            files = self._shards(schema).finish(self._naming)
        origin = self._origin()
        if not origin.produced_by:
            origin = replace(origin, produced_by=produced_by())
        return flat_manifest.put_manifest(folder, self._form, schema, files, origin)


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
    """Return a writer with a format as its first argument."""
    return create_writer(
        output_path,
        format,
        max_shard_size,
        num_shards,
        compression,
        overwrite,
        **options,
    )


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
    naming: str = shard_files.DEFAULT_NAMING,
    storage_options: Mapping[str, Any] | None = None,
) -> flat_manifest.WriteStats:
    """Write the rows of a source as a flat directory, in order and in bounded memory.

    Args:
        source: Source of rows, or iterable of dicts.
        output_path: Directory, as for :func:`create_writer`, and so are the other
            arguments.
        format: Format of the files.
        max_shard_size: Maximum size of a file.
        num_shards: Number of files.
        compression: Compression of the files.
        overwrite: True to replace the data files of a directory that is not empty.
        schema: Types of the columns.
        naming: Pattern for the names of files.
        storage_options: Options of a bucket.

    Returns:
        Numbers of rows, files and bytes, and the paths of the files.

    Raises:
        ConfigError: An argument is not allowed, or the target is not empty.
        BadRecordError: A row does not fit the columns. After any error the target is
            unchanged.
    """
    limits = (max_shard_size, num_shards, compression, overwrite)
    further: dict[str, Any] = {
        "schema": schema,
        "naming": naming,
        "storage_options": storage_options,
    }
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
) -> flat_manifest.WriteStats:
    """Write rows whose number is not known as a flat directory.

    Arguments and errors are those of :func:`save_dataset`.

    With `num_shards` they are first written to a compressed file beside the target, to
    count them.
    """
    limits = (max_shard_size, num_shards, compression, overwrite)
    return save_dataset(iterator, output_path, format, *limits, **options)


@final
class SavedShardedSource(NumberedSource):
    """Another source's rows, by way of a flat directory.

    They are written by the first call that needs them: :meth:`save`, the first row
    drawn, or a question about shards, which are the files. After that the other source
    is not read again.
    """

    def __init__(
        self, source: ShardedDataSource, format: str, make: Callable[[], DatasetWriter]
    ) -> None:
        """Write nothing yet.

        Args:
            source: Source of the rows.
            format: Format of the files.
            make: Function that returns the writer of the rows, in files of this format.
        """
        self._source = source
        self._format = format
        self._make = make
        self._lock = threading.Lock()
        self._written: tuple[flat_manifest.WriteStats, ShardedDataSource] | None = None

    def save(self) -> flat_manifest.WriteStats:
        """Write the rows, unless this source has done so.

        Errors are those of :func:`save_dataset`.
        """
        return self._saved()[0]

    def _saved(self) -> tuple[flat_manifest.WriteStats, ShardedDataSource]:
        """Return the statistics and the source of the files; the first call writes."""
        # Several threads may need the rows first: one of them writes.
        with self._lock:
            if self._written is None:
                writer = self._make()
                stats = writer.write(self._source)
                read = _READERS[self._format]
                files = read(stats.output_paths, storage_options=writer.target.options)
                self._written = (stats, files)
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


OutputFormat = Literal["parquet", "arrow", "jsonl"]
_DATASET: Final = "tokens"  # name of the dataset in the private store
# Options of `tokenize_and_save` that belong to sections of the configuration.
_TOKENIZE: Final = (
    "tokenizer_backend",
    "engine",
    "special_tokens_in_text",
    "long_documents",
)
_SOURCE: Final = ("unit_size", "max_record_bytes", "max_expansion", "hash_threads")
_MAY_BE_TEXT: Final = (None, "txt", "text", "hf", "huggingface")
"""Values of `type` with which files may be text."""
# Options of `pretokenize` that are arguments of `save_dataset`.
_SAVING: Final = (
    "num_shards",
    "max_shard_size",
    "compression",
    "overwrite",
    "naming",
    "storage_options",
)


def tokenize_and_save(
    data_files: DataFiles,
    tokenizer: str | os.PathLike[str] | TokenizerConfig | Mapping[str, Any],
    output_path: str | os.PathLike[str],
    output_format: OutputFormat = "parquet",
    max_length: int | None = None,
    *,
    num_shards: int | None = None,
    max_shard_size: int | str | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    content_field: str = "text",
    additional_fields: Sequence[str] | None = None,
    pack: bool | PackStageConfig | Mapping[str, Any] = False,
    provenance: bool = False,
    naming: str = shard_files.DEFAULT_NAMING,
    output_options: Mapping[str, Any] | None = None,
    on_event: Watcher = ignore,
    pool: WorkerPool | None = None,
    **options: Any,
) -> flat_manifest.WriteStats:
    """Tokenize files and write a flat directory of data files.

    An ordinary build runs in a private store beside the target (`.<name>.tokenlake/`,
    removed at the end): on worker processes, in bounded memory, resumable, with a
    token-by-token audit. Its rows are then divided among files, and the directory
    appears. Rows have ``input_ids`` and ``attention_mask`` (int32). Each line of a text
    file that is not empty is a document; with ``text_mode="document"`` each file is
    one.

    Args:
        data_files: Path, glob, directory, URL or Hub id, or a list of them.
        tokenizer: Hub id, directory or tokenizer.json file, or a
            :class:`TokenizerConfig`.
        output_path: Directory, created if it is missing: a path, ``s3://bucket/folder``
            or ``gs://bucket/folder``.
        output_format: ``parquet``, ``arrow`` (IPC files) or ``jsonl``.
        max_length: Maximum number of ids of a document, special ones included. Longer
            documents are cut, unless `truncation` or `long_documents` say otherwise;
            the result counts the tokens cut, and a RuntimeWarning is issued if more are
            cut than kept. None: the limit of the tokenizer's configuration, otherwise
            2,048. With `pack` nothing is cut, and this is the length of rows unless
            `pack` sets it.
        num_shards: Number of files of each split, as for
            :func:`tokenlake.create_writer`.
        max_shard_size: Maximum size of a file, as for :func:`tokenlake.create_writer`.
        compression: Compression of the files, as for :func:`tokenlake.create_writer`.
        overwrite: True to replace the data files of a directory that is not empty;
            otherwise that is an error.
        workers: Number of worker processes; None: one for each processor.
        content_field: Field of the text, or of the messages of a chat.
        additional_fields: Fields that are stored beside the tokens; None: none.
        pack: True for rows of one length that hold several documents, or options of
            `PackStageConfig`.
        provenance: True to keep the columns that name the input of each document.
        naming: Pattern for the names of files, as for :func:`tokenlake.create_writer`.
        output_options: Options of a bucket at `output_path`; None: those of the
            environment.
        on_event: Function that receives the events of the build. Default: none is
            called.
        pool: Running workers that are used in place of `workers` new ones, and stay
            open; None: new workers.
        options: Options of `DatasetConfig` (``type``, ``where``, ``chat``, ``splits``,
            ``on_bad_record`` ...), of `TokenizeStageConfig` (``tokenizer_backend``,
            ``special_tokens_in_text``, ``long_documents``), of `SourceStageConfig`
            (``unit_size`` ...), and of `TokenizerConfig` (``truncation``,
            ``add_special_tokens``, ``padding``, ``return_attention_mask``,
            ``trust_remote_code``).

    Returns:
        Numbers of rows, files, bytes and tokens, and the paths of the files.

    Raises:
        ConfigError: An argument is not allowed, or the target is not empty; nothing was
            changed.
        TokenlakeError: The build failed, as for :func:`build_dataset`. The target is
            unchanged. Finished units are kept in the private store, and the same call
            resumes.

    Example:
        >>> import tokenlake as tl
        >>> stats = tl.tokenize_and_save("data/books", "openai-community/gpt2", "out", max_length=512, workers=1)
        >>> stats.num_examples, stats.num_cut
        (120, 82)
    """
    # Everything is checked before the build.
    require_one_of("output_format", output_format, ROW_FORMATS)
    form = flat_manifest.FileFormat.of(output_format, compression)
    build_options = {"content_field": content_field, **options}
    if additional_fields is not None:
        build_options["additional_fields"] = tuple(additional_fields)
    config = _configuration(data_files, tokenizer, max_length, pack, build_options)
    columns = {
        "attention_mask": config["datasets"][0]["tokenizer"]["return_attention_mask"]
    }
    shards = ExportOptions(
        num_shards, max_shard_size, **columns, provenance=provenance, naming=naming
    )
    shard_bytes(max_shard_size, num_shards, form)
    split_names = sorted(options.get("splits") or {"train": 1.0})
    shard_files.check_naming(naming, split_names, form)
    target = directory.target_of(output_path, output_options)
    directory.require_apart("output_path", target, data_files)
    # The private store lies beside the target, and stays there after an error, so that
    # the next call resumes.
    with target.placed(overwrite=overwrite) as work_folder:
        config["save"] = {"output_dir": str(work_folder / directory.STORE)}
        built = build_dataset(
            config, workers=workers, on_event=on_event, pool=pool
        ).manifest
        store = open_store(str(work_folder / directory.STORE))
        manifest = write_version(
            store, built, work_folder / directory.NEW, form, shards, quarantine=True
        )
    count = _cut_count(built.account)
    if count.loses_most:
        tokenizer_section = config["datasets"][0]["tokenizer"]
        limit = tokenizer_section.get("max_length", DEFAULT_MAX_LENGTH)
        warn_of_cut(target.url, count, limit)
    stats = flat_manifest.WriteStats.of(manifest, target.url, built.totals.tokens)
    return replace(stats, num_cut=count.cut, num_dropped_tokens=count.dropped)


def _cut_count(account: Account) -> CutCount:
    """Return the documents and tokens that `max_length` cut, from the audit."""
    # Long documents are cut or dropped, never both.
    cut_documents = account.normalized.get("long_documents_truncate", 0)
    if not cut_documents:
        cut_documents = account.filtered.get("too_long", 0)
    dropped_tokens = sum(account.dropped.values())
    return CutCount(account.rows_read, cut_documents, account.tokens, dropped_tokens)


def pretokenize(
    source: ShardedDataSource | Iterable[Row] | DataFiles,
    tokenizer: Any,
    output_path: str | os.PathLike[str],
    output_format: OutputFormat = "parquet",
    max_length: int | None = None,
    **options: Any,
) -> flat_manifest.WriteStats:
    """Tokenize rows in this process and write a flat directory.

    It is that of :func:`tokenize_and_save`, which does the same with files.

    Args:
        source: Source of rows, or iterable of dicts. For files this is
            :func:`tokenize_and_save`.
        tokenizer: Tokenizer in any form that :meth:`TokenizerManager.get_tokenizer`
            accepts.
        output_path: Directory, created if it is missing: a path, ``s3://bucket/folder``
            or ``gs://bucket/folder``.
        output_format: ``parquet``, ``arrow`` (IPC files) or ``jsonl``.
        max_length: Maximum number of ids of a row; None: the limit of the tokenizer's
            configuration, otherwise 2,048.
        options: Options `num_shards`, `max_shard_size`, `compression`, `overwrite` and
            `naming` of :func:`save_dataset`, and options of
            :class:`TokenizedShardedSource` (for files: of :func:`tokenize_and_save`).

    Returns:
        Numbers of rows, files and bytes, and the paths of the files.

    Raises:
        ConfigError: An argument is not allowed, or the target is not empty.
        BadRecordError: A row has no text. After any error the target is unchanged.

    Example:
        >>> import tokenlake as tl
        >>> rows = [{"text": "A lake holds water."}, {"text": "The river rose."}]
        >>> stats = tl.pretokenize(rows, "openai-community/gpt2", "out")
        >>> stats.num_examples, stats.num_shards
        (2, 1)
    """
    # Paths are files, which are tokenized by a build.
    entries: list[object] = [source]
    if isinstance(source, list | tuple):
        entries = list(cast("Sequence[object]", source))
    if entries and all(isinstance(entry, str | os.PathLike) for entry in entries):
        files = cast("DataFiles", source)
        return tokenize_and_save(
            files, tokenizer, output_path, output_format, max_length, **options
        )
    save_options: dict[str, Any] = {}
    for option in _SAVING:
        if option in options:
            save_options[option] = options.pop(option)
    # The maximum length goes over the settings of the tokenizer, wherever they are.
    if max_length is not None:
        config = options.get("tokenizer_config")
        if not config and isinstance(tokenizer, TokenizerConfig):
            config = tokenizer
        if not config:
            config = getattr(tokenizer, "config", None)
        if not config:
            config = TokenizerConfig(name_or_path="-")
        limit = {"max_length": max_length}
        options["tokenizer_config"] = config.model_copy(update=limit)
    # Only a source knows its number of rows.
    if isinstance(source, ShardedDataSource):
        tokens = TokenizedShardedSource(source, tokenizer, **options, arrays=True)
        stats = save_dataset(tokens, output_path, output_format, **save_options)
    else:
        rows = IterableShardedSource(cast("Iterable[Row]", source))
        tokens = TokenizedShardedSource(rows, tokenizer, **options, arrays=True)
        stats = save_dataset(iter(tokens), output_path, output_format, **save_options)
    return replace(
        stats, num_cut=tokens.truncated.cut, num_dropped_tokens=tokens.truncated.dropped
    )


def tokenize_dataset_config(
    source: ShardedDataSource,
    config: DatasetConfig,
    global_tokenizer: str | TokenizerConfig | None = None,
) -> TokenizedShardedSource:
    """Return the rows of a source as tokens.

    Args:
        source: Rows as they are in the files of the dataset. Those of
            ``create_source(config)`` are already changed.
        config: Dataset. Its tokenizer, `content_field`, `additional_fields`,
            `format_callback` and `format_fields` act.
        global_tokenizer: Tokenizer of a dataset that names none.

    Raises:
        ConfigError: Neither names a tokenizer, or `config` has transforms. Others as
            :class:`TokenizedShardedSource`.
    """
    # Transforms act where files are opened; ignoring them here would give other rows.
    if config.transforms:
        raise ConfigError(
            f"datasets.{config.name}.transforms: do not apply to rows of another source; apply them with "
            "create_source(config), and leave them out here"
        )
    tokenizer = config.get_tokenizer_config() or global_tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"datasets.{config.name}.tokenizer: missing, and there is no global_tokenizer; write a Hub id or a path"
        )
    tokenizer_config: TokenizerConfig | None = None
    if isinstance(tokenizer, TokenizerConfig):
        tokenizer_config = tokenizer
    return TokenizedShardedSource(
        source,
        tokenizer,
        tokenizer_config,
        config.content_field,
        config.additional_fields,
        config.format_callback,
        config.format_fields,
    )


def _configuration(
    data_files: DataFiles,
    tokenizer: object,
    max_length: int | None,
    pack: object,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the configuration of the build, which is not checked here.

    Args:
        data_files: Path, glob, directory, URL or Hub id, or a list of them.
        tokenizer: Hub id, path or TokenizerConfig.
        max_length: Maximum number of ids of a document; None for that of the
            tokenizer's configuration.
        pack: True, False, or options of packing.
        options: Options of the dataset, and of the sections `tokenize`, `source` and
            `tokenizer`.
    """
    # Options go to the section that has them; the others are those of the dataset.
    dataset_options = dict(options)

    def take(names: Iterable[str]) -> dict[str, Any]:
        """Move the options of a section out of those of the dataset."""
        section_options: dict[str, Any] = {}
        for option in names:
            if option in dataset_options:
                section_options[option] = dataset_options.pop(option)
        return section_options

    # The tokenizer in any form becomes its section.
    tokenizer_section: dict[str, Any]
    if isinstance(tokenizer, TokenizerConfig):
        tokenizer_section = tokenizer.model_dump(exclude_unset=True)
    elif isinstance(tokenizer, Mapping):
        tokenizer_section = dict(cast("Mapping[str, Any]", tokenizer))
    elif isinstance(tokenizer, str | os.PathLike):
        tokenizer_section = {"name_or_path": os.fspath(tokenizer)}
    else:
        raise expected(
            "tokenizer",
            tokenizer,
            "a Hub id, a path (save_pretrained makes one) or a TokenizerConfig",
        )
    tokenizer_section |= take(TokenizerConfig.model_fields)
    if max_length is not None:
        tokenizer_section["max_length"] = max_length
    tokenizer_section.setdefault("return_attention_mask", True)
    if dataset_options["content_field"] == "text":
        # A default content field would rule out messages, which are found by
        # themselves.
        del dataset_options["content_field"]

    config: dict[str, Any] = {
        "name": _DATASET,
        "tokenize": take(_TOKENIZE),
        "source": take(_SOURCE),
        "pack": _packing(pack, max_length or tokenizer_section.get("max_length")),
    }
    dataset = {
        "name": "files",
        "data_files": data_files,
        "tokenizer": tokenizer_section,
        **dataset_options,
    }
    config["datasets"] = [dataset]
    # Text files are read line by line here, by default. Only files that may be text are
    # listed for that.
    may_be_text = "text_mode" not in dataset and dataset.get("type") in _MAY_BE_TEXT
    if may_be_text and _has_text_files(config):
        dataset["text_mode"] = "lines"
    return config


def _has_text_files(config: Mapping[str, Any]) -> bool:
    """Return whether the only source of a configuration has text files.

    The files are listed, and not read.
    """
    pipeline = load_config(config)
    source = resolve_source(pipeline, pipeline.datasets[0])
    return any(file.format == "text" for file in list_inputs(source, hashed=False))


def _packing(pack: object, max_length: int | None) -> dict[str, Any]:
    """Return the section `pack` of the build.

    `max_length` is the default of `seq_length`.
    """
    if pack is False or pack is None:
        return {}
    packing: dict[str, Any] = {"enabled": True}
    if isinstance(pack, PackStageConfig):
        packing |= pack.model_dump(exclude_unset=True)
    elif isinstance(pack, Mapping):
        packing |= cast("Mapping[str, Any]", pack)
    elif pack is not True:
        raise expected("pack", pack, "True, False, or options of PackStageConfig")
    if max_length is not None:
        packing.setdefault("seq_length", max_length)
    # Readers of a flat directory do not derive the column, so it is stored.
    packing.setdefault("store_segment_ids", packing.get("include_segment_ids", True))
    return packing

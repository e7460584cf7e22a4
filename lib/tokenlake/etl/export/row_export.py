"""The rows of a version as Parquet, Arrow or JSON Lines, with all their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tokenlake.base.threads import Prefetched
from tokenlake.errors import ConfigError
from tokenlake.etl.export.exported_rows import as_exported
from tokenlake.etl.export.flat_manifest import FileFormat, FlatFile
from tokenlake.etl.export.options import ExportOptions
from tokenlake.etl.export.shard_files import ShardFiles, check_naming, edges_of
from tokenlake.etl.export.shard_folder import ShardFolder
from tokenlake.etl.export.value_files import FilesByValue, SplitFiles
from tokenlake.runtime.reading.version import StoredRows, stored_schema
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.manifest import Manifest

_ARROW: Final[Any] = pa

ROW_GROUPS_AHEAD: Final = 2
"""Row groups that are decoded ahead of the one that is written."""


def write_rows(
    store: ReadStore,
    manifest: Manifest,
    splits: Sequence[str],
    folder: Path,
    form: FileFormat,
    options: ExportOptions,
    shard_folder: ShardFolder,
) -> tuple[pa.Schema, list[FlatFile]]:
    """Write the rows of some splits, and return their schema and the files.

    Args:
        store: Store of the version.
        manifest: Manifest of the rows: of the version, or of those of one source.
        splits: Names of the splits.
        folder: Folder for the finished files.
        form: Format of the files.
        options: Rows and their division into files.
        shard_folder: Folder of the shards until they get their names.

    Raises:
        ConfigError: An option is not allowed, or does not go with another one.
        IntegrityError: A page is damaged.
    """
    # 1. Options of trainers' formats would be ignored, and are refused instead.
    if options.dtype is not None:
        raise ConfigError(
            f"dtype: {options.dtype!r}, but ids of format {form.format!r} are int32; it is for megatron, numpy and npy"
        )
    if options.drop_loss_mask:
        raise ConfigError(
            f"drop_loss_mask: set, but format {form.format!r} has a column for the loss mask; it is for formats of "
            "trainers"
        )
    if options.append_eos:
        raise ConfigError(
            f"append_eos: set, but format {form.format!r} holds rows as they are stored; it is for formats of trainers"
        )
    # 2. Names and schema, before any file exists. A batch without rows has the schema
    #    of all others.
    check_names(splits, form, options)
    empty_batch = _ARROW.RecordBatch.from_pylist([], schema=stored_schema(manifest))
    schema = _as_exported(empty_batch, options).schema
    # 3. The files of each split, from the first row that no finished shard has.
    files: list[FlatFile] = []
    for split in splits:
        row_count = 0
        if split in manifest.splits:
            row_count = manifest.splits[split].rows
        with _open_files(
            folder, split, row_count, form, schema, options, shard_folder
        ) as split_files:
            row_batches = version_batches(
                store, manifest, split, begin_row=split_files.rows
            )
            for skipped_rows, batch in row_batches:
                split_files.add(_as_exported(batch, options).slice(skipped_rows))
            files += split_files.finish(options.naming)
    return schema, files


def check_names(
    splits: Sequence[str], form: FileFormat, options: ExportOptions
) -> None:
    """Raise ConfigError unless files will have different names."""
    name_parts = list(splits)
    if options.shard_column is not None:
        if options.num_shards is not None:
            raise ConfigError(
                f"shard_column: set beside num_shards {options.num_shards}, but each value has files of its own; leave "
                "one of them out"
            )
        # Names contain values, which are not known yet: two of them stand for all.
        name_parts = [f"{split}-{value}" for split in splits for value in "ab"]
    check_naming(options.naming, name_parts, form)


def version_batches(
    store: ReadStore,
    manifest: Manifest,
    split: str,
    columns: Sequence[str] | None = None,
    *,
    begin_row: int = 0,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a version's split in order, a row group at a time.

    Every page's checksum is verified.

    Args:
        store: Store of the version.
        manifest: Manifest of the version.
        split: Name of the split; without rows nothing is yielded.
        columns: Names of the columns; None: all.
        begin_row: Index of the first row that is needed.

    Yields:
        Number of rows of the row group before the first one that is needed, 0 from the
        second row group on; and all rows of the row group.
    """
    if split not in manifest.splits:
        return
    with StoredRows(store, manifest, split) as rows:

        def read(group: tuple[int, int]) -> tuple[int, pa.RecordBatch]:
            row_group, skipped_rows = group
            return skipped_rows, rows.read(row_group, columns)

        # A thread decodes the next row groups while these rows are written.
        batches = Prefetched(groups_from(rows, begin_row), read, ahead=ROW_GROUPS_AHEAD)
        with closing(batches):
            yield from batches


def groups_from(rows: StoredRows, begin_row: int) -> Iterator[tuple[int, int]]:
    """Yield the row groups from the one that holds a row on.

    Each comes with the number of its rows before that row.
    """
    # Row groups before the row are not read: a run that resumes skips them.
    group_begin = 0
    for row_group, row_count in enumerate(rows.group_rows.tolist()):
        group_end = group_begin + row_count
        if group_end > begin_row:
            yield row_group, max(0, begin_row - group_begin)
        group_begin = group_end


def _open_files(
    folder: Path,
    split: str,
    rows: int,
    form: FileFormat,
    schema: pa.Schema,
    options: ExportOptions,
    shard_folder: ShardFolder,
) -> SplitFiles:
    """Open the files of a split of `rows` rows."""
    # A number of files divides the rows evenly; a size ends files as they fill.
    edges = None
    if options.num_shards is not None:
        edges = edges_of(rows, options.num_shards)
    open_files = partial(
        ShardFiles,
        folder,
        form=form,
        schema=schema,
        shards=shard_folder,
        max_bytes=options.max_bytes(form),
        edges=edges,
    )
    if options.shard_column is not None:
        return FilesByValue(split, schema, options.shard_column, open_files)
    return open_files(split)


def _as_exported(rows: pa.RecordBatch, options: ExportOptions) -> pa.RecordBatch:
    return as_exported(
        rows, attention_mask=options.attention_mask, provenance=options.provenance
    )

"""The tokens of a version as files of other trainers.

Masks and segments are written as far as a format can hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa

from tokenlake.base import numbers
from tokenlake.base.threads import Prefetched
from tokenlake.errors import ConfigError
from tokenlake.etl.export.flat_manifest import FileFormat, FlatFile
from tokenlake.etl.export.options import ExportOptions
from tokenlake.etl.export.row_export import (
    ROW_GROUPS_AHEAD,
    check_names,
    groups_from,
    version_batches,
)
from tokenlake.etl.export.shard_files import DEFAULT_NAMING, edges_of
from tokenlake.etl.export.shard_folder import ShardFolder
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers import (
    TokenFacts,
    TokenFiles,
    TokenLayout,
    layout_of,
    put_file,
    require_fit,
)
from tokenlake.etl.export.value_files import FilesByValue
from tokenlake.runtime.reading.version import StoredRows, stored_schema
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.manifest import Manifest


def write_tokens(
    store: ReadStore,
    manifest: Manifest,
    splits: Sequence[str],
    folder: Path,
    form: FileFormat,
    options: ExportOptions,
    shard_folder: ShardFolder,
) -> tuple[pa.Schema, list[FlatFile]]:
    """Write the tokens of some splits; return the schema of the files, and the files.

    Args:
        store: Store of the version.
        manifest: Manifest of the rows: of the version, or of those of one source.
        splits: Names of the splits; those without rows have no files.
        folder: Folder for the finished files.
        form: Format of the files.
        options: Rows and their division into files.
        shard_folder: Folder of the shards until they get their names.

    Raises:
        ConfigError: The format cannot hold the rows, or an option is not allowed.
        MissingExtraError: A package is missing.
        IntegrityError: A page is damaged.
    """
    # 1. The format, and whether it can hold the rows.
    facts = require_fit(manifest, form.format, options)
    layout = layout_of(
        form, facts, dtype=options.dtype, max_bytes=options.max_bytes(form)
    )
    naming = _naming(splits, layout, form, options)
    #    A number of files must suit every split, before the first file is written.
    edges_of_split: dict[str, tuple[int, ...] | None] = {}
    for split in splits:
        # The rows of one source may be of some splits only.
        if split in manifest.splits and manifest.splits[split].rows > 0:
            edges_of_split[split] = _edges(manifest, splits, split, form, options)
    # 2. The files of each split.
    files: list[FlatFile] = []
    for split, edges in edges_of_split.items():
        open_files = partial(
            TokenFiles,
            folder,
            layout=layout,
            shards=shard_folder,
            max_bytes=options.max_bytes(form),
            edges=edges,
        )
        if options.shard_column is None:
            # A run that resumes begins with the first row that no finished shard has.
            with open_files(split) as token_files:
                begin_row = token_files.rows
                for token_rows in _token_rows(store, manifest, split, facts, begin_row):
                    token_files.add_rows(token_rows)
                files += token_files.finish(naming)
        else:
            # Files by value read the column of the values beside the tokens.
            columns = [*sorted(facts.columns), options.shard_column]
            with FilesByValue(
                split, stored_schema(manifest), options.shard_column, open_files
            ) as value_files:
                for _skipped_rows, batch in version_batches(
                    store, manifest, split, columns
                ):
                    value_files.add(batch)
                files += value_files.finish(naming)
    # Trainers map files into memory, which an empty file does not allow.
    if not files:
        raise ConfigError(
            f"format: {manifest.dataset}@v{manifest.version} has no rows in {', '.join(splits)}, and files of format "
            f"{form.format!r} cannot be empty"
        )
    # 3. Files about the others.
    for file_name, content in layout.export_index(files).items():
        files.append(put_file(folder / file_name, content))
    return layout.schema, files


def _naming(
    splits: Sequence[str], layout: TokenLayout, form: FileFormat, options: ExportOptions
) -> str | None:
    """Return the names of files; None: that of their split.

    ConfigError if an option asks for names that the format cannot have.
    """
    if options.provenance:
        raise ConfigError(
            f"provenance: set, but format {form.format!r} has no columns for it; leave it out, or export parquet, "
            "arrow or jsonl"
        )
    # MDS and litdata name their shards in an index; other names would not be found.
    check_names(splits, form, options)
    if layout.has_folders and options.naming != DEFAULT_NAMING:
        raise ConfigError(
            f"naming: {options.naming!r}, but files of format {form.format!r} have the names that its readers expect; "
            "leave it out"
        )
    # A single file has the plain name that trainers are configured with, `train.bin`.
    is_one_file = options.num_shards is None and options.max_bytes(form) is None
    if is_one_file and options.naming == DEFAULT_NAMING:
        return None
    return options.naming


def _edges(
    manifest: Manifest,
    splits: Sequence[str],
    split: str,
    form: FileFormat,
    options: ExportOptions,
) -> tuple[int, ...] | None:
    """Return the rows at which files of a split end; None: at none.

    Args:
        manifest: Manifest of the rows.
        splits: Names of all splits that are exported.
        split: Name of the split.
        form: Format of the files.
        options: Rows and their division into files.

    Raises:
        ConfigError: The split has too few rows.
    """
    if options.num_shards is None:
        return None
    rows = manifest.splits[split].rows
    if options.num_shards <= rows:
        return edges_of(rows, options.num_shards)
    # Often a small split stands beside a large one, which can be exported alone.
    large_splits: list[str] = []
    for other_split in splits:
        if other_split not in manifest.splits:
            continue
        if manifest.splits[other_split].rows >= options.num_shards:
            large_splits.append(other_split)
    remedy = f"Set it to {rows} or less"
    if large_splits:
        options_text = " or ".join(f"--split {name}" for name in large_splits)
        remedy += f", or export {' or '.join(large_splits)} alone ({options_text})"
    raise ConfigError(
        f"num_shards: {options.num_shards} files of {split!r}, which has {numbers.plural(rows, 'row')}; files of "
        f"format {form.format!r} cannot be empty. {remedy}"
    )


def _token_rows(
    store: ReadStore,
    manifest: Manifest,
    split: str,
    facts: TokenFacts,
    begin_row: int,
) -> Iterator[TokenRows]:
    """Yield the rows of a version's split, a row group at a time.

    Every page's checksum is verified.
    """
    with StoredRows(store, manifest, split) as rows:

        def read(group: tuple[int, int]) -> TokenRows:
            row_group, skipped_rows = group
            if manifest.kind == "packed":
                packed_rows = rows.packed(
                    row_group, loss_mask="loss_mask" in facts.columns
                )
                token_rows = TokenRows.of_packed(packed_rows)
            else:
                token_rows = TokenRows.of(rows.read(row_group, sorted(facts.columns)))
            return token_rows.rows(skipped_rows, len(token_rows))

        # A thread decodes the next row groups while these rows are written.
        row_groups = Prefetched(
            groups_from(rows, begin_row), read, ahead=ROW_GROUPS_AHEAD
        )
        with closing(row_groups):
            yield from row_groups

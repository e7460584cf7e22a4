"""A committed version as a flat directory: other formats, other numbers of files, one source or split alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, final
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import STRINGS, cells, offsets_of
from tokenlake.base.checks import expected, whole_number
from tokenlake.base.sizes import MIB, parse_size
from tokenlake.errors import ConfigError
from tokenlake.etl.export import directory, flat_manifest
from tokenlake.etl.export.shard_files import DEFAULT_NAMING, ShardFiles, check_naming, edges_of
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.layout import CONFIG, QUARANTINE, TOKENIZER, Layout
from tokenlake.runtime.store.manifest import Manifest

MOST_SHARDS: Final = 100_000

_ARROW: Final[Any] = pa
_SHARD_BYTES: Final = 500 * MIB
_PROVENANCE: Final = ("file", "position", "documents")
_DERIVED: Final = ("segment_lengths",)


def export_version(
    where: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    compression: str | None = None,
    num_shards: int | None = None,
    max_shard_size: int | str | None = None,
    *,
    name: str | None = None,
    split: str | None = None,
    source: str | None = None,
    overwrite: bool = False,
    attention_mask: bool = True,
    provenance: bool = False,
    naming: str = DEFAULT_NAMING,
    shard_column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, Any] | None = None,
) -> flat_manifest.WriteStats:
    """Write a committed version as a flat directory, which any tool reads; the version stays as it is.

    ::

        tl.export_version("artifacts/llama2-2048@v3", "out", "jsonl", "gzip", num_shards=8)

    A directory that holds this export already is left as it is.

    Args:
        where: the dataset, or one version of it, as :func:`tokenlake.open` takes it.
        output_path: the directory, made when missing: a path, ``s3://bucket/folder`` or ``gs://bucket/folder``.
        format, compression, num_shards, max_shard_size, naming: as :func:`tokenlake.create_writer`; of each split.
        name: of the dataset in the store `where`.
        split: this one alone; None: all.
        source: rows of this source alone, of a version that is no mixture; None: of all.
        overwrite: replace the data files of a directory that is not empty; else it is an error.
        attention_mask: add the column (int32; 1 for ids, 0 for padding) where rows have none.
        provenance: keep the columns that say which input each document comes from.
        shard_column: a kept field of text, whole numbers or truth values, of at most 256 values: each has files of its
            own, ``train-lang=en-00000-of-00001.parquet``, with its rows in order; None: files hold whatever comes.
        storage_options: for the store, as for :func:`tokenlake.open`.
        output_options: for a bucket at `output_path`; None: those of the environment.

    Raises:
        ConfigError: an argument is not what is allowed, or the target is not empty; nothing was changed.
        NotFoundError: there is no such version.
        IntegrityError: a page is damaged; the target stays as it was.
    """
    place, name = parted(where, name)
    store = open_read_store(place, storage_options=storage_options)
    manifest = Catalog(store).manifest_of(name)
    options = ExportOptions(
        num_shards, max_shard_size, split, source, attention_mask, provenance, naming, shard_column
    )
    form, target = (
        flat_manifest.FileFormat.of(format, compression),
        directory.target_of(output_path, output_options),
    )
    return exported(store, manifest, target, form, options, overwrite=overwrite)


@final
@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What an export holds and how it is cut, beside the format of its files; see :func:`export_version`."""

    num_shards: int | None = None
    max_shard_size: int | str | None = None
    split: str | None = None
    source: str | None = None
    attention_mask: bool = True
    provenance: bool = False
    naming: str = DEFAULT_NAMING
    shard_column: str | None = None

    @property
    def max_bytes(self) -> int | None:
        """Bytes of a file at most; None: no limit. ConfigError where a limit is none."""
        return shard_bytes(self.max_shard_size, self.num_shards)


def exported(
    store: ReadStore,
    manifest: Manifest,
    target: directory.Target,
    form: flat_manifest.FileFormat,
    options: ExportOptions,
    *,
    overwrite: bool,
) -> flat_manifest.WriteStats:
    """Have a version at `target`, written unless this very export is there; see :func:`export_version`."""
    found = target.manifest()
    asked = (_export_of(manifest, options), form.format, form.compression)
    there = found and (found.made_of.get("export"), found.format, found.compression)
    same = there == asked
    if found is None or not same or not target.is_whole(found):
        with target.placed(overwrite=overwrite or same) as beside:
            found = write_version(store, manifest, beside / directory.NEW, form, options)
    return flat_manifest.WriteStats.of(found, target.url)


def _export_of(manifest: Manifest, options: ExportOptions) -> dict[str, Any]:
    """Return what a flat directory says of the version that it is an export of."""
    own = {"dataset": manifest.dataset, "version": manifest.version, "manifest": manifest.sha256}
    asked = asdict(options) | {"max_shard_size": options.max_bytes}
    if options.shard_column is None:  # older exports do not say so
        del asked["shard_column"]
    return own | asked


def write_version(
    store: ReadStore,
    manifest: Manifest,
    folder: Path,
    form: flat_manifest.FileFormat,
    options: ExportOptions,
    *,
    quarantine: bool = False,
) -> flat_manifest.FlatManifest:
    """Write the files of an export into a folder, and under ``_tokenlake/`` configuration, tokenizer and manifest.

    Args:
        quarantine: also the bad records that were set aside.

    Raises:
        ConfigError, IntegrityError: as :func:`export_version`.
    """
    splits, column = tuple(manifest.splits) or ("train",), options.shard_column
    if options.split is not None:
        if options.split not in splits:
            name = f"{manifest.dataset}@v{manifest.version}"
            raise ConfigError(f"split: {name} has no {options.split!r}; expected one of {', '.join(splits)}")
        splits = (options.split,)
    if column is not None and options.num_shards is not None:
        why = f"set beside num_shards {options.num_shards}, but each value has files of its own; leave one of them out"
        raise ConfigError(f"shard_column: {why}")
    names = splits if column is None else tuple(f"{split}-{value}" for split in splits for value in "ab")
    check_naming(options.naming, names, form)
    chosen = manifest if options.source is None else _of_source(store, manifest, options.source)
    no_rows = _ARROW.RecordBatch.from_pylist([], schema=stored_schema(manifest))
    schema = _as_exported(no_rows, options).schema
    files: list[flat_manifest.FlatFile] = []
    for split in splits:
        rows = chosen.splits[split].rows if split in chosen.splits else 0
        edges = None if options.num_shards is None else edges_of(rows, options.num_shards)
        limit = options.max_bytes
        with (
            ShardFiles(folder, split, form, schema, max_bytes=limit, edges=edges)
            if column is None
            else FilesByValue(folder, split, form, schema, column, max_bytes=limit)
        ) as shards:
            for batch in version_batches(store, chosen, split):
                shards.add(_as_exported(batch, options))
            files += shards.finish(options.naming)
    kept = (f"{TOKENIZER}/", f"{QUARANTINE}/") if quarantine else (f"{TOKENIZER}/",)
    layout = Layout(manifest.dataset, manifest.version)
    for path in manifest.other_files:
        if path == CONFIG or path.startswith(kept):
            target = folder / flat_manifest.FOLDER / path
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(layout.key(path), target)
    made_of = {
        "fingerprint": manifest.fingerprint,
        "config": manifest.config,
        "tokenizer": manifest.tokenizer,
        "inputs": msgspec.to_builtins(manifest.inputs),
        "account": manifest.account.to_json(),
        "export": _export_of(manifest, options),
    }
    origin = flat_manifest.Origin(manifest.kind, made_of, manifest.produced_by)
    return flat_manifest.put_manifest(folder, form, schema, files, origin)


def shard_bytes(max_shard_size: int | str | None, num_shards: int | None) -> int | None:
    """Check both limits, and return that of bytes.

    Raises:
        ConfigError: one is no size or count.
    """
    if num_shards is not None:
        whole_number("num_shards", num_shards, 1, MOST_SHARDS)
    if max_shard_size is None:
        return None if num_shards is not None else _SHARD_BYTES
    try:
        return parse_size(max_shard_size)
    except ConfigError as error:
        raise ConfigError(f"max_shard_size: {error}") from error


def version_batches(store: ReadStore, manifest: Manifest, split: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version's split in order, a row group at a time; every page's checksum is verified."""
    if split in manifest.splits:
        with StoredRows(store, manifest, split) as rows:
            yield from map(rows.read, range(len(rows.group_rows)))


def _of_source(store: ReadStore, manifest: Manifest, source: str) -> Manifest:
    """Return a version as if it had the files of one source alone; a unit is of one source."""
    place = f"{manifest.dataset}@v{manifest.version}"
    if manifest.mixture is not None or source not in manifest.accounts:
        known = "none, for its rows are mixed" if manifest.mixture else ", ".join(manifest.accounts)
        raise ConfigError(f"source: {place} has no files of {source!r} alone; expected one of {known}")
    if len(manifest.accounts) == 1:
        return manifest
    records = Catalog(store).ledger(manifest.dataset, manifest.version, manifest=manifest)
    if not records:
        raise ConfigError(
            f"source: {place} has no ledger, which says what units are of {source!r}; export all"
        )
    files = tuple(each for each in manifest.files if records[each.unit].source == source)
    return replace(manifest, files=files)


def _as_exported(rows: pa.RecordBatch, options: ExportOptions) -> pa.RecordBatch:
    """Return rows of a version with the columns of a flat directory."""
    left_out = {*_DERIVED, *(() if options.provenance else _PROVENANCE)}
    names, columns, nullable = rows.schema.names, dict[str, Any](), dict[str, bool]()
    for name, column in zip(names, rows.columns, strict=True):
        if name not in left_out:
            # The values of a list are called `item`, as Arrow does; Parquet gives them back as `element`.
            columns[name] = column.cast(_named_type(column.type)) if is_list(column.type) else column
            nullable[name] = rows.schema.field(name).nullable
        if name == "input_ids" and options.attention_mask and "attention_mask" not in names:
            columns["attention_mask"], nullable["attention_mask"] = _mask(rows), False
    fields = [pa.field(name, column.type, nullable[name]) for name, column in columns.items()]
    return _ARROW.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _mask(rows: pa.RecordBatch) -> Any:
    """Return 1 where ids are a document's, and 0 where they are padding; unpacked rows without a mask have none."""
    column: Any = rows.column("input_ids")
    if "segment_lengths" not in rows.schema.names:
        ones = _ARROW.array(np.ones(len(column.flatten()), np.int32))
        offsets = _ARROW.array(column.offsets.to_numpy() - column.offsets[0].as_py())
        return _ARROW.ListArray.from_arrays(offsets, ones, type=_named_type(column.type))
    pieces: Any = rows.column("segment_lengths")
    before = offsets_of(pieces.flatten().to_numpy())
    lengths = np.diff(before[pieces.offsets.to_numpy() - pieces.offsets[0].as_py()])
    mask = cells(lengths, column.type.list_size, left=False).astype(np.int32).reshape(-1)
    return _ARROW.FixedSizeListArray.from_arrays(_ARROW.array(mask), type=_named_type(column.type))


def _named_type(kind: Any) -> Any:
    size = kind.list_size if _ARROW.types.is_fixed_size_list(kind) else -1
    return pa.list_(pa.field("item", kind.value_type, kind.value_field.nullable), size)


_COMPUTE: Final[Any] = pc
_MOST_VALUES: Final = (
    256  # of a column that files are cut by: each has an open file, and rows that wait for it
)
_LONGEST_VALUE: Final = 128  # as it stands in a name, of which a file system allows 255 bytes


@final
class FilesByValue:
    """The files of one split while they are written, each of rows with one value of a column: ``train-lang=en-...``.

    In names a value is percent-encoded, and null is ``~null``.

    Raises:
        ConfigError: there is no such column, or not one of text, whole numbers or truth values; later also: it has more
            than 256 values, or one too long for a name.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        form: flat_manifest.FileFormat,
        schema: pa.Schema,
        column: str,
        *,
        max_bytes: int | None = None,
    ) -> None:
        if column not in schema.names:
            raise expected("shard_column", column, f"one of {', '.join(schema.names)}")
        kind: Any = schema.field(column).type
        if not (kind in STRINGS or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            told = "has no text, whole numbers or truth values, which can stand in the names of files"
            raise ConfigError(f"shard_column: {column!r} is a column of {kind}, and {told}")
        self._place = folder, split, form, schema
        self._column, self._max_bytes = column, max_bytes
        self._files: dict[str, ShardFiles] = {}
        self._stack = ExitStack()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        values: Any = _COMPUTE.dictionary_encode(batch.column(self._column), null_encoding="encode")
        codes = values.indices.to_numpy()
        for code, value in enumerate(values.dictionary.to_pylist()):
            rows = _ARROW.array(np.flatnonzero(codes == code))
            name = "~null" if value is None else quote(str(value), safe="").replace("~", "%7E")
            if name not in self._files:
                too_long = len(name) > _LONGEST_VALUE
                if too_long or len(self._files) == _MOST_VALUES:
                    what = f"the value {name}" if too_long else f"more than {_MOST_VALUES} values"
                    raise ConfigError(
                        f"shard_column: {self._column!r} has {what}; files are cut by a few short ones"
                    )
                column = quote(self._column, safe="")
                self._files[name] = self._opened(f"{self._place[1]}-{column}={name}")
            self._files[name].add(batch.take(rows))

    def finish(self, naming: str) -> list[flat_manifest.FlatFile]:
        """Close all files, name them, and return what they are, by value; at least one, be it without rows."""
        _, split, _, _ = self._place
        files = [self._files[name] for name in sorted(self._files)] or [self._opened(split)]
        return [replace(file, split=split) for each in files for file in each.finish(naming)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is open after an error; the files are for the caller to remove."""
        self._stack.close()

    def _opened(self, split: str) -> ShardFiles:
        folder, _, form, schema = self._place
        return self._stack.enter_context(ShardFiles(folder, split, form, schema, max_bytes=self._max_bytes))

"""Text to a flat directory of tokens: files by a build in a private store, any other rows in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
import numpy as np
import pyarrow as pa

from tokenlake.config.stages import PackStageConfig, TokenizerConfig
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import build_dataset
from tokenlake.ragged import cells, offsets_of
from tokenlake.reading.version import StoredRows, stored_schema
from tokenlake.rowwise.arrow_rows import is_list
from tokenlake.rowwise.checks import expected
from tokenlake.rowwise.directory import (
    FOLDER,
    NEW,
    STORE,
    FlatFile,
    Origin,
    WriteStats,
    local_target,
    placed,
    require_apart,
)
from tokenlake.rowwise.files import DataFiles
from tokenlake.rowwise.save import DEFAULT_NAMING, put_manifest, save_dataset, shard_bytes
from tokenlake.rowwise.shard_files import FileFormat, ShardFiles, check_naming, edges_of
from tokenlake.rowwise.source import Row, ShardedDataSource
from tokenlake.rowwise.tokenized import TokenizedShardedSource, batched_tokenize_iterator
from tokenlake.store.address import open_store
from tokenlake.store.base import Store
from tokenlake.store.layout import CONFIG, QUARANTINE, TOKENIZER, Layout
from tokenlake.store.manifest import Manifest

OutputFormat = Literal["parquet", "arrow", "jsonl"]

_ARROW: Final[Any] = pa
_DATASET: Final = "tokens"
_TOKENIZE: Final = ("engine", "special_tokens_in_text", "long_documents")
_SOURCE: Final = ("unit_size", "max_record_bytes", "max_expansion", "hash_threads")
_PROVENANCE: Final = ("file", "position", "documents")
_SAVING: Final = ("num_shards", "max_shard_size", "compression", "overwrite", "naming")
_DERIVED: Final = ("segment_lengths",)


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
    naming: str = DEFAULT_NAMING,
    on_event: Watcher = ignore,
    pool: WorkerPool | None = None,
    **options: Any,
) -> WriteStats:
    """Tokenize files and write a flat directory of data files.

    A build like any other runs in a private store beside the target (`.<name>.tokenlake/`, removed in the end): on
    worker processes, in bounded memory, resumable, with an account that closes. Then its rows are dealt to files, and
    the directory appears. Rows have ``input_ids`` and ``attention_mask`` (int32).

    Args:
        data_files: path, glob, directory, URL or Hub id, or a list of them.
        tokenizer: Hub id, directory or tokenizer.json file, or a :class:`TokenizerConfig`.
        output_path: the directory; it is made when missing.
        output_format: ``parquet``, ``arrow`` (IPC files) or ``jsonl``.
        max_length: documents are cut to this many ids, special ones included, unless `truncation` or `long_documents`
            say otherwise; None: the tokenizer's configuration, else 2,048. With `pack` nothing is cut, and this is the
            length of rows where `pack` does not say it.
        num_shards, max_shard_size, compression, naming: as :func:`tokenlake.create_writer`; of each split.
        overwrite: replace the data files of a directory that is not empty; else it is an error.
        workers: worker processes; None: as many as there are processors.
        content_field: field of the text, or of the messages of a chat.
        additional_fields: fields to keep beside the tokens.
        pack: rows of one length, of several documents: True, or options of `PackStageConfig`.
        provenance: keep the columns that say which input each document comes from.
        on_event: told of everything that happens.
        pool: running workers to use instead of `workers` new ones; it stays open.
        options: of `DatasetConfig` (``type``, ``where``, ``chat``, ``splits``, ``on_bad_record`` ...), of
            `TokenizeStageConfig` (``engine``, ``special_tokens_in_text``, ``long_documents``), of `SourceStageConfig`
            (``unit_size`` ...), and of `TokenizerConfig` (``truncation``, ``add_special_tokens``, ``padding``,
            ``return_attention_mask``, ``trust_remote_code``).

    Raises:
        ConfigError: an argument is not what is allowed, or the target is not empty; nothing was changed.
        TokenlakeError: see :func:`build_dataset`. The target stays as it was; finished units are kept in the private
            store, and the same call goes on from there.
    """
    form = FileFormat.of(output_format, compression)
    limit = shard_bytes(max_shard_size, num_shards)
    check_naming(naming, sorted(options.get("splits") or {"train": 1.0}), form)
    config = _configuration(
        data_files, tokenizer, max_length, pack, {"content_field": content_field, **options}
    )
    if additional_fields is not None:
        config["datasets"][0]["additional_fields"] = tuple(additional_fields)
    masks = config["datasets"][0]["tokenizer"]["return_attention_mask"]
    target = local_target(output_path)
    require_apart("output_path", target, data_files)
    with placed(output_path, overwrite=overwrite) as beside:
        new = beside / NEW
        config["save"] = {"output_dir": str(beside / STORE)}
        built = build_dataset(config, workers=workers, on_event=on_event, pool=pool).manifest
        store = open_store(str(beside / STORE))
        no_rows = _ARROW.RecordBatch.from_pylist([], schema=stored_schema(built))
        schema = _exported(no_rows, masks, provenance).schema
        files: list[FlatFile] = []
        for split in built.splits or ("train",):
            rows = built.splits[split].rows if built.splits else 0
            edges = None if num_shards is None else edges_of(rows, num_shards)
            with ShardFiles(new, split, form, schema, max_bytes=limit, edges=edges) as shards:
                for batch in version_batches(store, built, split):
                    shards.add(_exported(batch, masks, provenance))
                files += shards.finish(naming)
        _keep_beside(store, built, new / FOLDER)
        manifest = put_manifest(new, form, schema, files, _origin(built))
    return WriteStats.of(manifest, target, built.totals.tokens)


def pretokenize(
    source: ShardedDataSource | Iterable[Row] | DataFiles,
    tokenizer: Any,
    output_path: str | os.PathLike[str],
    output_format: OutputFormat = "parquet",
    max_length: int | None = None,
    **options: Any,
) -> WriteStats:
    """Tokenize any rows in this process and write a flat directory, as :func:`tokenize_and_save` does with files.

    Args:
        source: a source of rows, or an iterable of dicts; with files this is :func:`tokenize_and_save`.
        tokenizer: whatever :meth:`TokenizerManager.get_tokenizer` takes.
        options: `num_shards`, `max_shard_size`, `compression`, `overwrite` and `naming` as :func:`save_dataset` has
            them, and those of :class:`TokenizedShardedSource` (with files: of :func:`tokenize_and_save`).

    Raises:
        as :func:`save_dataset` and :class:`TokenizedShardedSource`; whatever is raised, the target stays as it was.
    """
    if _are_files(source):
        return tokenize_and_save(
            cast("DataFiles", source), tokenizer, output_path, output_format, max_length, **options
        )
    saving = {name: options.pop(name) for name in _SAVING if name in options}
    if max_length is not None:
        config = options.get("tokenizer_config") or _own_config(tokenizer)
        options["tokenizer_config"] = config.model_copy(update={"max_length": max_length})
    make = TokenizedShardedSource if isinstance(source, ShardedDataSource) else batched_tokenize_iterator
    rows = make(source, tokenizer, **options, arrays=True)  # pyright: ignore[reportArgumentType]
    return save_dataset(rows, output_path, output_format, **saving)


def _are_files(source: object) -> bool:
    listed = cast("list[object]", source if isinstance(source, list | tuple) else [source])
    return bool(listed) and all(isinstance(item, str | os.PathLike) for item in listed)


def _own_config(tokenizer: Any) -> TokenizerConfig:
    if isinstance(tokenizer, TokenizerConfig):
        return tokenizer
    return getattr(tokenizer, "config", None) or TokenizerConfig(name_or_path="-")


def _configuration(
    data_files: DataFiles, tokenizer: object, max_length: int | None, pack: object, rest: dict[str, Any]
) -> dict[str, Any]:
    """Return the configuration of the build; what is wrong with it the build will say."""
    chosen = _tokenizer(tokenizer)
    chosen |= {name: rest.pop(name) for name in TokenizerConfig.model_fields if name in rest}
    chosen |= {} if max_length is None else {"max_length": max_length}
    chosen.setdefault("return_attention_mask", True)
    if rest["content_field"] == "text":
        del rest["content_field"]  # so that messages are found by themselves
    sections = {
        "tokenize": {name: rest.pop(name) for name in _TOKENIZE if name in rest},
        "source": {name: rest.pop(name) for name in _SOURCE if name in rest},
        "pack": _packing(pack, max_length or chosen.get("max_length")),
    }
    return {
        "name": _DATASET,
        "datasets": [{"name": "files", "data_files": data_files, "tokenizer": chosen, **rest}],
    } | sections


def _tokenizer(tokenizer: object) -> dict[str, Any]:
    if isinstance(tokenizer, TokenizerConfig):
        return tokenizer.model_dump(exclude_unset=True)
    if isinstance(tokenizer, Mapping):
        return dict(cast("Mapping[str, Any]", tokenizer))
    if isinstance(tokenizer, str | os.PathLike):
        return {"name_or_path": os.fspath(tokenizer)}
    raise expected(
        "tokenizer", tokenizer, "a Hub id, a path (save_pretrained makes one) or a TokenizerConfig"
    )


def _packing(pack: object, max_length: int | None) -> dict[str, Any]:
    if pack is False or pack is None:
        return {}
    if not isinstance(pack, PackStageConfig | Mapping) and pack is not True:
        raise expected("pack", pack, "True, False, or options of PackStageConfig")
    own = (
        pack.model_dump(exclude_unset=True)
        if isinstance(pack, PackStageConfig)
        else {}
        if pack is True
        else pack
    )
    given: dict[str, Any] = {"enabled": True, **own}
    if max_length is not None:
        given.setdefault("seq_length", max_length)
    # Readers of a flat directory do not derive the column, so it is stored.
    given.setdefault("store_segment_ids", given.get("include_segment_ids", True))
    return given


def version_batches(store: Store, manifest: Manifest, split: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version's split in order, a row group at a time; every page's checksum is verified."""
    if split in manifest.splits:
        with StoredRows(store, manifest, split) as rows:
            yield from map(rows.read, range(len(rows.group_rows)))


def _exported(rows: pa.RecordBatch, attention_mask: bool, provenance: bool) -> pa.RecordBatch:
    """Return rows of a version with the columns of a flat directory.

    Args:
        attention_mask: add the column to packed rows, which have none: 1 for ids, 0 for padding.
        provenance: keep the columns that say which input each document comes from.
    """
    left_out = {*_DERIVED, *(() if provenance else _PROVENANCE)}
    names, columns, nullable = rows.schema.names, dict[str, Any](), dict[str, bool]()
    for name, column in zip(names, rows.columns, strict=True):
        if name not in left_out:
            columns[name], nullable[name] = _named(column), rows.schema.field(name).nullable
        if name == "input_ids" and attention_mask and "attention_mask" not in names:
            columns["attention_mask"], nullable["attention_mask"] = _mask(rows), False
    fields = [pa.field(name, column.type, nullable[name]) for name, column in columns.items()]
    return _ARROW.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _mask(rows: pa.RecordBatch) -> Any:
    """Return 1 where the ids of packed rows are a document's, and 0 where they are padding."""
    pieces: Any = rows.column("segment_lengths")
    before = offsets_of(pieces.flatten().to_numpy())
    lengths = np.diff(before[pieces.offsets.to_numpy() - pieces.offsets[0].as_py()])
    ids: Any = rows.schema.field("input_ids").type
    mask = _ARROW.array(cells(lengths, ids.list_size, left=False).astype(np.int32).reshape(-1))
    return _ARROW.FixedSizeListArray.from_arrays(mask, type=_named_type(ids))


def _named(column: Any) -> Any:
    """Call the values of a list ``item``, as Arrow does; Parquet gives them back as ``element``."""
    return column.cast(_named_type(column.type)) if is_list(column.type) else column


def _named_type(kind: Any) -> Any:
    size = kind.list_size if _ARROW.types.is_fixed_size_list(kind) else -1
    return pa.list_(pa.field("item", kind.value_type, kind.value_field.nullable), size)


def _keep_beside(store: Store, built: Manifest, folder: Path) -> None:
    """Copy what a version has besides its data into `folder`: configuration, tokenizer, bad records set aside."""
    layout = Layout(built.dataset, built.version)
    for path in built.other_files:
        if path == CONFIG or path.startswith((f"{TOKENIZER}/", f"{QUARANTINE}/")):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(layout.key(path), target)


def _origin(built: Manifest) -> Origin:
    made_of = {
        "fingerprint": built.fingerprint,
        "config": built.config,
        "tokenizer": built.tokenizer,
        "inputs": msgspec.to_builtins(built.inputs),
        "account": built.account.to_json(),
    }
    return Origin(built.kind, made_of, built.produced_by)

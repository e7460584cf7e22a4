"""Text to a flat directory of tokens: files by a build in a private store, any other rows in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.config.stages import PackStageConfig, TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.runner import build_dataset
from tokenlake.reading.shard_file import ShardFile
from tokenlake.rowwise.directory import (
    FOLDER,
    FlatFile,
    FlatManifest,
    WriteStats,
    local_target,
    placed,
    write_manifest,
)
from tokenlake.rowwise.files import DataFiles
from tokenlake.rowwise.save import DEFAULT_NAMING, save_dataset, shard_bytes
from tokenlake.rowwise.shard_files import FileFormat, ShardFiles, check_naming, edges_of
from tokenlake.rowwise.source import Row, ShardedDataSource
from tokenlake.rowwise.tokenized import TokenizedShardedSource, batched_tokenize_iterator
from tokenlake.schema import packed_schema, tokens_schema
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
        data_files, tokenizer, max_length, content_field, additional_fields, pack, options
    )
    masks = config["datasets"][0]["tokenizer"]["return_attention_mask"]
    target = local_target(output_path)
    _require_apart(data_files, target)
    with placed(output_path, overwrite=overwrite) as place:
        config["save"] = {"output_dir": str(place.store)}
        built = build_dataset(config, workers=workers, on_event=on_event, pool=pool).manifest
        store = open_store(str(place.store))
        schema = _exported(_empty_batch(store, built), masks, provenance).schema
        files: list[FlatFile] = []
        for split in built.splits or ("train",):
            rows = built.splits[split].rows if built.splits else 0
            edges = None if num_shards is None else edges_of(rows, num_shards)
            shards = ShardFiles(place.new, split, form, schema, max_bytes=limit, edges=edges)
            try:
                for batch in version_batches(store, built, split):
                    shards.add(_exported(batch, masks, provenance))
                files += shards.finish(naming)
            except BaseException:
                shards.discard()
                raise
        manifest = _manifest(built, form, schema, files)
        _keep_beside(store, built, place.new / FOLDER)
        write_manifest(place.new, manifest)
    return WriteStats.of(manifest, target, built.totals.tokens)


def pretokenize(
    source: ShardedDataSource | Iterable[Row] | DataFiles,
    tokenizer: Any,
    output_path: str | os.PathLike[str],
    output_format: OutputFormat = "parquet",
    max_length: int | None = None,
    *,
    num_shards: int | None = None,
    max_shard_size: int | str | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    naming: str = DEFAULT_NAMING,
    **options: Any,
) -> WriteStats:
    """Tokenize any rows in this process and write a flat directory, as :func:`tokenize_and_save` does with files.

    Args:
        source: a source of rows, or an iterable of dicts; with files this is :func:`tokenize_and_save`.
        tokenizer: whatever :meth:`TokenizerManager.get_tokenizer` takes.
        options: of :class:`TokenizedShardedSource` (with files: of :func:`tokenize_and_save`).

    Raises:
        as :func:`save_dataset` and :class:`TokenizedShardedSource`; whatever is raised, the target stays as it was.
    """
    saving: dict[str, Any] = {
        "num_shards": num_shards,
        "max_shard_size": max_shard_size,
        "compression": compression,
        "overwrite": overwrite,
        "naming": naming,
    }
    if _are_files(source):
        files = cast("DataFiles", source)
        return tokenize_and_save(
            files, tokenizer, output_path, output_format, max_length, **saving, **options
        )
    if max_length is not None:
        config = options.get("tokenizer_config") or _own_config(tokenizer)
        options["tokenizer_config"] = config.model_copy(update={"max_length": max_length})
    make = TokenizedShardedSource if isinstance(source, ShardedDataSource) else batched_tokenize_iterator
    rows = make(source, tokenizer, **options, arrays=True)  # pyright: ignore[reportArgumentType]
    return save_dataset(rows, output_path, output_format, **saving)


def _are_files(source: object) -> bool:
    if isinstance(source, str | os.PathLike):
        return True
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and all(isinstance(item, str | os.PathLike) for item in source)
    )


def _own_config(tokenizer: Any) -> TokenizerConfig:
    if isinstance(tokenizer, TokenizerConfig):
        return tokenizer
    return getattr(tokenizer, "config", None) or TokenizerConfig(name_or_path="-")


def _configuration(
    data_files: DataFiles,
    tokenizer: object,
    max_length: int | None,
    content_field: str,
    additional_fields: Sequence[str] | None,
    pack: object,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the configuration of the build; what is wrong with it the build will say."""
    rest = dict(options)
    chosen = _tokenizer(tokenizer, max_length, rest)
    tokenize = {name: rest.pop(name) for name in _TOKENIZE if name in rest}
    source = {name: rest.pop(name) for name in _SOURCE if name in rest}
    dataset = {
        "name": "files",
        "data_files": data_files,
        "tokenizer": chosen,
        "content_field": content_field,
        **rest,
    }
    if content_field == "text":
        del dataset["content_field"]  # so that messages are found by themselves
    if additional_fields is not None:
        dataset["additional_fields"] = tuple(additional_fields)
    packing = _packing(pack, max_length or chosen.get("max_length"))
    return {"name": _DATASET, "datasets": [dataset], "tokenize": tokenize, "source": source, "pack": packing}


def _tokenizer(tokenizer: object, max_length: int | None, rest: dict[str, Any]) -> dict[str, Any]:
    if isinstance(tokenizer, TokenizerConfig):
        chosen = tokenizer.model_dump(exclude_unset=True)
    elif isinstance(tokenizer, Mapping):
        chosen: dict[str, Any] = dict(tokenizer)
    elif isinstance(tokenizer, str | os.PathLike):
        chosen = {"name_or_path": os.fspath(tokenizer)}
    else:
        raise ConfigError(
            f"tokenizer: got a {type(tokenizer).__name__}, must be a Hub id, a directory, a tokenizer.json file or a "
            "TokenizerConfig: worker processes load it themselves. (save_pretrained(directory) makes a directory.)"
        )
    chosen |= {name: rest.pop(name) for name in TokenizerConfig.model_fields if name in rest}
    if max_length is not None:
        chosen["max_length"] = max_length
    chosen.setdefault("return_attention_mask", True)
    return chosen


def _packing(pack: object, max_length: int | None) -> dict[str, Any]:
    if pack is False or pack is None:
        return {}
    given: dict[str, Any] = {}
    if isinstance(pack, PackStageConfig):
        given = pack.model_dump(exclude_unset=True)
    elif isinstance(pack, Mapping):
        given = dict(pack)
    elif pack is not True:
        raise ConfigError(f"pack: got {pack!r}, must be True, False, or options of PackStageConfig")
    given = {"enabled": True, **given}
    if max_length is not None:
        given.setdefault("seq_length", max_length)
    # Readers of a flat directory do not derive the column, so it is stored.
    given.setdefault("store_segment_ids", given.get("include_segment_ids", True))
    return given


def _require_apart(data_files: DataFiles, target: Path) -> None:
    """Raise ConfigError if an input lies in the target, where it would be replaced by what is made of it."""
    for entry in [data_files] if isinstance(data_files, str | os.PathLike) else data_files:
        if Path(entry).expanduser().absolute().is_relative_to(target):
            raise ConfigError(
                f"output_path: {target} holds the input {str(entry)!r}; give a directory of its own"
            )


def version_batches(store: Store, manifest: Manifest, split: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version's split in order, a row group at a time; every page's checksum is verified."""
    layout = Layout(manifest.dataset, manifest.version)
    for shard in manifest.files:
        if shard.split != split:
            continue
        with store.open(layout.key(shard.path)) as stream, ShardFile(stream) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, use_threads=False).to_batches()


def _exported(rows: pa.RecordBatch, attention_mask: bool, provenance: bool) -> pa.RecordBatch:
    """Return rows of a version with the columns of a flat directory.

    Args:
        attention_mask: add the column, where the version has none: 1 for ids, 0 for padding.
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
    ids: Any = rows.column("input_ids")
    kind: Any = ids.type
    inner = pa.field("item", pa.int32(), nullable=False)
    if _ARROW.types.is_fixed_size_list(kind):
        mask = _filled(rows, kind.list_size)
        return _ARROW.FixedSizeListArray.from_arrays(_ARROW.array(mask), type=pa.list_(inner, kind.list_size))
    offsets = ids.offsets.to_numpy()
    ones = np.ones(int(offsets[-1] - offsets[0]), np.int32)
    at = _ARROW.array((offsets - offsets[0]).astype(np.int32))
    return _ARROW.ListArray.from_arrays(at, _ARROW.array(ones), type=pa.list_(inner))


def _filled(rows: pa.RecordBatch, width: int) -> Any:
    """int32[rows * width]: 1 where a packed row holds a piece of a document."""
    lengths: Any = rows.column("segment_lengths")
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths.flatten().to_numpy(), dtype=np.int64)])
    bounds = lengths.offsets.to_numpy() - lengths.offsets[0].as_py()
    used = np.diff(ends[bounds])
    return (np.arange(width) < used[:, None]).astype(np.int32).reshape(-1)


def _named(column: Any) -> Any:
    """Call the values of a list ``item``, as Arrow does; Parquet gives them back as ``element``."""
    kind = column.type
    if _ARROW.types.is_fixed_size_list(kind):
        return column.cast(
            pa.list_(pa.field("item", kind.value_type, kind.value_field.nullable), kind.list_size)
        )
    if _ARROW.types.is_list(kind):
        return column.cast(pa.list_(pa.field("item", kind.value_type, kind.value_field.nullable)))
    return column


def _empty_batch(store: Store, built: Manifest) -> pa.RecordBatch:
    """Return no rows of a version, which has perhaps no shards."""
    layout = Layout(built.dataset, built.version)
    if built.files:
        with store.open(layout.key(built.files[0].path)) as stream:
            schema = pq.read_schema(stream)
    elif built.seq_length is None:
        schema = tokens_schema()
    else:
        schema = packed_schema(built.seq_length, store_segment_ids=True)
    arrays = [_ARROW.array([], field.type) for field in schema]
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)


def _keep_beside(store: Store, built: Manifest, folder: Path) -> None:
    """Copy what a version has besides its data into `folder`: configuration, tokenizer, bad records set aside."""
    layout = Layout(built.dataset, built.version)
    for path in built.other_files:
        if path == CONFIG or path.startswith((f"{TOKENIZER}/", f"{QUARANTINE}/")):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(layout.key(path), target)


def _manifest(built: Manifest, form: FileFormat, schema: pa.Schema, files: list[FlatFile]) -> FlatManifest:
    return FlatManifest(
        kind=built.kind,
        format=form.format,
        compression=form.compression,
        columns={name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)},
        files=tuple(files),
        made_of={
            "fingerprint": built.fingerprint,
            "config": built.config,
            "tokenizer": built.tokenizer,
            "inputs": msgspec.to_builtins(built.inputs),
            "account": built.account.to_json(),
        },
        produced_by=dict(built.produced_by) or produced_by(),
    )

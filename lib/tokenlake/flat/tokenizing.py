"""Text to a flat directory of tokens, by the ordinary engine of builds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import pyarrow as pa

from tokenlake.build.events import Watcher, ignore
from tokenlake.build.produced import produced_by
from tokenlake.build.runner import BuildResult, build_dataset
from tokenlake.config.pack_stage import PackStageConfig
from tokenlake.config.tokenizer import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.flat.directory import Workplace, local_target, placed, write_manifest
from tokenlake.flat.export import Export, version_batches, version_schema
from tokenlake.flat.form import Form
from tokenlake.flat.manifest import FlatFile, FlatManifest
from tokenlake.flat.save import save_dataset, shard_bytes
from tokenlake.flat.shards import Limits, ShardFiles, check_naming, edges_of
from tokenlake.flat.stats import WriteStats
from tokenlake.flat.writer import DEFAULT_NAMING
from tokenlake.manifest import Manifest
from tokenlake.schema import packed_schema, tokens_schema
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.tokenized import TokenizedShardedSource, batched_tokenize_iterator
from tokenlake.storage import Store, open_store

OutputFormat = Literal["parquet", "arrow", "jsonl"]
DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_DATASET: Final = "tokens"
_TOKENIZE: Final = ("engine", "special_tokens_in_text", "long_documents")
_SOURCE: Final = ("unit_size", "max_record_bytes", "max_expansion", "hash_threads")


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
        num_shards, max_shard_size, compression, naming: as :func:`tokenlake.flat.save.create_writer`; of each split.
        overwrite: replace the data files of a directory that is not empty; else it is an error.
        workers: worker processes; None: as many as there are processors.
        content_field: field of the text, or of the messages of a chat.
        additional_fields: fields to keep beside the tokens.
        pack: rows of one length, of several documents: True, or options of `PackStageConfig`.
        provenance: keep the columns that say which input each document comes from.
        on_event: told of everything that happens.
        options: of `DatasetConfig` (``type``, ``where``, ``chat``, ``splits``, ``on_bad_record`` ...), of
            `TokenizeStageConfig` (``engine``, ``special_tokens_in_text``, ``long_documents``), of `SourceStageConfig`
            (``unit_size`` ...), and of `TokenizerConfig` (``truncation``, ``add_special_tokens``, ``padding``,
            ``return_attention_mask``, ``trust_remote_code``).

    Raises:
        ConfigError: an argument is not what is allowed, or the target is not empty; nothing was changed.
        TokenlakeError: see :func:`build_dataset`. The target stays as it was; finished units are kept in the private
            store, and the same call goes on from there.
    """
    form = Form.of(output_format, compression)
    limit = shard_bytes(max_shard_size, num_shards)
    check_naming(naming, sorted(options.get("splits") or {"train": 1.0}), form)
    config = _configuration(
        data_files, tokenizer, max_length, content_field, additional_fields, pack, options
    )
    export = Export(
        attention_mask=config["datasets"][0]["tokenizer"]["return_attention_mask"], provenance=provenance
    )
    with placed(output_path, overwrite=overwrite) as place:
        config["save"] = {"output_dir": str(place.store)}
        result = build_dataset(config, workers=workers, on_event=on_event)
        files, schema = _export(place, result.manifest, form, export, limit, num_shards, naming)
        manifest = _manifest(result, form, schema, files)
        write_manifest(place.new, manifest)
    return WriteStats.of(manifest, local_target(output_path), result.manifest.totals.tokens)


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
    # Nobody derives the column from a flat directory, so it is there where it is wanted.
    given.setdefault("store_segment_ids", given.get("include_segment_ids", True))
    return given


def _export(
    place: Workplace,
    built: Manifest,
    form: Form,
    export: Export,
    max_bytes: int | None,
    num_shards: int | None,
    naming: str,
) -> tuple[list[FlatFile], pa.Schema]:
    store = open_store(str(place.store))
    schema = export.schema(version_schema(store, built) or _schema_of(built))
    files: list[FlatFile] = []
    for split in built.splits or ("train",):
        rows = built.splits[split].rows if built.splits else 0
        edges = None if num_shards is None else edges_of(rows, num_shards)
        shards = ShardFiles(place.new, split, form, schema, Limits(max_bytes=max_bytes, edges=edges))
        try:
            files += _poured(store, built, split, export, shards).finish(naming)
        except BaseException:
            shards.discard()
            raise
    return files, schema


def _poured(store: Store, built: Manifest, split: str, export: Export, shards: ShardFiles) -> ShardFiles:
    for batch in version_batches(store, built, split):
        shards.add(export.batch(batch))
    return shards


def _schema_of(built: Manifest) -> pa.Schema:
    """Return the schema of a version without shards."""
    return (
        tokens_schema()
        if built.seq_length is None
        else packed_schema(built.seq_length, store_segment_ids=True)
    )


def _manifest(result: BuildResult, form: Form, schema: pa.Schema, files: list[FlatFile]) -> FlatManifest:
    built = result.manifest
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
            "inputs": [entry.to_json() for entry in built.inputs],
            "account": built.account.to_json(),
        },
        produced_by=dict(built.produced_by) or produced_by(),
    )

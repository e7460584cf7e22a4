"""Text to a flat directory of tokens, by the ordinary engine of builds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tokenlake.build.events import Watcher, ignore
from tokenlake.build.produced import produced_by
from tokenlake.build.runner import BuildResult, build_dataset
from tokenlake.config.pack_stage import PackStageConfig
from tokenlake.config.tokenizer import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.flat.directory import Workplace, local_target, placed, write_manifest
from tokenlake.flat.export import Export, keep_beside, version_batches, version_schema
from tokenlake.flat.form import Form
from tokenlake.flat.manifest import FOLDER, FlatFile, FlatManifest
from tokenlake.flat.request import DataFiles, configuration
from tokenlake.flat.save import shard_bytes
from tokenlake.flat.shards import Limits, ShardFiles, check_naming, edges_of
from tokenlake.flat.stats import WriteStats
from tokenlake.flat.writer import DEFAULT_NAMING
from tokenlake.manifest import Manifest
from tokenlake.schema import packed_schema, tokens_schema
from tokenlake.storage import Store, open_store

OutputFormat = Literal["parquet", "arrow", "jsonl"]


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
    config = configuration(data_files, tokenizer, max_length, content_field, additional_fields, pack, options)
    export = Export(
        attention_mask=config["datasets"][0]["tokenizer"]["return_attention_mask"], provenance=provenance
    )
    _require_apart(data_files, local_target(output_path))
    with placed(output_path, overwrite=overwrite) as place:
        config["save"] = {"output_dir": str(place.store)}
        result = build_dataset(config, workers=workers, on_event=on_event)
        files, schema = _export(place, result.manifest, form, export, limit, num_shards, naming)
        manifest = _manifest(result, form, schema, files)
        keep_beside(open_store(str(place.store)), result.manifest, place.new / FOLDER)
        write_manifest(place.new, manifest)
    return WriteStats.of(manifest, local_target(output_path), result.manifest.totals.tokens)


def _require_apart(data_files: DataFiles, target: Path) -> None:
    """Raise ConfigError if an input lies in the target, where it would be replaced by what is made of it."""
    for entry in [data_files] if isinstance(data_files, str | os.PathLike) else data_files:
        if Path(entry).expanduser().absolute().is_relative_to(target):
            raise ConfigError(
                f"output_path: {target} holds the input {str(entry)!r}; give a directory of its own"
            )


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

"""Text to a flat directory of tokens: files by a build in a private store, any other rows in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.stages import PackStageConfig, TokenizerConfig
from tokenlake.config.values import expected
from tokenlake.errors import ConfigError
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import build_dataset
from tokenlake.export.directory import NEW, STORE, require_apart, target_of
from tokenlake.export.manifest import FileFormat, WriteStats
from tokenlake.export.shard_files import DEFAULT_NAMING, check_naming
from tokenlake.export.version import ExportOptions, shard_bytes, write_version
from tokenlake.rowwise.files import DataFiles
from tokenlake.rowwise.save import save_dataset
from tokenlake.rowwise.shards import Row
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.rowwise.tokenized import TokenizedShardedSource, batched_tokenize_iterator
from tokenlake.store.address import open_store

OutputFormat = Literal["parquet", "arrow", "jsonl"]

_DATASET: Final = "tokens"
_TOKENIZE: Final = ("engine", "special_tokens_in_text", "long_documents")
_SOURCE: Final = ("unit_size", "max_record_bytes", "max_expansion", "hash_threads")
_SAVING: Final = ("num_shards", "max_shard_size", "compression", "overwrite", "naming", "storage_options")


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
    output_options: Mapping[str, Any] | None = None,
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
        output_path: the directory, made when missing: a path, ``s3://bucket/folder`` or ``gs://bucket/folder``.
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
        output_options: for a bucket at `output_path`; None: those of the environment.
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
    config = _configuration(
        data_files, tokenizer, max_length, pack, {"content_field": content_field, **options}
    )
    if additional_fields is not None:
        config["datasets"][0]["additional_fields"] = tuple(additional_fields)
    masks = config["datasets"][0]["tokenizer"]["return_attention_mask"]
    shards = ExportOptions(
        num_shards, max_shard_size, attention_mask=masks, provenance=provenance, naming=naming
    )
    shard_bytes(max_shard_size, num_shards)
    check_naming(naming, sorted(options.get("splits") or {"train": 1.0}), form)
    target = target_of(output_path, output_options)
    require_apart("output_path", target, data_files)
    with target.placed(overwrite=overwrite) as beside:
        config["save"] = {"output_dir": str(beside / STORE)}
        built = build_dataset(config, workers=workers, on_event=on_event, pool=pool).manifest
        store = open_store(str(beside / STORE))
        manifest = write_version(store, built, beside / NEW, form, shards, quarantine=True)
    return WriteStats.of(manifest, target.url, built.totals.tokens)


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


def tokenize_dataset_config(
    source: ShardedDataSource, config: DatasetConfig, global_tokenizer: str | TokenizerConfig | None = None
) -> TokenizedShardedSource:
    """Return the rows of a source as tokens.

    Args:
        source: rows as the files of the dataset have them: those of ``create_source(config)`` are changed already.
        config: whose tokenizer, `content_field`, `additional_fields`, `format_callback` and `format_fields` act.
        global_tokenizer: of a dataset that names none.

    Raises:
        ConfigError: neither names a tokenizer, or `config` has transforms. Others as :class:`TokenizedShardedSource`.
    """
    if config.transforms:
        how = "apply them by create_source(config), and leave them out here"
        raise ConfigError(f"datasets.{config.name}.transforms: do not act on rows of another source; {how}")
    tokenizer = config.get_tokenizer_config() or global_tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"datasets.{config.name}.tokenizer: missing, and there is no global_tokenizer; write a Hub id or a path"
        )
    return TokenizedShardedSource(
        source,
        tokenizer,
        tokenizer if isinstance(tokenizer, TokenizerConfig) else None,
        config.content_field,
        config.additional_fields,
        config.format_callback,
        config.format_fields,
    )


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

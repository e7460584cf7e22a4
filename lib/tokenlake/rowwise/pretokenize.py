"""Any rows to a flat directory of tokens."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, cast

from tokenlake.config.stages import TokenizerConfig
from tokenlake.rowwise.directory import WriteStats
from tokenlake.rowwise.save import save_dataset
from tokenlake.rowwise.source import Row, ShardedDataSource
from tokenlake.rowwise.tokenize import DataFiles, OutputFormat, tokenize_and_save
from tokenlake.rowwise.tokenized import TokenizedShardedSource, batched_tokenize_iterator
from tokenlake.rowwise.writer import DEFAULT_NAMING


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

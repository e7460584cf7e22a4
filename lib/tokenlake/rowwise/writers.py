"""Writers by the name of their format, and the tokens of a dataset as its configuration asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.rowwise.save import DatasetWriter, create_writer
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.rowwise.tokenized import TokenizedShardedSource


def _writer(
    format: Literal["parquet", "arrow", "jsonl"],
    output_path: str | os.PathLike[str],
    max_shard_size: int | str | None = None,
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> DatasetWriter:
    return create_writer(output_path, format, max_shard_size, num_shards, compression, overwrite, **options)


ParquetWriter: Final[Callable[..., DatasetWriter]] = partial(_writer, "parquet")
"""As :func:`tokenlake.create_writer`, for Parquet."""

ArrowWriter: Final[Callable[..., DatasetWriter]] = partial(_writer, "arrow")
"""As :func:`tokenlake.create_writer`, for Arrow IPC files."""

JsonlWriter: Final[Callable[..., DatasetWriter]] = partial(_writer, "jsonl")
"""As :func:`tokenlake.create_writer`, for JSON Lines."""


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

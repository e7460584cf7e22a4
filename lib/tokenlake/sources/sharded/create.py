"""From a dataset's configuration to its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tokenlake import config as configuration
from tokenlake.config.resolve import resolve_dataset
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.sharded.base import ShardedDataSource, TransformedShardedSource
from tokenlake.sources.sharded.filebacked import (
    ArrowShardedSource,
    CsvShardedSource,
    FileBacked,
    FilesShardedSource,
    HuggingFaceShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    TextShardedSource,
    downloaded_first,
)
from tokenlake.sources.sharded.files import FileShards
from tokenlake.transforms.base import ChainedTransform
from tokenlake.transforms.configured import open_chain

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.source_stage import SourceStageConfig

_CLASSES: Final[dict[str, type[FileBacked]]] = {
    "jsonl": JsonShardedSource,
    "json": JsonShardedSource,
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "csv": CsvShardedSource,
    "tsv": CsvShardedSource,
    "text": TextShardedSource,
}
# What a build does with documents; rows that come out as they are would not show it.
_FOR_BUILDS: Final = (
    "splits",
    "exclude",
    "max_bad_fraction",
    "chat",
    "prompt",
    "preference",
    "long_documents",
)


def create_source(config: DatasetConfig | Mapping[str, Any]) -> ShardedDataSource:
    """Return the rows of a dataset as it is configured: `format_callback`, then `format_fields`, then `transforms`.

    Its class is that of the files' format, :class:`FilesShardedSource` where they have several; where rows are
    changed, a :class:`TransformedShardedSource` over it. Text files put their text in `content_field`. What
    concerns the tokenizer is not a source's matter.

    Args:
        config: a DatasetConfig, or a mapping of its keys.

    Raises:
        ConfigError: a key or value is not allowed.
        NotAvailableError: an option that rows do not follow in this release.
        SourceNotFoundError: an entry of `data_files` matches nothing.
    """
    return open_dataset(_checked(config))


def open_dataset(
    dataset: DatasetConfig, stage: SourceStageConfig | None = None, *, streaming: bool = True
) -> ShardedDataSource:
    """Return the rows of a checked dataset; raises as :func:`create_source`.

    Args:
        stage: limits on records, and the policy of datasets that have none of their own; None: the defaults.
        streaming: read over the network; else files of the Hub are downloaded first.
    """
    if stage is not None:
        dataset = dataset.model_copy(update={"on_bad_record": dataset.on_bad_record or stage.on_bad_record})
    # A function that no other process could find is fine here.
    callback = None if isinstance(dataset.format_callback, str) else dataset.format_callback
    source = resolve_dataset(
        dataset if callback is None else dataset.model_copy(update={"format_callback": None})
    )
    if stage is not None:
        source = replace(source, max_record_bytes=stage.max_record_bytes, max_expansion=stage.max_expansion)
    steps = open_chain(source.texts).steps
    files = list_inputs(source, hashed=False)
    files = files if streaming or source.type != "hub" else downloaded_first(files)
    kind = HuggingFaceShardedSource if source.type == "hub" else _class_of(files)
    rows = kind.over(FileShards(source, files))
    if callback is None and not steps:
        return rows
    chain = ChainedTransform(steps if callback is None else [callback, *steps])
    return TransformedShardedSource(rows, chain, on_bad_record=source.on_bad_record)


def _checked(config: DatasetConfig | Mapping[str, Any]) -> DatasetConfig:
    dataset = configuration.DatasetConfig
    if isinstance(config, Mapping):
        try:
            config = dataset.model_validate(config)
        except ValueError as error:  # pydantic's, whose messages are in our words
            raise ConfigError(f"create_source: {_told(error)}") from None
    elif not isinstance(config, dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"create_source: got a {type(config).__name__}, must be a DatasetConfig or a mapping of its keys"
        )
    written = [field for field in _FOR_BUILDS if field in config.model_fields_set and getattr(config, field)]
    if written:
        raise NotAvailableError(
            f"create_source: {', '.join(written)}: acts in builds, not on a source of rows; leave it out, "
            "and filter the rows instead"
        )
    return config


def _told(error: Any) -> str:
    return "; ".join(
        f"{'.'.join(map(str, line['loc']))}: {line['msg']}" if line["loc"] else line["msg"]
        for line in error.errors(include_url=False)
    )


def _class_of(files: list[InputFile]) -> type[FileBacked]:
    kinds = {_CLASSES[file.format] for file in files}
    return kinds.pop() if len(kinds) == 1 else FilesShardedSource

"""The stage `source`: datasets to rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from tokenlake.pipeline.acting import check_pipeline
from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.create import open_dataset

_OF_OTHER_STAGES: Final[dict[str, Any]] = {
    "additional_fields": None,
    "cache_enabled": True,
    "cache_path": None,
    "chat": None,
    "long_documents": None,
    "num_shards": None,
    "prompt": None,
    "save_format": None,
    "save_path": None,
    "tokenizer_kwargs": None,
}
"""Fields of a dataset that say nothing of its rows as they are read."""


@final
class SourceStage(BaseStage):
    """Opens every dataset: files are listed, rows are not read."""

    @property
    def name(self) -> str:
        return "source"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the rows of every dataset of the configuration, in its order.

        Raises:
            ConfigError: the configuration contradicts itself, or asks for what a pipeline does not do.
            SourceNotFoundError: an entry of `data_files` matches nothing.
        """
        config = context.config
        check_pipeline(config)
        context.opened = {
            dataset.name or "": open_dataset(
                dataset.model_copy(update=_OF_OTHER_STAGES), config.source, streaming=config.streaming
            )
            for dataset in config.datasets
        }
        return context.opened

"""What extensions build on: sources of rows, and stages of a pipeline."""

from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource

__all__ = ["BaseStage", "PipelineContext", "ShardedDataSource"]

"""What extensions build on: sources of rows, and stages of a pipeline."""

from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.rowwise.stage import BaseStage, PipelineContext

__all__ = ["BaseStage", "PipelineContext", "ShardedDataSource"]

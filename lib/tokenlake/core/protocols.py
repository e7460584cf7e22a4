"""What extensions build on: sources of rows, stages of a pipeline, data by index."""

from tokenlake import AsyncDataset as AsyncDataset
from tokenlake import BaseStage as BaseStage
from tokenlake import PipelineContext as PipelineContext
from tokenlake import ResumeState as ResumeState
from tokenlake import ShardedDataSource as ShardedDataSource
from tokenlake import ShardInfo as ShardInfo

"""What others may import from this package, and where each name is defined."""

from tokenlake.rowwise.combine import CompositeShardedSource as CompositeShardedSource
from tokenlake.rowwise.files import ArrowShardedSource as ArrowShardedSource
from tokenlake.rowwise.files import JsonShardedSource as JsonShardedSource
from tokenlake.rowwise.files import ParquetShardedSource as ParquetShardedSource
from tokenlake.rowwise.files import downloaded as downloaded
from tokenlake.rowwise.files import expand_data_files as expand_data_files
from tokenlake.rowwise.save import create_writer as create_writer
from tokenlake.rowwise.save import save_dataset as save_dataset
from tokenlake.rowwise.shards import Numbered as Numbered
from tokenlake.rowwise.shards import Row as Row
from tokenlake.rowwise.shards import ShardInfo as ShardInfo
from tokenlake.rowwise.source import ShardedDataSource as ShardedDataSource
from tokenlake.rowwise.tokenized import TokenizedShardedSource as TokenizedShardedSource

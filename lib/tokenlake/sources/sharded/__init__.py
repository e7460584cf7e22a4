"""Rows one by one, in shards that can be opened at any row: the seeds' ``ShardedDataSource``.

Like a shelf of books with numbered pages: :attr:`ShardedDataSource.shard_names` are the titles, a file each;
``open_shard`` reads one from its first page, ``open_shard_at_row`` from any other, and the number of a page
is its place in the book, whether or not somebody tore out others (filters, predicates, bad records).
"""

from tokenlake.sources.sharded.base import ShardedDataSource, TransformedShardedSource
from tokenlake.sources.sharded.composite import CompositeShardedSource
from tokenlake.sources.sharded.create import create_source
from tokenlake.sources.sharded.expand import expand_data_files
from tokenlake.sources.sharded.filebacked import (
    ArrowShardedSource,
    CsvShardedSource,
    FilesShardedSource,
    HuggingFaceShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    TextShardedSource,
)
from tokenlake.sources.sharded.info import ShardInfo
from tokenlake.sources.sharded.inmemory import HFDatasetShardedSource, wrap_hf_dataset
from tokenlake.sources.sharded.interleave import block_mixture_interleave
from tokenlake.sources.sharded.limited import LimitedShardedSource
from tokenlake.sources.sharded.mixed import MixedShardedSource

__all__ = [
    "ArrowShardedSource",
    "CompositeShardedSource",
    "CsvShardedSource",
    "FilesShardedSource",
    "HFDatasetShardedSource",
    "HuggingFaceShardedSource",
    "JsonShardedSource",
    "LimitedShardedSource",
    "MixedShardedSource",
    "ParquetShardedSource",
    "ShardInfo",
    "ShardedDataSource",
    "TextShardedSource",
    "TransformedShardedSource",
    "block_mixture_interleave",
    "create_source",
    "expand_data_files",
    "wrap_hf_dataset",
]

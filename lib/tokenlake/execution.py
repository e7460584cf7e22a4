"""Pipelines, loaders and writers, under the path that the seed documents import them from."""

from tokenlake import ArrowWriter as ArrowWriter
from tokenlake import AsyncDataLoader as AsyncDataLoader
from tokenlake import JsonlWriter as JsonlWriter
from tokenlake import LoadStage as LoadStage
from tokenlake import ParquetWriter as ParquetWriter
from tokenlake import Pipeline as Pipeline
from tokenlake import PrefetchIterator as PrefetchIterator
from tokenlake import SaveStage as SaveStage
from tokenlake import ShardingSpec as ShardingSpec
from tokenlake import WriteStats as WriteStats
from tokenlake import batch_iterator as batch_iterator
from tokenlake import build_dataset as build_dataset
from tokenlake import collate_batch as collate_batch
from tokenlake import create_data_iterator as create_data_iterator
from tokenlake import create_pipeline as create_pipeline
from tokenlake import create_writer as create_writer
from tokenlake import preshard_batch as preshard_batch
from tokenlake import pretokenize as pretokenize
from tokenlake import save_dataset as save_dataset
from tokenlake import save_iterator as save_iterator
from tokenlake import tokenize_and_save as tokenize_and_save

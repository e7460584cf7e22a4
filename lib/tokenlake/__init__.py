"""Tokenlake: raw text to versioned, verified, packed token datasets.

Names are imported on first use, so that ``import tokenlake`` costs a trainer nothing of the build side.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tokenlake._version import __version__

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.load import load_config
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import (
        CacheStageConfig,
        LoadStageConfig,
        MixStageConfig,
        ObservabilityConfig,
        PackStageConfig,
        RayConfig,
        SaveStageConfig,
        SourceStageConfig,
        TokenizerConfig,
        TokenizeStageConfig,
        WeightSchedulePoint,
    )
    from tokenlake.errors import TokenlakeError
    from tokenlake.etl.runner import BuildResult
    from tokenlake.inspect.introspector import DatasetIntrospector
    from tokenlake.inspect.mapping import ColumnMapper
    from tokenlake.integrity.findings import RepairReport
    from tokenlake.integrity.repair import repair
    from tokenlake.loader.dataset import Dataset
    from tokenlake.loader.dataset import open as open
    from tokenlake.loader.grain import grain_dataset, grain_source
    from tokenlake.loader.hf import hf_dataset
    from tokenlake.loader.loader import DataLoader
    from tokenlake.loader.mixture import Mixture
    from tokenlake.loader.orbax import LoaderRestore, LoaderSave
    from tokenlake.loader.torch import torch_dataset, torch_rows
    from tokenlake.mixing.schedule import WeightScheduler
    from tokenlake.packing.rows import PackedRows, pack_constant_length, pack_pre_tokenized
    from tokenlake.publish.push import PushReport, push_to_hub
    from tokenlake.result import Err, Ok, Result
    from tokenlake.rowwise.combine import CompositeShardedSource, LimitedShardedSource
    from tokenlake.rowwise.directory import WriteStats
    from tokenlake.rowwise.files import (
        ArrowShardedSource,
        CsvShardedSource,
        FilesShardedSource,
        HuggingFaceShardedSource,
        JsonShardedSource,
        ParquetShardedSource,
        TextShardedSource,
        create_source,
        expand_data_files,
    )
    from tokenlake.rowwise.legacy import DatasetMixture, TextDatasetInform, build_dataset
    from tokenlake.rowwise.loader import AsyncDataLoader
    from tokenlake.rowwise.memory import HFDatasetShardedSource, wrap_hf_dataset
    from tokenlake.rowwise.mixed import MixedShardedSource, block_mixture_interleave
    from tokenlake.rowwise.packed import PackedShardedSource
    from tokenlake.rowwise.pipeline import Pipeline, create_pipeline
    from tokenlake.rowwise.save import create_writer, save_dataset, save_iterator
    from tokenlake.rowwise.source import ShardedDataSource, ShardInfo, TransformedShardedSource
    from tokenlake.rowwise.stage import BaseStage, PipelineContext
    from tokenlake.rowwise.tokenize import pretokenize, tokenize_and_save
    from tokenlake.rowwise.tokenized import TokenizedShardedSource, batched_tokenize_iterator
    from tokenlake.store.catalog import Catalog
    from tokenlake.store.diff import diff
    from tokenlake.store.gc import gc
    from tokenlake.store.manifest import Manifest
    from tokenlake.store.remove import remove_version
    from tokenlake.text.chat.messages import ConvertInputOutputToChatML, ConvertToChatML
    from tokenlake.text.chat.renderer import ChatTemplateTransform, MaybeApplyChatTemplate
    from tokenlake.text.fields import (
        AddField,
        CombineFields,
        DropFields,
        ExtractField,
        MapField,
        RenameFields,
        SelectFields,
    )
    from tokenlake.text.filters import FilterByField, FilterNonEmpty, FilterTransform, Where
    from tokenlake.text.lengths.manager import LengthManager
    from tokenlake.text.prompt.engine import PromptEngine
    from tokenlake.text.trainer_rows import PreferenceRows, SupervisedRows
    from tokenlake.text.transform import ChainedTransform, ExpandTransform, Transform
    from tokenlake.tokenizers.manager import TokenizerManager, compute_tokenizer_hash

_HOME: Final = {
    "BuildResult": "tokenlake.etl.runner",
    "build_dataset": "tokenlake.rowwise.legacy",
    "Catalog": "tokenlake.store.catalog",
    "ColumnMapper": "tokenlake.inspect.mapping",
    "diff": "tokenlake.store.diff",
    "gc": "tokenlake.store.gc",
    "remove_version": "tokenlake.store.remove",
    "DataLoader": "tokenlake.loader.loader",
    "Dataset": "tokenlake.loader.dataset",
    "LoaderRestore": "tokenlake.loader.orbax",
    "LoaderSave": "tokenlake.loader.orbax",
    "Mixture": "tokenlake.loader.mixture",
    "grain_dataset": "tokenlake.loader.grain",
    "grain_source": "tokenlake.loader.grain",
    "hf_dataset": "tokenlake.loader.hf",
    "open": "tokenlake.loader.dataset",
    "torch_dataset": "tokenlake.loader.torch",
    "torch_rows": "tokenlake.loader.torch",
    "DatasetIntrospector": "tokenlake.inspect.introspector",
    "DatasetMixture": "tokenlake.rowwise.legacy",
    "TextDatasetInform": "tokenlake.rowwise.legacy",
    "Err": "tokenlake.result",
    "LengthManager": "tokenlake.text.lengths.manager",
    "Manifest": "tokenlake.store.manifest",
    "Ok": "tokenlake.result",
    "PackedRows": "tokenlake.packing.rows",
    "PipelineConfig": "tokenlake.config.pipeline",
    "PreferenceRows": "tokenlake.text.trainer_rows",
    "PromptEngine": "tokenlake.text.prompt.engine",
    "RepairReport": "tokenlake.integrity.findings",
    "repair": "tokenlake.integrity.repair",
    "PushReport": "tokenlake.publish.push",
    "Result": "tokenlake.result",
    "TokenlakeError": "tokenlake.errors",
    "load_config": "tokenlake.config.load",
    "pack_constant_length": "tokenlake.packing.rows",
    "pack_pre_tokenized": "tokenlake.packing.rows",
    "ArrowShardedSource": "tokenlake.rowwise.files",
    "CompositeShardedSource": "tokenlake.rowwise.combine",
    "CsvShardedSource": "tokenlake.rowwise.files",
    "FilesShardedSource": "tokenlake.rowwise.files",
    "HFDatasetShardedSource": "tokenlake.rowwise.memory",
    "HuggingFaceShardedSource": "tokenlake.rowwise.files",
    "JsonShardedSource": "tokenlake.rowwise.files",
    "LimitedShardedSource": "tokenlake.rowwise.combine",
    "MixedShardedSource": "tokenlake.rowwise.mixed",
    "ParquetShardedSource": "tokenlake.rowwise.files",
    "ShardInfo": "tokenlake.rowwise.source",
    "ShardedDataSource": "tokenlake.rowwise.source",
    "TextShardedSource": "tokenlake.rowwise.files",
    "TransformedShardedSource": "tokenlake.rowwise.source",
    "block_mixture_interleave": "tokenlake.rowwise.mixed",
    "create_source": "tokenlake.rowwise.files",
    "expand_data_files": "tokenlake.rowwise.files",
    "wrap_hf_dataset": "tokenlake.rowwise.memory",
    "WriteStats": "tokenlake.rowwise.directory",
    "create_writer": "tokenlake.rowwise.save",
    "save_dataset": "tokenlake.rowwise.save",
    "save_iterator": "tokenlake.rowwise.save",
    "pretokenize": "tokenlake.rowwise.tokenize",
    "push_to_hub": "tokenlake.publish.push",
    "tokenize_and_save": "tokenlake.rowwise.tokenize",
    "TokenizedShardedSource": "tokenlake.rowwise.tokenized",
    "batched_tokenize_iterator": "tokenlake.rowwise.tokenized",
    "TokenizerManager": "tokenlake.tokenizers.manager",
    "compute_tokenizer_hash": "tokenlake.tokenizers.manager",
    "ChatTemplateTransform": "tokenlake.text.chat.renderer",
    "TokenizerConfig": "tokenlake.config.stages",
    "MaybeApplyChatTemplate": "tokenlake.text.chat.renderer",
    "ConvertToChatML": "tokenlake.text.chat.messages",
    "ConvertInputOutputToChatML": "tokenlake.text.chat.messages",
    "AddField": "tokenlake.text.fields",
    "ChainedTransform": "tokenlake.text.transform",
    "CombineFields": "tokenlake.text.fields",
    "DropFields": "tokenlake.text.fields",
    "ExpandTransform": "tokenlake.text.transform",
    "ExtractField": "tokenlake.text.fields",
    "FilterByField": "tokenlake.text.filters",
    "FilterNonEmpty": "tokenlake.text.filters",
    "FilterTransform": "tokenlake.text.filters",
    "MapField": "tokenlake.text.fields",
    "RenameFields": "tokenlake.text.fields",
    "SelectFields": "tokenlake.text.fields",
    "Transform": "tokenlake.text.transform",
    "SupervisedRows": "tokenlake.text.trainer_rows",
    "WeightScheduler": "tokenlake.mixing.schedule",
    "Where": "tokenlake.text.filters",
    "AsyncDataLoader": "tokenlake.rowwise.loader",
    "BaseStage": "tokenlake.rowwise.stage",
    "Pipeline": "tokenlake.rowwise.pipeline",
    "PipelineContext": "tokenlake.rowwise.stage",
    "create_pipeline": "tokenlake.rowwise.pipeline",
    "PackedShardedSource": "tokenlake.rowwise.packed",
    "CacheStageConfig": "tokenlake.config.stages",
    "DatasetConfig": "tokenlake.config.dataset",
    "LoadStageConfig": "tokenlake.config.stages",
    "MixStageConfig": "tokenlake.config.stages",
    "ObservabilityConfig": "tokenlake.config.stages",
    "PackStageConfig": "tokenlake.config.stages",
    "RayConfig": "tokenlake.config.stages",
    "SaveStageConfig": "tokenlake.config.stages",
    "SourceStageConfig": "tokenlake.config.stages",
    "TokenizeStageConfig": "tokenlake.config.stages",
    "WeightSchedulePoint": "tokenlake.config.stages",
}

# Without `open`: `from tokenlake import *` must not take the place of Python's own.
__all__ = [
    "AddField",
    "ArrowShardedSource",
    "AsyncDataLoader",
    "BaseStage",
    "BuildResult",
    "CacheStageConfig",
    "Catalog",
    "ChainedTransform",
    "ChatTemplateTransform",
    "ColumnMapper",
    "CombineFields",
    "CompositeShardedSource",
    "ConvertInputOutputToChatML",
    "ConvertToChatML",
    "CsvShardedSource",
    "DataLoader",
    "Dataset",
    "DatasetConfig",
    "DatasetIntrospector",
    "DatasetMixture",
    "DropFields",
    "Err",
    "ExpandTransform",
    "ExtractField",
    "FilesShardedSource",
    "FilterByField",
    "FilterNonEmpty",
    "FilterTransform",
    "HFDatasetShardedSource",
    "HuggingFaceShardedSource",
    "JsonShardedSource",
    "LengthManager",
    "LimitedShardedSource",
    "LoadStageConfig",
    "LoaderRestore",
    "LoaderSave",
    "Manifest",
    "MapField",
    "MaybeApplyChatTemplate",
    "MixStageConfig",
    "MixedShardedSource",
    "Mixture",
    "ObservabilityConfig",
    "Ok",
    "PackStageConfig",
    "PackedRows",
    "PackedShardedSource",
    "ParquetShardedSource",
    "Pipeline",
    "PipelineConfig",
    "PipelineContext",
    "PreferenceRows",
    "PromptEngine",
    "PushReport",
    "RayConfig",
    "RenameFields",
    "RepairReport",
    "Result",
    "SaveStageConfig",
    "SelectFields",
    "ShardInfo",
    "ShardedDataSource",
    "SourceStageConfig",
    "SupervisedRows",
    "TextDatasetInform",
    "TextShardedSource",
    "TokenizeStageConfig",
    "TokenizedShardedSource",
    "TokenizerConfig",
    "TokenizerManager",
    "TokenlakeError",
    "Transform",
    "TransformedShardedSource",
    "WeightSchedulePoint",
    "WeightScheduler",
    "Where",
    "WriteStats",
    "__version__",
    "batched_tokenize_iterator",
    "block_mixture_interleave",
    "build_dataset",
    "compute_tokenizer_hash",
    "create_pipeline",
    "create_source",
    "create_writer",
    "diff",
    "expand_data_files",
    "gc",
    "grain_dataset",
    "grain_source",
    "hf_dataset",
    "load_config",
    "pack_constant_length",
    "pack_pre_tokenized",
    "pretokenize",
    "push_to_hub",
    "remove_version",
    "repair",
    "save_dataset",
    "save_iterator",
    "tokenize_and_save",
    "torch_dataset",
    "torch_rows",
    "wrap_hf_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokenlake' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])

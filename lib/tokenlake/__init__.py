"""Tokenlake: raw text to versioned, verified, packed token datasets.

Names are imported on first use, so that ``import tokenlake`` costs a trainer nothing of the build side.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tokenlake._version import __version__

if TYPE_CHECKING:
    from tokenlake.adapters.grain import grain_dataset, grain_source
    from tokenlake.adapters.hf import hf_dataset
    from tokenlake.adapters.orbax import LoaderRestore, LoaderSave
    from tokenlake.adapters.torch import torch_dataset, torch_rows
    from tokenlake.build.runner import BuildResult
    from tokenlake.catalog import Catalog
    from tokenlake.collect import gc, remove_version
    from tokenlake.config import (
        CacheStageConfig,
        DatasetConfig,
        LoadStageConfig,
        MixStageConfig,
        ObservabilityConfig,
        PackStageConfig,
        PipelineConfig,
        RayConfig,
        SaveStageConfig,
        SourceStageConfig,
        TokenizerConfig,
        TokenizeStageConfig,
        WeightSchedulePoint,
        load_config,
    )
    from tokenlake.difference import diff
    from tokenlake.discovery import ColumnMapper, DatasetIntrospector
    from tokenlake.errors import TokenlakeError
    from tokenlake.flat.pretokenizing import pretokenize
    from tokenlake.flat.save import create_writer, save_dataset, save_iterator
    from tokenlake.flat.stats import WriteStats
    from tokenlake.flat.tokenizing import tokenize_and_save
    from tokenlake.legacy.building import build_dataset
    from tokenlake.legacy.informs import TextDatasetInform
    from tokenlake.legacy.mixture import DatasetMixture
    from tokenlake.lengths.manager import LengthManager
    from tokenlake.loader.dataset import Dataset
    from tokenlake.loader.loader import DataLoader
    from tokenlake.loader.mixture import Mixture
    from tokenlake.loader.opening import open as open  # public, and yet not in __all__
    from tokenlake.manifest import Manifest
    from tokenlake.mending import RepairReport, repair
    from tokenlake.mixing.schedule import WeightScheduler
    from tokenlake.packing import PackedRows, pack_constant_length, pack_pre_tokenized
    from tokenlake.pipeline.context import PipelineContext
    from tokenlake.pipeline.loader import AsyncDataLoader
    from tokenlake.pipeline.pipeline import Pipeline, create_pipeline
    from tokenlake.pipeline.stage import BaseStage
    from tokenlake.publish import PushReport, push_to_hub
    from tokenlake.result import Err, Ok, Result
    from tokenlake.sources.sharded import (
        ArrowShardedSource,
        CompositeShardedSource,
        CsvShardedSource,
        FilesShardedSource,
        HFDatasetShardedSource,
        HuggingFaceShardedSource,
        JsonShardedSource,
        LimitedShardedSource,
        MixedShardedSource,
        ParquetShardedSource,
        ShardedDataSource,
        ShardInfo,
        TextShardedSource,
        TransformedShardedSource,
        block_mixture_interleave,
        create_source,
        expand_data_files,
        wrap_hf_dataset,
    )
    from tokenlake.sources.sharded.packed import PackedShardedSource
    from tokenlake.sources.sharded.tokenized import TokenizedShardedSource, batched_tokenize_iterator
    from tokenlake.tokenizers.manager import TokenizerManager, compute_tokenizer_hash
    from tokenlake.transforms import (
        AddField,
        ChainedTransform,
        CombineFields,
        DropFields,
        ExpandTransform,
        ExtractField,
        FilterByField,
        FilterNonEmpty,
        FilterTransform,
        MapField,
        RenameFields,
        SelectFields,
        Transform,
        Where,
    )
    from tokenlake.transforms.chat.chatml import ConvertInputOutputToChatML, ConvertToChatML
    from tokenlake.transforms.chat.rowwise import ChatTemplateTransform, MaybeApplyChatTemplate
    from tokenlake.transforms.preference import PreferenceRows
    from tokenlake.transforms.prompt.engine import PromptEngine
    from tokenlake.transforms.supervised import SupervisedRows

_HOME: Final = {
    "BuildResult": "tokenlake.build.runner",
    "build_dataset": "tokenlake.legacy.building",
    "Catalog": "tokenlake.catalog",
    "ColumnMapper": "tokenlake.discovery",
    "diff": "tokenlake.difference",
    "gc": "tokenlake.collect",
    "remove_version": "tokenlake.collect",
    "DataLoader": "tokenlake.loader.loader",
    "Dataset": "tokenlake.loader.dataset",
    "LoaderRestore": "tokenlake.adapters.orbax",
    "LoaderSave": "tokenlake.adapters.orbax",
    "Mixture": "tokenlake.loader.mixture",
    "grain_dataset": "tokenlake.adapters.grain",
    "grain_source": "tokenlake.adapters.grain",
    "hf_dataset": "tokenlake.adapters.hf",
    "open": "tokenlake.loader.opening",
    "torch_dataset": "tokenlake.adapters.torch",
    "torch_rows": "tokenlake.adapters.torch",
    "DatasetIntrospector": "tokenlake.discovery",
    "DatasetMixture": "tokenlake.legacy.mixture",
    "TextDatasetInform": "tokenlake.legacy.informs",
    "Err": "tokenlake.result",
    "LengthManager": "tokenlake.lengths.manager",
    "Manifest": "tokenlake.manifest",
    "Ok": "tokenlake.result",
    "PackedRows": "tokenlake.packing",
    "PipelineConfig": "tokenlake.config",
    "PreferenceRows": "tokenlake.transforms.preference",
    "PromptEngine": "tokenlake.transforms.prompt.engine",
    "RepairReport": "tokenlake.mending",
    "repair": "tokenlake.mending",
    "PushReport": "tokenlake.publish",
    "Result": "tokenlake.result",
    "TokenlakeError": "tokenlake.errors",
    "load_config": "tokenlake.config",
    "pack_constant_length": "tokenlake.packing",
    "pack_pre_tokenized": "tokenlake.packing",
    "ArrowShardedSource": "tokenlake.sources.sharded",
    "CompositeShardedSource": "tokenlake.sources.sharded",
    "CsvShardedSource": "tokenlake.sources.sharded",
    "FilesShardedSource": "tokenlake.sources.sharded",
    "HFDatasetShardedSource": "tokenlake.sources.sharded",
    "HuggingFaceShardedSource": "tokenlake.sources.sharded",
    "JsonShardedSource": "tokenlake.sources.sharded",
    "LimitedShardedSource": "tokenlake.sources.sharded",
    "MixedShardedSource": "tokenlake.sources.sharded",
    "ParquetShardedSource": "tokenlake.sources.sharded",
    "ShardInfo": "tokenlake.sources.sharded",
    "ShardedDataSource": "tokenlake.sources.sharded",
    "TextShardedSource": "tokenlake.sources.sharded",
    "TransformedShardedSource": "tokenlake.sources.sharded",
    "block_mixture_interleave": "tokenlake.sources.sharded",
    "create_source": "tokenlake.sources.sharded",
    "expand_data_files": "tokenlake.sources.sharded",
    "wrap_hf_dataset": "tokenlake.sources.sharded",
    "WriteStats": "tokenlake.flat.stats",
    "create_writer": "tokenlake.flat.save",
    "save_dataset": "tokenlake.flat.save",
    "save_iterator": "tokenlake.flat.save",
    "pretokenize": "tokenlake.flat.pretokenizing",
    "push_to_hub": "tokenlake.publish",
    "tokenize_and_save": "tokenlake.flat.tokenizing",
    "TokenizedShardedSource": "tokenlake.sources.sharded.tokenized",
    "batched_tokenize_iterator": "tokenlake.sources.sharded.tokenized",
    "TokenizerManager": "tokenlake.tokenizers.manager",
    "compute_tokenizer_hash": "tokenlake.tokenizers.manager",
    "ChatTemplateTransform": "tokenlake.transforms.chat.rowwise",
    "TokenizerConfig": "tokenlake.config",
    "MaybeApplyChatTemplate": "tokenlake.transforms.chat.rowwise",
    "ConvertToChatML": "tokenlake.transforms.chat.chatml",
    "ConvertInputOutputToChatML": "tokenlake.transforms.chat.chatml",
    "AddField": "tokenlake.transforms",
    "ChainedTransform": "tokenlake.transforms",
    "CombineFields": "tokenlake.transforms",
    "DropFields": "tokenlake.transforms",
    "ExpandTransform": "tokenlake.transforms",
    "ExtractField": "tokenlake.transforms",
    "FilterByField": "tokenlake.transforms",
    "FilterNonEmpty": "tokenlake.transforms",
    "FilterTransform": "tokenlake.transforms",
    "MapField": "tokenlake.transforms",
    "RenameFields": "tokenlake.transforms",
    "SelectFields": "tokenlake.transforms",
    "Transform": "tokenlake.transforms",
    "SupervisedRows": "tokenlake.transforms.supervised",
    "WeightScheduler": "tokenlake.mixing.schedule",
    "Where": "tokenlake.transforms",
    "AsyncDataLoader": "tokenlake.pipeline.loader",
    "BaseStage": "tokenlake.pipeline.stage",
    "Pipeline": "tokenlake.pipeline.pipeline",
    "PipelineContext": "tokenlake.pipeline.context",
    "create_pipeline": "tokenlake.pipeline.pipeline",
    "PackedShardedSource": "tokenlake.sources.sharded.packed",
    "CacheStageConfig": "tokenlake.config",
    "DatasetConfig": "tokenlake.config",
    "LoadStageConfig": "tokenlake.config",
    "MixStageConfig": "tokenlake.config",
    "ObservabilityConfig": "tokenlake.config",
    "PackStageConfig": "tokenlake.config",
    "RayConfig": "tokenlake.config",
    "SaveStageConfig": "tokenlake.config",
    "SourceStageConfig": "tokenlake.config",
    "TokenizeStageConfig": "tokenlake.config",
    "WeightSchedulePoint": "tokenlake.config",
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

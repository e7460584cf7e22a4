"""The second system of the seeds: a data module in one YAML file, and batches for PyTorch as results.

::

    from tokenlake.data_pipeline import DataPipeline

    pipeline = DataPipeline.from_config("pipeline_config.yaml").unwrap()
    for batch in pipeline.get_dataloader("train", shuffle=True).unwrap():
        batch["input_ids"]  # torch.int64 (batch_size, max_length)

A face over the rest of the library: rows come from its sources, prompts from its prompt engine, and `tokenlake run`
builds a version of the same file. Names are loaded when they are first used; those that need PyTorch say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenlake.errors import (
    ConfigError,
    SourceError,
    TokenizerError,
    TokenlakeError,
)
from tokenlake.introspection.inspection import DatasetMetadata
from tokenlake.introspection.introspector import DatasetIntrospector
from tokenlake.introspection.mapping import ColumnMapper, fuzzy_match_columns
from tokenlake.lazy_names import lazy_names
from tokenlake.result import (
    Err,
    Ok,
    Result,
    flat_map,
    is_err,
    is_ok,
    map_err,
    map_result,
    unwrap,
    unwrap_or,
)
from tokenlake.text.lengths import ContentDistributionMode, LengthManager, LengthManagerConfig
from tokenlake.text.prompt.engine import ProcessedExample, PromptEngine

if TYPE_CHECKING:
    from tokenlake.data_pipeline.dataloader import (
        DataLoaderBuilder,
        create_causal_lm_collate,
        create_collate_fn,
        create_seq2seq_collate,
    )
    from tokenlake.data_pipeline.dataset import PreprocessedDataset, StreamingPreprocessedDataset
    from tokenlake.data_pipeline.pipeline import DataPipeline, TokenizerWrapper

PipelineError = TokenlakeError
ConfigurationError = ConfigError
IntrospectionError = DataLoadingError = SourceError
TokenizationError = TokenizerError

_HOMES: Final = {
    **dict.fromkeys(("DataPipeline", "TokenizerWrapper"), "pipeline"),
    **dict.fromkeys(
        ("create_causal_lm_collate", "create_collate_fn", "create_seq2seq_collate"), "dataloader"
    ),
    **dict.fromkeys(("PreprocessedDataset", "StreamingPreprocessedDataset"), "dataset"),
    "DataLoaderBuilder": "dataloader",
}

__all__ = [
    "ColumnMapper",
    "ConfigurationError",
    "ContentDistributionMode",
    "DataLoaderBuilder",
    "DataLoadingError",
    "DataPipeline",
    "DatasetIntrospector",
    "DatasetMetadata",
    "Err",
    "IntrospectionError",
    "LengthManager",
    "LengthManagerConfig",
    "Ok",
    "PipelineError",
    "PreprocessedDataset",
    "ProcessedExample",
    "PromptEngine",
    "Result",
    "StreamingPreprocessedDataset",
    "TokenizationError",
    "TokenizerWrapper",
    "create_causal_lm_collate",
    "create_collate_fn",
    "create_seq2seq_collate",
    "flat_map",
    "fuzzy_match_columns",
    "is_err",
    "is_ok",
    "map_err",
    "map_result",
    "unwrap",
    "unwrap_or",
]


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES, "torch")

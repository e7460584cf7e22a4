"""The configuration of a pipeline: YAML or Python in, checked models, and what a build consumes out.

Think of three forms of one thing. What a person writes is a mapping (:func:`load_config`); what Python
code holds is a frozen model (:class:`PipelineConfig`); what a build consumes is a flat record without
pydantic (:func:`tokenlake.config.resolve.resolve` -> :class:`ResolvedBuild`), of which
:func:`tokenlake.config.resolve.identity` is the part that decides bytes.

Names load on first use: a worker that imports ``tokenlake.config.resolve`` never imports pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tokenlake.errors import MissingExtraError

if TYPE_CHECKING:
    from tokenlake.config.cache_stage import CacheStageConfig
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.dumping import dump_yaml
    from tokenlake.config.load_stage import LoadStageConfig
    from tokenlake.config.loading import ConfigSource, load_config
    from tokenlake.config.mix_stage import MixStageConfig, WeightSchedulePoint
    from tokenlake.config.observability import ObservabilityConfig
    from tokenlake.config.pack_stage import PackStageConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.ray import RayConfig
    from tokenlake.config.resolved import ResolvedBuild, ResolvedPack, ResolvedSource, ResolvedTokenizer
    from tokenlake.config.save_stage import SaveStageConfig
    from tokenlake.config.schema import json_schema
    from tokenlake.config.secret import BlockSecret, EnvSecret, literal_secrets
    from tokenlake.config.sizes import parse_size
    from tokenlake.config.source_stage import SourceStageConfig
    from tokenlake.config.tokenize_stage import TokenizeStageConfig
    from tokenlake.config.tokenizer import TokenizerConfig

__all__ = [
    "BlockSecret",
    "CacheStageConfig",
    "ConfigSource",
    "DatasetConfig",
    "EnvSecret",
    "LoadStageConfig",
    "MixStageConfig",
    "ObservabilityConfig",
    "PackStageConfig",
    "PipelineConfig",
    "RayConfig",
    "ResolvedBuild",
    "ResolvedPack",
    "ResolvedSource",
    "ResolvedTokenizer",
    "SaveStageConfig",
    "SourceStageConfig",
    "TokenizeStageConfig",
    "TokenizerConfig",
    "WeightSchedulePoint",
    "dump_yaml",
    "json_schema",
    "literal_secrets",
    "load_config",
    "parse_size",
]

_HOME: Final = {
    "BlockSecret": "secret",
    "CacheStageConfig": "cache_stage",
    "ConfigSource": "loading",
    "DatasetConfig": "dataset",
    "EnvSecret": "secret",
    "LoadStageConfig": "load_stage",
    "MixStageConfig": "mix_stage",
    "ObservabilityConfig": "observability",
    "PackStageConfig": "pack_stage",
    "PipelineConfig": "pipeline",
    "RayConfig": "ray",
    "ResolvedBuild": "resolved",
    "ResolvedPack": "resolved",
    "ResolvedSource": "resolved",
    "ResolvedTokenizer": "resolved",
    "SaveStageConfig": "save_stage",
    "SourceStageConfig": "source_stage",
    "TokenizeStageConfig": "tokenize_stage",
    "TokenizerConfig": "tokenizer",
    "WeightSchedulePoint": "mix_stage",
    "dump_yaml": "dumping",
    "json_schema": "schema",
    "literal_secrets": "secret",
    "load_config": "loading",
    "parse_size": "sizes",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pydantic", "yaml"):
            raise
        raise MissingExtraError(
            f"tokenlake.config.{name} needs {error.name}, which is missing: pip install 'tokenlake[etl]'"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

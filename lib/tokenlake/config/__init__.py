"""The configuration of a pipeline: YAML or Python in, checked models, and what a build consumes out.

Think of three forms of one thing. What a person writes is a mapping (:func:`load_config`); what Python
code holds is a frozen model (:class:`PipelineConfig`); what a build consumes is a flat record without
pydantic (:func:`tokenlake.config.resolve.resolve` -> :class:`ResolvedBuild`), of which
:func:`tokenlake.config.identity.identity` is the part that decides bytes.

Names load on first use: a worker that imports ``tokenlake.config.resolve`` never imports pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tokenlake.errors import MissingExtraError

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.load import ConfigSource, load_config
    from tokenlake.config.pipeline import PipelineConfig, dump_yaml, json_schema
    from tokenlake.config.resolved import ResolvedBuild, ResolvedPack, ResolvedSource, ResolvedTokenizer
    from tokenlake.config.secret import BlockSecret, EnvSecret, literal_secrets
    from tokenlake.config.sizes import parse_size
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
    "CacheStageConfig": "stages",
    "ConfigSource": "load",
    "DatasetConfig": "dataset",
    "EnvSecret": "secret",
    "LoadStageConfig": "stages",
    "MixStageConfig": "stages",
    "ObservabilityConfig": "stages",
    "PackStageConfig": "stages",
    "PipelineConfig": "pipeline",
    "RayConfig": "stages",
    "ResolvedBuild": "resolved",
    "ResolvedPack": "resolved",
    "ResolvedSource": "resolved",
    "ResolvedTokenizer": "resolved",
    "SaveStageConfig": "stages",
    "SourceStageConfig": "stages",
    "TokenizeStageConfig": "stages",
    "TokenizerConfig": "stages",
    "WeightSchedulePoint": "stages",
    "dump_yaml": "pipeline",
    "json_schema": "pipeline",
    "literal_secrets": "secret",
    "load_config": "load",
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

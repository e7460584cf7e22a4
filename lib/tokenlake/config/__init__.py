"""The configuration of a pipeline: YAML or Python in, checked models, and what a build consumes out.

Think of three forms of one thing. What a person writes is a mapping (:func:`load_config`); what Python
code holds is a frozen model (:class:`PipelineConfig`); what a build consumes is a flat record without
pydantic (:func:`tokenlake.config.resolve.resolve` -> :class:`ResolvedBuild`), of which
:func:`tokenlake.config.identity.identity` is the part that decides bytes.

Names load on first use: a worker that imports ``tokenlake.config.resolved`` never imports pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tokenlake.errors import MissingExtraError

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig as DatasetConfig
    from tokenlake.config.load import ConfigSource as ConfigSource
    from tokenlake.config.load import load_config as load_config
    from tokenlake.config.pipeline import PipelineConfig as PipelineConfig
    from tokenlake.config.pipeline import dump_yaml as dump_yaml
    from tokenlake.config.pipeline import json_schema as json_schema
    from tokenlake.config.resolved import ResolvedBuild as ResolvedBuild
    from tokenlake.config.resolved import ResolvedPack as ResolvedPack
    from tokenlake.config.resolved import ResolvedSource as ResolvedSource
    from tokenlake.config.resolved import ResolvedTokenizer as ResolvedTokenizer
    from tokenlake.config.secret import BlockSecret as BlockSecret
    from tokenlake.config.secret import EnvSecret as EnvSecret
    from tokenlake.config.secret import literal_secrets as literal_secrets
    from tokenlake.config.sizes import parse_size as parse_size
    from tokenlake.config.stages import CacheStageConfig as CacheStageConfig
    from tokenlake.config.stages import LoadStageConfig as LoadStageConfig
    from tokenlake.config.stages import MixStageConfig as MixStageConfig
    from tokenlake.config.stages import ObservabilityConfig as ObservabilityConfig
    from tokenlake.config.stages import PackStageConfig as PackStageConfig
    from tokenlake.config.stages import RayConfig as RayConfig
    from tokenlake.config.stages import SaveStageConfig as SaveStageConfig
    from tokenlake.config.stages import SourceStageConfig as SourceStageConfig
    from tokenlake.config.stages import TokenizerConfig as TokenizerConfig
    from tokenlake.config.stages import TokenizeStageConfig as TokenizeStageConfig
    from tokenlake.config.stages import WeightSchedulePoint as WeightSchedulePoint

_HOME: Final = {
    name: home
    for home, names in {
        "dataset": "DatasetConfig",
        "load": "ConfigSource load_config",
        "pipeline": "PipelineConfig dump_yaml json_schema",
        "resolved": "ResolvedBuild ResolvedPack ResolvedSource ResolvedTokenizer",
        "secret": "BlockSecret EnvSecret literal_secrets",
        "sizes": "parse_size",
        "stages": "CacheStageConfig LoadStageConfig MixStageConfig ObservabilityConfig PackStageConfig RayConfig "
        "SaveStageConfig SourceStageConfig TokenizeStageConfig TokenizerConfig WeightSchedulePoint",
    }.items()
    for name in names.split()
}
"""Each public name and the module that defines it."""

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


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
    return sorted({*globals(), *_HOME})

"""The configuration of a pipeline: YAML or Python in, checked models, and what a build consumes out.

Think of three forms of one thing. What a person writes is a mapping (:func:`load_config`); what Python
code holds is a frozen model (:class:`PipelineConfig`); what a build consumes is a flat record without
pydantic (:func:`tokenlake.config.resolve.resolve` -> :class:`tokenlake.config.resolved.ResolvedBuild`), of which
:func:`tokenlake.config.identity.identity` is the part that decides bytes.

Names load on first use: a worker that imports ``tokenlake.config.resolved`` never imports pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenlake.lazy_names import lazy_names

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig as DatasetConfig
    from tokenlake.config.load import load_config as load_config
    from tokenlake.config.pipeline import PipelineConfig as PipelineConfig
    from tokenlake.config.stages import PackStageConfig as PackStageConfig
    from tokenlake.config.stages import SourceStageConfig as SourceStageConfig

_STAGES: Final = ("Cache", "Load", "Pack", "Save", "Source", "Tokenize")
_HOMES: Final = {
    "DatasetConfig": "dataset",
    "PipelineConfig": "pipeline",
    "load_config": "load",
    **{f"{name}StageConfig": "stages" for name in _STAGES},
    **dict.fromkeys(("ObservabilityConfig", "RayConfig", "TokenizerConfig"), "stages"),
    **dict.fromkeys(("MixStageConfig", "WeightSchedulePoint"), "mix"),
}
"""Each public name and the module that defines it."""

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


__getattr__ = lazy_names(__name__, _HOMES, "etl")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

"""From a configuration to the project that a session builds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve, resolve_mix
from tokenlake.config.steps import is_text_build
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.mix_project import MixProject
from tokenlake.etl.plan.stored import plan_mix
from tokenlake.etl.plan.text import Only, make_plan
from tokenlake.etl.project import Project
from tokenlake.etl.text_project import TextProject

Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan_project(config: Configuration, on_event: Watcher = ignore, *, only: Only | None = None) -> Project:
    """Plan what a configuration asks for: of text, or of datasets of the store.

    A configuration that mixes text is several builds; see :mod:`tokenlake.config.steps`.

    Args:
        only: the input files of text to plan with, as if no others were there; None: all.

    Raises:
        ConfigError, SourceError, TokenizerError: it cannot be planned.
    """
    whole = load_config(config)
    if is_text_build(whole):
        return TextProject(make_plan(resolve(whole), on_event=on_event, only=only))
    return MixProject(plan_mix(resolve_mix(whole), on_event))

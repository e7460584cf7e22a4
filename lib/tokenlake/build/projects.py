"""From a configuration to the project that a session builds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from tokenlake.build.events import Watcher, ignore
from tokenlake.build.planning.plan import make_plan
from tokenlake.build.project import Project
from tokenlake.build.textproject import TextProject
from tokenlake.config import PipelineConfig, load_config
from tokenlake.config.resolve import resolve

Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan_project(config: Configuration, on_event: Watcher = ignore) -> Project:
    """Plan what a configuration asks for.

    Raises:
        ConfigError, SourceError, TokenizerError: it cannot be planned.
    """
    return TextProject(make_plan(resolve(load_config(config)), on_event=on_event))

"""From a configuration to the plan of its build."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.stored import plan_stored
from tokenlake.etl.plan.text import Only, plan_texts

Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan_build(config: Configuration, on_event: Watcher = ignore, *, only: Only | None = None) -> Plan:
    """Plan what a configuration asks for; one that mixes text is several builds, see :mod:`tokenlake.config.steps`.

    Args:
        only: the input files of text to plan with, as if no others were there; None: all.

    Raises:
        ConfigError, SourceError, TokenizerError: it cannot be planned.
    """
    return make_plan(resolve(load_config(config)), on_event=on_event, only=only)


def make_plan(build: ResolvedBuild, *, on_event: Watcher = ignore, only: Only | None = None) -> Plan:
    """Plan a resolved build; arguments and errors are those of :func:`plan_build`."""
    return plan_stored(build, on_event) if build.parents else plan_texts(build, on_event, only)

"""Plan of any configuration: of texts, stored versions, or texts of stored versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.precedent import Precedent
from tokenlake.etl.planner.retokenize import plan_again
from tokenlake.etl.planner.texts import plan_texts

Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]
"""A configuration, a dict of one, or the path of a YAML file."""


def plan(
    config: Configuration, on_event: Watcher = ignore, *, again: Precedent | None = None
) -> Plan:
    """Return the plan of a build.

    A configuration that mixes text is planned as several builds, one after the other.

    Args:
        config: Configuration, mapping of its keys, or path of a YAML file.
        on_event: Function that receives the progress of the plan. Default: none is
            called.
        again: Version of texts that is planned again, as if no inputs had been added
            since; None for a new plan.

    Raises:
        ConfigError: The configuration is wrong.
        SourceError: An input cannot be read.
        TokenizerError: A tokenizer cannot be loaded.

    Example:
        >>> import tokenlake as tl
        >>> config = {
        ...     "name": "books",
        ...     "datasets": [{"name": "books", "data_files": "data/books/*.jsonl"}],
        ...     "default_tokenizer": "openai-community/gpt2",
        ... }
        >>> len(tl.plan(config).units)
        1
    """
    pipeline = load_config(config)
    # Texts of a stored version are found first; then they are planned like any texts.
    dataset = pipeline.retokenized
    if dataset is not None:
        return plan_again(pipeline, dataset, make_plan, on_event, again)
    return make_plan(resolve(pipeline), on_event=on_event, again=again)


def make_plan(
    build: ResolvedBuild, *, on_event: Watcher = ignore, again: Precedent | None = None
) -> Plan:
    """Return the plan of a resolved build.

    See :func:`plan` for the other arguments and the errors.
    """
    if not build.parents:
        plan = plan_texts(build, on_event, again)
    else:
        # A build of texts is planned without importing all that mixes.
        from tokenlake.etl.plan.stored import plan_stored

        plan = plan_stored(build, on_event)
    return replace(plan, notes=(*build.notes, *plan.notes))

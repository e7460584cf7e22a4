"""What a deployment's parameters may reach on the machine of its worker.

Whoever may start a run on a Prefect server chooses paths on the worker's machine. Its owner bounds them
with two environment variables of the worker, lists of folders separated like ``PATH``::

    TOKENLAKE_ALLOWED_INPUTS=/data/raw:/data/more
    TOKENLAKE_ALLOWED_OUTPUTS=/data/tokens

A variable that is not set allows everything. Runs that a command starts are not bounded: their owner
could read and write these paths without us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prefect import runtime

from tokenlake.config import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError

INPUTS: Final = "TOKENLAKE_ALLOWED_INPUTS"
OUTPUTS: Final = "TOKENLAKE_ALLOWED_OUTPUTS"


def require_allowed(config: PipelineConfig) -> None:
    """Check the paths of a deployment's run.

    Raises:
        ConfigError: one lies outside what the worker's environment allows.
    """
    if runtime.deployment.id is not None:
        check_paths(config, os.environ)


def check_paths(config: PipelineConfig, environment: Mapping[str, str]) -> None:
    """Check the configuration's inputs and store against an environment; see :func:`require_allowed`."""
    build = resolve(config)
    for source in build.sources:
        for pattern in source.data_files:
            _check(_static(pattern), environment.get(INPUTS), INPUTS, f"data_files of {source.name!r}")
    _check(build.store, environment.get(OUTPUTS), OUTPUTS, "the store")


def _check(path: str, allowed: str | None, variable: str, what: str) -> None:
    if allowed is None:
        return
    # Links are followed: what counts is where bytes are.
    real = Path(path).resolve()
    folders = [Path(folder).resolve() for folder in allowed.split(os.pathsep) if folder]
    if not any(real.is_relative_to(folder) for folder in folders):
        raise ConfigError(
            f"{what}: {path!r} is outside what this worker allows; got {str(real)!r}, expected a path in"
            f" {', '.join(map(str, folders)) or 'nothing at all'} ({variable} in the worker's environment)"
        )


def _static(pattern: str) -> str:
    """The folder below which a glob matches; a path without wildcards as it is."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return fixed if fixed == pattern else fixed.rpartition("/")[0] or ("/" if fixed[:1] == "/" else ".")

"""Hooks that make exports of a version after its commit.

A part of the library registers its hook here by name, so that nothing of it is imported
unless a configuration asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from tokenlake.base.lazy_names import load
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.runtime.store.manifest import Manifest


@final
@dataclass(frozen=True, slots=True)
class Hook:
    """Part that acts after a commit.

    Attributes:
        check: Function of the configuration, as ``module:name``. It raises before
            anything is built where `make` cannot succeed.
        make: Function of the configuration and the committed manifest, as
            ``module:name``. It returns the paths and URLs of the exports.
    """

    check: str
    make: str


HOOKS: Final = (
    Hook(
        check="tokenlake.etl.export.plan:check_exports",
        make="tokenlake.etl.export.plan:make_exports",
    ),
)


def check_hooks(config: PipelineConfig) -> None:
    """Raise ConfigError if a hook cannot make the exports of a configuration."""
    if not config.has_exports:
        return
    for hook in HOOKS:
        check: Callable[[PipelineConfig], None] = load(hook.check, "an export", "etl")
        check(config)


def run_hooks(config: PipelineConfig, manifest: Manifest) -> tuple[str, ...]:
    """Make the exports of a committed version.

    Returns:
        Paths and URLs of the exports.
    """
    if not config.has_exports:
        return ()
    export_paths: list[str] = []
    for hook in HOOKS:
        make_exports: Callable[[PipelineConfig, Manifest], tuple[str, ...]] = load(
            hook.make, "an export", "etl"
        )
        export_paths.extend(make_exports(config, manifest))
    return tuple(export_paths)

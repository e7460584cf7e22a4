"""Hooks that make something beside a version, after its commit. A part registers its
hook here by name.
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
    """A part that acts after a commit; its modules are imported when a configuration
    asks for it.

    Attributes:
        check: Function of the configuration, as ``module:name``. It raises before
            anything is built where `make` cannot succeed.
        make: Function of the configuration and the committed manifest, as
            ``module:name``. It returns the paths and URLs of what it made.
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
    """Raise ConfigError where a hook cannot do what a configuration asks for."""
    if not config.has_exports:
        return
    for hook in HOOKS:
        check: Callable[[PipelineConfig], None] = load(hook.check, "an export", "etl")
        check(config)


def run_hooks(config: PipelineConfig, manifest: Manifest) -> tuple[str, ...]:
    """Make what a configuration asks for beside its committed version; return the
    paths and URLs.
    """
    if not config.has_exports:
        return ()
    made: list[str] = []
    for hook in HOOKS:
        make: Callable[[PipelineConfig, Manifest], tuple[str, ...]] = load(
            hook.make, "an export", "etl"
        )
        made.extend(make(config, manifest))
    return tuple(made)

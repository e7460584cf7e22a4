"""Order in which the stages of a pipeline may be called, and refused options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import raise_problems, refused
from tokenlake.errors import ConfigError, NotAvailableError

STAGES: Final = ("source", "tokenize", "mix", "pack", "save", "load")
_AFTER: Final = {"tokenize": ("mix", "pack", "load")}
"""Stages that may not come before a stage.

For stages that are not listed it is load alone: rows can be saved at any place, and
packed before or after a mix.
"""
_CHECKED_FIRST: Final = ("datasets", "source", "cache", "card", "ray")
"""Sections without a stage.

They are checked before the first stage.
"""


def check_order(stage: str, applied: Sequence[str]) -> None:
    """Raise RuntimeError unless `stage` may follow the stages `applied`.

    Args:
        stage: One of :data:`STAGES`, ``build``, or the name of a custom stage.
        applied: Names of the stages so far, in order.
    """
    # Every pipeline begins with its rows, and has one source.
    if stage == "source":
        if "source" in applied:
            raise RuntimeError("source() has already been called")
        return
    if "source" not in applied:
        raise RuntimeError("Call source() before other pipeline stages")
    if stage == "build":
        return
    # The stages of the library are called once each; custom stages may repeat.
    if stage in STAGES and stage in applied:
        raise RuntimeError(f"{stage}() has already been called")
    forbidden_before = _AFTER.get(stage, ("load",))
    earlier_stage: str | None = None
    for forbidden_stage in forbidden_before:
        if forbidden_stage in applied:
            earlier_stage = forbidden_stage
            break
    if earlier_stage is not None:
        order = (
            f"stages go {', '.join(STAGES)}; save may come earlier, and pack before mix"
        )
        raise RuntimeError(f"{stage}() cannot come after {earlier_stage}(); {order}")


def check_config(config: PipelineConfig, stage: str) -> None:
    """Check a configuration, and the options that a pipeline refuses in a section.

    The section is that of a stage. Before the first stage, the sections without a stage
    are checked.

    Raises:
        ConfigError: It contradicts itself; the message lists everything.
        NotAvailableError: An option that has no effect in a pipeline is set.
    """
    raise_problems(ConfigError, config.validate())
    sections = _CHECKED_FIRST if stage == "source" else (stage,)
    raise_problems(NotAvailableError, refused(config, "rows", sections))

"""The order in which the stages of a pipeline may be called, and the options that
each refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import raise_problems, refused
from tokenlake.errors import ConfigError, NotAvailableError

STAGES: Final = ("source", "tokenize", "mix", "pack", "save", "load")
_AFTER: Final = {"tokenize": ("mix", "pack", "load")}
"""A stage to those that may not come before it, else load alone: rows can be saved at
any place, and packed before or after a mix.
"""
_CHECKED_FIRST: Final = ("datasets", "source", "cache", "card", "ray")
"""Sections of which no stage is called, so that they are checked before the first
one.
"""


def check_order(stage: str, applied: Sequence[str]) -> None:
    """Raise RuntimeError unless `stage` may follow the stages `applied`.

    Args:
        stage: one of :data:`STAGES`, ``build``, or the name of a stage of the user's
            own.
        applied: names of the stages so far, in order.
    """
    if stage == "source":
        if "source" in applied:
            raise RuntimeError("source() has already been called")
        return
    if "source" not in applied:
        raise RuntimeError("Call source() before other pipeline stages")
    if stage == "build":
        return
    if stage in STAGES and stage in applied:
        raise RuntimeError(f"{stage}() has already been called")
    before = next(
        (name for name in _AFTER.get(stage, ("load",)) if name in applied), None
    )
    if before is not None:
        order = (
            f"stages go {', '.join(STAGES)}; save may come earlier, and pack before mix"
        )
        raise RuntimeError(f"{stage}() cannot come after {before}(); {order}")


def check_config(config: PipelineConfig, stage: str) -> None:
    """Check a configuration, and what a pipeline refuses in the section of a stage;
    first in those without one.

    Raises:
        ConfigError: it contradicts itself; the message lists everything.
        NotAvailableError: an option that a pipeline does not act on is set.
    """
    raise_problems(ConfigError, config.validate())
    sections = _CHECKED_FIRST if stage == "source" else (stage,)
    raise_problems(NotAvailableError, refused(config, "rows", sections))

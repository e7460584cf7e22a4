"""Which stage may come after which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STAGES: Final = ("source", "tokenize", "mix", "pack", "save", "load")

_AFTER: Final = {
    "tokenize": ("mix", "pack", "load"),
    "mix": ("pack", "load"),
    "pack": ("load",),
    "save": ("load",),
}
"""A stage to those that may not come before it; rows can be saved at any place."""


def check_order(stage: str, applied: Sequence[str]) -> None:
    """Raise RuntimeError unless `stage` may follow the stages `applied`.

    Args:
        stage: one of :data:`STAGES`, ``build``, or the name of a stage of the user's own.
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
    before = next((name for name in _AFTER.get(stage, ("load",)) if name in applied), None)
    if before is not None:
        raise RuntimeError(
            f"{stage}() cannot come after {before}(); stages go {', '.join(STAGES)}, and save also earlier"
        )
    if stage == "pack" and not _has_tokens(applied):
        raise RuntimeError(
            "Call tokenize() before pack(): packing needs tokens. (Rows that hold input_ids already are packed by "
            "PackedShardedSource.)"
        )


def _has_tokens(applied: Sequence[str]) -> bool:
    """Whether rows may hold tokens: a stage of the user's own may make them, too."""
    return "tokenize" in applied or any(name not in STAGES for name in applied)

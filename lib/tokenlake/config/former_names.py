"""Former names of options, which work for one release.

A note gives the present name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig

_FORMER_KEY: Final = "tokenize.engine"
_PRESENT_KEY: Final = "tokenize.tokenizer_backend"


def renaming_note(former_name: str, name: str) -> str:
    """Return the note for a user who uses a former name."""
    return f"{former_name} is now called {name}; the former name works in this release only"


def with_present_names(overrides: Sequence[str]) -> list[str]:
    """Return overrides that set renamed options by their present names, too.

    The former name stays among them, for the note. The present name must be set too:
    otherwise the value of the configuration's file would take precedence over the
    override.

    Args:
        overrides: Texts ``key=value``.
    """
    # Both names in this order: the note needs the former one, the build the present one.
    extended: list[str] = []
    for override in overrides:
        extended.append(override)
        key, separator, value = override.partition("=")
        if separator and key.strip() == _FORMER_KEY:
            extended.append(f"{_PRESENT_KEY}={value}")
    return extended


def former_name_notes(config: PipelineConfig) -> list[str]:
    """Return a note for each option that a configuration sets by its former name."""
    if config.tokenize.engine is None:
        return []
    return [renaming_note(_FORMER_KEY, _PRESENT_KEY)]

"""The table of input formats."""

from __future__ import annotations

from collections.abc import Mapping

from tokenlake.config.formats import FORMATS, FormatFacts


def formats() -> Mapping[str, FormatFacts]:
    """Return name -> facts of every input format."""
    return {name: facts for name, facts in FORMATS.items()}  # noqa: C416 - the names are plain text here

"""The table of input formats."""

from __future__ import annotations

from collections.abc import Mapping

from tokenlake.config.formats import FORMATS, FormatFacts


def formats() -> Mapping[str, FormatFacts]:
    """Return name -> facts of every input format of texts."""
    return {name: facts for name, facts in FORMATS.items() if not facts.tokens}


def token_formats() -> Mapping[str, FormatFacts]:
    """Return name -> facts of every input format of token ids."""
    return {name: facts for name, facts in FORMATS.items() if facts.tokens}

"""What only inputs and tokenizer can say of a source: whether its rows are conversations, and by which template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenlake.config.resolved import ResolvedSource
from tokenlake.sources.inputs import InputFile
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.preference.settling import settled_preference


def settle(
    source: ResolvedSource, files: Sequence[InputFile], tokenizer: TokenizerFiles
) -> tuple[ResolvedSource, list[str]]:
    """Return the source with nothing left open, and notes for the plan on what was found.

    Raises:
        ConfigError: what is asked for cannot be had from these inputs or this tokenizer.
    """
    if source.texts.preference is not None:
        preference = settled_preference(source.texts.preference, tokenizer)
        return replace(source, texts=replace(source.texts, preference=preference)), []
    return source, []

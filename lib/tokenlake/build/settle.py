"""What only inputs and tokenizer can say of a source: whether its rows are conversations, and by which template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.resolved_texts import ResolvedPrompt
from tokenlake.errors import ConfigError
from tokenlake.sources.inputs import InputFile
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.prompt.settling import settled_prompt


def settle(
    source: ResolvedSource, files: Sequence[InputFile], tokenizer: TokenizerFiles, eos_id: int | None = None
) -> tuple[ResolvedSource, list[str]]:
    """Return the source with nothing left open, and notes for the plan on what was found.

    Args:
        eos_id: what ends a document; None where neither tokenizer nor configuration names one.

    Raises:
        ConfigError: what is asked for cannot be had from these inputs or this tokenizer.
    """
    if source.texts.prompt is not None:
        return with_prompt(source, source.texts.prompt, tokenizer, eos_id), []
    return source, []


def with_prompt(
    source: ResolvedSource, prompt: ResolvedPrompt, tokenizer: TokenizerFiles, eos_id: int | None
) -> ResolvedSource:
    """Return a source of prompts with nothing left open.

    Raises:
        ConfigError: its template is wrong or does not fit.
    """
    try:
        settled = settled_prompt(prompt, tokenizer, eos_id)
    except ConfigError as error:
        raise ConfigError(f"datasets.{source.name}.{error}", **error.details) from error
    return replace(source, texts=replace(source.texts, prompt=settled))

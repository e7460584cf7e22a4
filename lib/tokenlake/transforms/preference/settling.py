"""What only the tokenizer can say of a preference: its chat template, and whether it has an EOS."""

from __future__ import annotations

from dataclasses import replace

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.errors import ConfigError
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.sources import template_of


def settled_preference(settings: ResolvedPreference, files: TokenizerFiles) -> ResolvedPreference:
    """Return the settings with the tokenizer's chat template, where it has one.

    Raises:
        ConfigError: answers would have no end, because the tokenizer names no EOS.
    """
    if settings.method != "grpo" and files.eos_id is None:
        raise ConfigError(
            f"tokenizer {files.name!r} names no EOS token, by which a model learns where an answer ends; set "
            "eos_token in its tokenizer_config.json",
            tokenizer=files.name,
        )
    return replace(settings, chat_template=settings.chat_template or template_of(files))

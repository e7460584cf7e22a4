"""What a chat needs of a tokenizer, whatever stands for it: a name, a path, its files, or a transformers object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast, final

from tokenlake.errors import ConfigError
from tokenlake.tokenizers import TokenizerFiles, load_tokenizer
from tokenlake.transforms.chat.forging import ForgeryScan
from tokenlake.transforms.chat.sources import DEFAULT, chosen_template, named_tokens, no_template

AnyTokenizer = str | os.PathLike[str] | TokenizerFiles | Any


@final
@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    """A tokenizer's chat template, its named tokens, and a scan for its special tokens."""

    template: str
    tokens: Mapping[str, str]
    forgeries: ForgeryScan

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, template: str | None = None) -> Self:
        """Take them of a tokenizer; `template` instead of its own.

        Raises:
            ConfigError: it has no template, or is no tokenizer.
        """
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(cast("str | os.PathLike[str]", tokenizer))
        if isinstance(tokenizer, TokenizerFiles):
            text = chosen_template(template, tokenizer)
            return cls(text, named_tokens(tokenizer), ForgeryScan.of(tokenizer))
        return cls._of_transformers(tokenizer, template)

    @classmethod
    def _of_transformers(cls, tokenizer: Any, template: str | None) -> Self:
        if not hasattr(tokenizer, "apply_chat_template"):
            raise ConfigError(
                f"tokenizer: got {type(tokenizer).__name__}, must be a Hub id, a path, or a tokenizer of transformers"
            )
        own: Any = tokenizer.chat_template
        text = template or (cast("dict[str, str]", own).get(DEFAULT) if isinstance(own, dict) else own)
        if not text:
            raise ConfigError(no_template(str(getattr(tokenizer, "name_or_path", "")), []))
        named = {str(name): str(token) for name, token in tokenizer.special_tokens_map.items()}
        added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        special = {token.content for token in added.values() if token.special}
        return cls(text, named, ForgeryScan(sorted({*special, *tokenizer.all_special_tokens})))

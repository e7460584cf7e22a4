"""Sentinels of fill-in-the-middle.

They are the tokens before the prefix, the suffix and the middle of a text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tokenlake.base.checks import did_you_mean
from tokenlake.config.resolved import ResolvedFim, ResolvedTexts
from tokenlake.errors import ConfigError
from tokenlake.etl.tokenizers.files import TokenizerFiles

_FAMILIES: Final = (
    # StarCoder.
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # SantaCoder.
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    # Qwen, CodeGemma.
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # DeepSeek.
    (
        "<\uff5cfim\u2581begin\uff5c>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<\uff5cfim\u2581end\uff5c>",
    ),
    # Code Llama.
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"),
)
"""Names of the sentinels in known tokenizers: of prefix, suffix and middle and, in
Code Llama's, of the end.
"""


def with_sentinels(
    texts: ResolvedTexts, fim: ResolvedFim, tokenizer: TokenizerFiles
) -> ResolvedTexts:
    """Return a section of texts with the sentinels of fill-in-the-middle.

    Args:
        texts: Section of texts.
        fim: Its section of fill-in-the-middle, which may name the sentinels.
        tokenizer: Tokenizer that must have them.

    Raises:
        ConfigError: The tokenizer does not have them.
    """
    families = _FAMILIES
    if fim.tokens:
        families = (fim.tokens,)
    for family in families:
        if not _missing_tokens(family, tokenizer):
            return replace(texts, fim=replace(fim, tokens=family))

    missing = _missing_tokens(families[0], tokenizer)[0]
    if fim.tokens:
        hint = did_you_mean(missing, tokenizer.special_tokens)
    else:
        hint = f" and none of {', '.join(family[0] for family in families[1:])}"
    raise ConfigError(
        f"fim.tokens: tokenizer {tokenizer.name!r} has no token {missing!r}{hint}; expected the names of its "
        "sentinel tokens for prefix, suffix and middle. Add these tokens to its tokenizer.json, or name existing "
        "ones",
        tokenizer=tokenizer.name,
    )


def _missing_tokens(names: tuple[str, ...], tokenizer: TokenizerFiles) -> list[str]:
    """Return the tokens that a tokenizer does not have."""
    return [name for name in names if tokenizer.token_id(name) is None]

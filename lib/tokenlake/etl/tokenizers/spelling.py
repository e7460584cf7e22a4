"""Tokenizers whose ids spell the bytes of a text, so that places follow from the ids.

Two kinds do. Byte-level BPE spells every byte by one letter of its alphabet, whatever
its splits are. BPE in SentencePiece's style spells a space as U+2581 and what its
vocabulary lacks byte by byte.
"""

from __future__ import annotations

from typing import Any, Final

from tokenlake.etl.tokenizers.allowlist import (
    BYTE_LEVEL_ALPHABET,
    BYTE_TOKENS,
    flat,
    kind_of,
    model_type,
    only_wraps,
    unknown_keys,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.words.rules import objection_to_words, split_rules_of

_MARK: Final = "\u2581"
# Stages that part a text, or drop some of it, and add nothing.
_PARTING: Final = frozenset(("Split", "Digits", "Punctuation"))


def objection_to_spelling(files: TokenizerFiles, *, literal: bool) -> str | None:
    """Return why the ids of a tokenizer do not spell the bytes of a text, or None.

    Args:
        files: Tokenizer.
        literal: Whether special tokens are plain text.
    """
    model_name = model_type(files)
    if model_name != "BPE":
        return f"the model is {model_name}, which does not spell all characters"
    is_marked = bool(files.spec["model"].get("byte_fallback"))

    # 1. The stages. Those of SentencePiece's style are read like those of cached words.
    if is_marked:
        reason = objection_to_words(files, literal=literal)
    else:
        reason = _objection_to_bytes(files)
    if reason is not None:
        return reason

    # 2. The id of an added token must not be one of text, too.
    vocab = files.spec["model"]["vocab"]
    for token in files.matched_tokens(literal=literal):
        is_text = token in BYTE_TOKENS or _MARK in token
        if not is_marked:
            is_text = not token.isascii() and BYTE_LEVEL_ALPHABET.issuperset(token)
        if token in vocab and is_text and not _spells_itself(files, token):
            return f"the added token {token!r} could be a text"
    return None


def parting_tokens(files: TokenizerFiles, *, literal: bool) -> list[str]:
    """Return the added tokens that part a text.

    Tokens whose place is the same if they are taken for text are left out.

    Args:
        files: Tokenizer without an objection.
        literal: Whether special tokens are plain text.
    """
    tokens: list[str] = []
    for token in files.matched_tokens(literal=literal):
        if not _spells_itself(files, token):
            tokens.append(token)
    return tokens


def _spells_itself(files: TokenizerFiles, token: str) -> bool:
    """Whether an added token is also a token of text with the same characters.

    Gemma 3 has added tokens of several marks U+2581, whose ids are also those of as
    many spaces. Where a text holds the marks themselves, they lie there, whether the
    model or the search for added tokens found them.
    """
    model = files.spec["model"]
    is_marked = bool(model.get("byte_fallback"))
    has_mark = is_marked and _MARK in token
    is_text = token in model["vocab"] and token not in BYTE_TOKENS
    if not (has_mark and is_text):
        return False
    # A mark that is put in front would spell one more space.
    return prefix_rule(files) == "never"


def _objection_to_bytes(files: TokenizerFiles) -> str | None:
    """Return why a tokenizer without byte tokens does not spell bytes, or None."""
    spec = files.spec
    model: dict[str, Any] = spec["model"]
    # 1. The model and the stages around it add nothing.
    for reason in unknown_keys(spec, "BPE"):
        return reason
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            return f"its model.{key} is {model[key]!r}"
    if not only_wraps(spec.get("post_processor")):
        return (
            f"the post_processor is {kind_of(spec.get('post_processor'))} and does more than add tokens around a "
            "document"
        )
    if flat(spec.get("normalizer"), "normalizers") not in ([], [{"type": "NFC"}]):
        return (
            f"the normalizer is {kind_of(spec.get('normalizer'))}, expected none or NFC"
        )

    # 2. The pre-tokenizer parts the text, and then writes its bytes as letters.
    stages = flat(spec.get("pre_tokenizer"), "pretokenizers")
    is_byte_level = bool(stages) and stages[-1].get("type") == "ByteLevel"
    only_parts = all(stage.get("type") in _PARTING for stage in stages[:-1])
    if not (is_byte_level and only_parts):
        return f"the pre_tokenizer is {kind_of(spec.get('pre_tokenizer'))}, expected splits and then ByteLevel"
    if stages[-1].get("add_prefix_space", True):
        return "the pre_tokenizer puts a space in front of texts"
    return None


def prefix_rule(files: TokenizerFiles) -> str:
    """Return the rule by which parts of a text get a space in front.

    Returns:
        "never"; "every" part; the "first" part of a text, or every part ("missing"), if
        it does not begin with a space.
    """
    if not files.spec["model"].get("byte_fallback"):
        return "never"
    rules = split_rules_of(files)
    if rules.prefix == "every" and rules.only_if_missing:
        return "missing"
    return rules.prefix

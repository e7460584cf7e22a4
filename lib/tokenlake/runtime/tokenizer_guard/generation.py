"""Two generations of the package `tokenizers`, and how each loads a tokenizer.json.

Before 1.0 the package exports the parts of a tokenizer (normalizer, pre-tokenizer,
model), trains, and gives the place of every token in the text. From 1.0 on it encodes
and decodes 20 to 35 times faster, and does nothing else. This module is the only place
that looks at which of them is installed. It looks at abilities, not at version numbers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, cast

from tokenlake.errors import MissingExtraError

OLDER: Final = "pip install 'tokenizers>=0.22,<1'"
"""Command that installs the generation with all parts."""
FASTER: Final = "pip install --pre 'tokenizers>=1.0.0rc3,<2'"
"""Command that installs the fast generation."""
GPT2_EXPRESSIONS: Final = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)
"""Two spellings of the expression that ByteLevel has by itself."""


def tokenizers_version() -> str:
    """Return the version of `tokenizers`, "" if it is not installed."""
    try:
        return version("tokenizers")
    except PackageNotFoundError:
        return ""


@cache
def exports_parts() -> bool:
    """Return whether the installed `tokenizers` exports the parts of a tokenizer.

    It then also gives the places of tokens in a text.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
    """
    return hasattr(_tokenizer_class(), "from_buffer")


def load_raw(tokenizer_json: bytes, spec: Mapping[str, Any]) -> Any:
    """Return the `tokenizers.Tokenizer` of a file, without truncation and padding.

    Args:
        tokenizer_json: Content of the file.
        spec: Parsed form of the same file.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
        Exception: `tokenizers` cannot load the file; it raises exceptions of several
            types.
    """
    tokenizer_class = _tokenizer_class()
    if exports_parts():
        tokenizer: Any = tokenizer_class.from_buffer(tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    # This generation reads files only.
    with tempfile.NamedTemporaryFile(suffix=".json") as json_file:
        json_file.write(_rewritten(tokenizer_json, spec))
        json_file.flush()
        tokenizer = tokenizer_class.from_file(json_file.name)
    tokenizer.truncation = None
    tokenizer.padding = None
    # Expressions that it does not know are refused by the first text, not by the file.
    tokenizer.encode("a")
    return tokenizer


def _tokenizer_class() -> Any:
    """Return the class `tokenizers.Tokenizer`; MissingExtraError without the
    package.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError(
            "a tokenizer needs the package tokenizers, which is missing: pip install tokenizers"
        ) from error
    return tokenizers.Tokenizer


def failure_to_load() -> str:
    """Return the message for a file that the installed `tokenizers` does not load."""
    message = "tokenizer.json cannot be loaded"
    if exports_parts():
        return message
    return f"{message} by tokenizers {tokenizers_version()} (the generation before it loads more forms: {OLDER})"


def _rewritten(tokenizer_json: bytes, spec: Mapping[str, Any]) -> bytes:
    """Return a tokenizer.json of the same meaning that tokenizers 1.0 loads."""
    # A file that needs no change keeps its bytes, which saves writing a large
    # vocabulary.
    pre_tokenizer = _with_named_expression(spec.get("pre_tokenizer"))
    model = _with_all_bytes(spec)
    has_same_splits = pre_tokenizer is spec.get("pre_tokenizer")
    if has_same_splits and model is spec.get("model"):
        return tokenizer_json
    rewritten = {**spec, "pre_tokenizer": pre_tokenizer, "model": model}
    return json.dumps(rewritten).encode()


def _with_named_expression(stage: Any) -> Any:
    """Return a pre-tokenizer in which ByteLevel splits by GPT-2's expression.

    It replaces a Split by that expression before a ByteLevel without one.
    """
    members: Any = None if stage is None else stage.get("pretokenizers")
    if not isinstance(members, list) or len(cast("list[Any]", members)) != 2:
        return stage
    split, byte_level = cast("list[dict[str, Any]]", members)
    # The Split cuts at the matches of GPT-2's expression, and keeps everything.
    gpt2_patterns = [{"Regex": expression} for expression in GPT2_EXPRESSIONS]
    is_gpt2 = split.get("pattern") in gpt2_patterns
    is_kept = split.get("behavior") == "Isolated" and not split.get("invert")
    is_split = split.get("type") == "Split" and is_gpt2 and is_kept
    # The ByteLevel after it does not split.
    is_byte_level = byte_level.get("type") == "ByteLevel"
    is_bare = is_byte_level and byte_level.get("use_regex") is False
    if not is_split or not is_bare:
        return stage
    return {**byte_level, "use_regex": True}


def _with_all_bytes(spec: Mapping[str, Any]) -> Any:
    """Return a model with a token for every byte, if the missing ones have no use.

    Gemini's vocabulary has a token for the tab itself and none for its byte. tokenizers
    1.0 does not load it.
    """
    model: Any = spec.get("model", {})
    vocab: Any = model.get("vocab")
    if not model.get("byte_fallback") or not isinstance(vocab, dict):
        return model
    ids = cast("dict[str, int]", vocab)
    # A byte that is missing is never used if its character has a token of its own,
    # which only characters of one byte can have.
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in ids]
    are_unused = all(byte < 128 and chr(byte) in ids for byte in missing)
    if not missing or not are_unused:
        return model
    added_tokens: list[Mapping[str, Any]] = spec.get("added_tokens") or []
    # Added tokens outside of the vocabulary are numbered by its size.
    if not all(token["content"] in ids for token in added_tokens):
        return model
    first_unused_id = max(ids.values(), default=-1) + 1
    complete_ids = dict(ids)
    for token_id, byte in enumerate(missing, first_unused_id):
        complete_ids[f"<0x{byte:02X}>"] = token_id
    return {**model, "vocab": complete_ids}

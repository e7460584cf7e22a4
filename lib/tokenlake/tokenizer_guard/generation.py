"""The two generations of the package `tokenizers`, and how each of them loads a tokenizer.json.

Before 1.0 the package exports the parts of a tokenizer (normalizer, pre-tokenizer, model), trains, and gives the place
of every token in the text. From 1.0 on it encodes and decodes 20 to 35 times faster, and does nothing else. This module
is the only place that looks at which of them is installed. It looks at abilities, not at version numbers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from tokenlake.errors import MissingExtraError

OLDER: Final = "pip install 'tokenizers>=0.22,<1'"
"""How to install the generation that has all parts."""
FASTER: Final = "pip install --pre 'tokenizers>=1.0.0rc3,<2'"
"""How to install the fast generation."""


def tokenizers_version() -> str:
    """Return the version of `tokenizers`, "" where it is not installed."""
    try:
        return version("tokenizers")
    except PackageNotFoundError:
        return ""


@cache
def exports_parts() -> bool:
    """Return whether the installed `tokenizers` exports the parts of a tokenizer and the places of tokens.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
    """
    return hasattr(_tokenizer_class(), "from_buffer")


def load_raw(tokenizer_json: bytes, spec: Mapping[str, Any]) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json, which neither cuts nor pads.

    Args:
        tokenizer_json: Content of the file.
        spec: Parsed form of the same file.

    Raises:
        MissingExtraError: `tokenizers` is not installed.
        Exception: Whatever `tokenizers` raises where it cannot load the file.
    """
    tokenizer_class = _tokenizer_class()
    if exports_parts():
        tokenizer: Any = tokenizer_class.from_buffer(tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    # This generation reads files only.
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(_with_all_bytes(tokenizer_json, spec))
        file.flush()
        tokenizer = tokenizer_class.from_file(file.name)
    tokenizer.truncation = None
    tokenizer.padding = None
    # Expressions that it does not know are refused by the first text, not by the file.
    tokenizer.encode("a")
    return tokenizer


def _tokenizer_class() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError(
            "a tokenizer needs the package tokenizers, which is missing: pip install tokenizers"
        ) from error
    return tokenizers.Tokenizer


def _with_all_bytes(tokenizer_json: bytes, spec: Mapping[str, Any]) -> bytes:
    """Return a tokenizer.json with a token for every byte, where tokens that are missing can never be used.

    Gemini's vocabulary has a token for the tab itself and none for its byte. tokenizers 1.0 does not load it.
    """
    model: Mapping[str, Any] = spec.get("model", {})
    vocab: Any = model.get("vocab")
    if not model.get("byte_fallback") or not isinstance(vocab, dict):
        return tokenizer_json
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocab]
    if not missing or not all(byte < 128 and chr(byte) in vocab for byte in missing):
        return tokenizer_json
    added: list[Mapping[str, Any]] = spec.get("added_tokens") or []
    # Added tokens outside of the vocabulary are numbered by its size.
    if not all(token["content"] in vocab for token in added):
        return tokenizer_json
    unused = max(vocab.values(), default=-1) + 1
    fillers = {f"<0x{byte:02X}>": unused + index for index, byte in enumerate(missing)}
    completed = {**spec, "model": {**model, "vocab": {**vocab, **fillers}}}
    return json.dumps(completed).encode()

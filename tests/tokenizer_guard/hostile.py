"""Tokenizers that are made to do harm, each a change of a harmless one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tests.tokenizers import tokenizer_samples as samples
from tokenlake.etl.tokenizers import TokenizerFiles

Spec = dict[str, Any]
_MIB: Final = 1 << 20
_FLAGS: Final = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
_TEN_TIMES: Final = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}


def normalizers(*parts: Spec) -> Spec:
    return {"type": "Sequence", "normalizers": list(parts)}


def growing_normalizer(spec: Spec) -> None:
    """Make 10 ** 12 of each "a"."""
    spec["normalizer"] = normalizers(*[_TEN_TIMES] * 12)


def growing_pre_tokenizer(spec: Spec) -> None:
    """Double each byte, thirty times: a byte becomes a character of two bytes."""
    byte_level = {**samples.BYTE_LEVEL, "use_regex": False}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [byte_level] * 31}


def growing_decoder(spec: Spec) -> None:
    """Make 10 ** 12 of each "a" of a decoded text."""
    spec["decoder"] = {
        "type": "Sequence",
        "decoders": [spec["decoder"], *[_TEN_TIMES] * 12],
    }


def long_prepend(spec: Spec) -> None:
    """Put 50 MiB before each text."""
    spec["normalizer"] = {"type": "Prepend", "prepend": "a" * (50 * _MIB)}


def add_token(spec: Spec, **changes: Any) -> None:
    token = {
        "id": len(spec["model"]["vocab"]),
        "content": "<more>",
        **_FLAGS,
        **changes,
    }
    spec["added_tokens"] = [*spec["added_tokens"], token]


def set_id(spec: Spec, number: Any) -> None:
    """Give a token of the vocabulary another id."""
    token = list(spec["model"]["vocab"])[-1]
    spec["model"]["vocab"][token] = number


def files_with(change: Callable[[Spec], object]) -> TokenizerFiles:
    """Return a byte-level tokenizer with a changed tokenizer.json."""
    return samples.changed(samples.byte_level(), change)


def files_with_config(**settings: Any) -> TokenizerFiles:
    """Return a byte-level tokenizer with a changed tokenizer_config.json."""
    files = samples.byte_level()
    config = {**files.config, **settings}
    return TokenizerFiles(
        name=files.name,
        files={**files.files, "tokenizer_config.json": json.dumps(config).encode()},
    )

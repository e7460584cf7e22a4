"""Which tokens begin in the midst of a character: before them, ids cannot be cut without halving it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenlake.tokenizers.files import TokenizerFiles

Bools = npt.NDArray[np.bool_]

#: How byte-level BPE spells the bytes 0x80 to 0xBF, which continue a character of UTF-8: those that Latin-1 prints as
#: themselves, and the others by the letters from U+0122 on, in order.
_CONTINUE: Final = frozenset(
    [*map(chr, range(0xA1, 0xAD)), *map(chr, range(0xAE, 0xC0)), *map(chr, range(0x122, 0x144))]
)
_BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(0x80, 0xC0))


def continuing_tokens(files: TokenizerFiles) -> Bools:
    """Return bool[vocabulary], True for ids whose first byte continues a character.

    Of a tokenizer whose tokens are whole characters none is.
    """
    found = np.zeros(files.vocab_size, np.bool_)
    model = files.spec["model"]
    byte_level = _has_byte_level(files.spec.get("pre_tokenizer")) or _has_byte_level(
        files.spec.get("decoder")
    )
    if not (byte_level or model.get("byte_fallback")):
        return found
    added = {token["content"] for token in files.added_tokens}
    for token, number in _vocabulary(model.get("vocab") or {}):
        if token not in added and (token[:1] in _CONTINUE if byte_level else token in _BYTE_TOKENS):
            found[number] = True
    return found


def _vocabulary(vocab: Any) -> Any:
    """(token, id) of a vocabulary: a mapping, or a Unigram's list of [token, score]."""
    if isinstance(vocab, dict):
        return vocab.items()  # pyright: ignore[reportUnknownVariableType]
    return ((piece[0], number) for number, piece in enumerate(vocab))


def _has_byte_level(stage: Any) -> bool:
    if isinstance(stage, dict):
        return stage.get("type") == "ByteLevel" or any(map(_has_byte_level, stage.values()))
    return isinstance(stage, list) and any(map(_has_byte_level, stage))

"""Ids of a tokenizer.json's tokens, read from the file alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def ids_by_token(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of every token of the vocabulary and every added token.

    Args:
        spec: Parsed tokenizer.json, whose shape has been checked.
    """
    vocab: Any = spec.get("model", {}).get("vocab", {})
    if isinstance(vocab, list):
        # Unigram: a list of [piece, score].
        pieces = cast("list[tuple[str, float]]", vocab)
        vocab = {piece: piece_index for piece_index, (piece, _) in enumerate(pieces)}
    ids: dict[str, int] = dict(vocab)
    # Added tokens are numbered as `tokenizers` does: past the vocabulary, whatever id
    # the file says.
    highest_id = -1
    added: list[Mapping[str, Any]] = spec.get("added_tokens") or []
    for token in added:
        ids.setdefault(token["content"], max(len(vocab), highest_id + 1))
        highest_id = max(highest_id, ids[token["content"]])
    return ids

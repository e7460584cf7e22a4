"""The packing functions of older callers, with their arguments: greedy packing of a stream.

New code uses :class:`PackedRows`, which has all strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokenlake.packing.rows import PackedRows, Row

_FIELDS = ("input_ids", "tokens")


def pack_pre_tokenized(
    stream: Iterable[Mapping[str, Any] | Sequence[int]],
    seq_length: int,
    eos_token_id: int,
    batch_size: int = 1,
    shuffle: bool = False,
    buffer_factor: int = 10,
    *,
    pad_token_id: int | None = None,
    seed: int = 0,
) -> Iterator[Row]:
    """Pack documents that are tokens already into rows of one length; no token is lost.

    Args:
        stream: documents: sequences of ids, or mappings with ``input_ids`` or ``tokens`` (and ``loss_mask``, in all
            or none).
        seq_length: L, tokens of a row.
        eos_token_id: put after each document that does not end with it.
        batch_size, buffer_factor: with `shuffle`, rows are shuffled ``batch_size * buffer_factor`` at a time.
        pad_token_id: fills the last row; None: `eos_token_id`.
        seed: of the shuffle.

    Returns:
        An iterator of ``input_ids``, ``segment_ids`` (0 for padding) and ``attention_mask`` (0 for padding), int32[L]
        each, and ``loss_mask`` (bool[L]) where documents have one.
    """
    packing = PackedRows(
        seq_length=seq_length,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        num_packers=batch_size,
        shuffle_packed=shuffle,
        shuffle_buffer_factor=buffer_factor,
        seed=seed,
    )
    return map(_with_attention, packing.pack(map(_document, stream)))


def pack_constant_length(
    stream: Iterable[Any],
    tokenize_fn: Callable[[Any], Mapping[str, Any] | Sequence[int]],
    seq_length: int,
    eos_token_id: int,
    batch_size: int = 1,
    shuffle: bool = False,
    buffer_factor: int = 10,
    *,
    pad_token_id: int | None = None,
    seed: int = 0,
) -> Iterator[Row]:
    """Tokenize examples with `tokenize_fn` and pack what it returns, as :func:`pack_pre_tokenized` does."""
    return pack_pre_tokenized(
        map(tokenize_fn, stream),
        seq_length,
        eos_token_id,
        batch_size,
        shuffle,
        buffer_factor,
        pad_token_id=pad_token_id,
        seed=seed,
    )


def _document(given: Mapping[str, Any] | Sequence[int]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        return {"input_ids": given}
    kept = {name: given[name] for name in ("loss_mask",) if name in given}
    found = next((name for name in _FIELDS if name in given), None)
    return given if found is None else {"input_ids": given[found], **kept}


def _with_attention(row: Row) -> Row:
    row["attention_mask"] = (row["segment_ids"] > 0).astype(np.int32)
    return row

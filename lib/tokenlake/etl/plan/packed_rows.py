"""The expected number of packed rows, from the lengths of sampled documents.

Rows have padding unless documents may be cut anywhere, so that the tokens alone do not
say how many rows there will be. The sampled documents are packed as a build would pack
them, without their tokens:

1. Every unit packs each of its splits by itself, into each file that it writes at a
   time. Such a stream has ``T = tokens * share / streams`` tokens.
2. Strategies plan a stream in windows of ``W = min(window_tokens, T)`` tokens. The
   sample is divided into windows of ``W`` tokens, and each is planned.
3. The rows of a split are ``tokens * share * planned rows / planned tokens``.
4. ``greedy`` without a limit of pieces pads the last row of a stream alone, which is
   half full in the mean: a stream has ``max(1, T / width + 1 / 2)`` rows.

Example: rows of 8 tokens, one unit, one split, and documents of 5 tokens, of which 100
are expected. Two of them never share a row with ``best_fit``: windows of 500 tokens
have 100 rows. ``greedy`` has 500 / 8 + 1 / 2 = 63 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.config.resolved import ResolvedPack, ResolvedTokenizer
from tokenlake.etl.packing import plan_segments
from tokenlake.etl.plan.sampling import Floats

_MOST_WINDOWS: Final = 32
"""Windows of a sample that are planned, evenly over all of them."""


@final
@dataclass(frozen=True, slots=True)
class LengthSample:
    """Documents of one kind of input, and the tokens that they stand for.

    Attributes:
        lengths: Tokens of each sampled document, or of each part that a long one is
            split into, special tokens included, at least 1, int64[n].
        tokens: Expected tokens of all documents of this kind.
    """

    lengths: Int64
    tokens: float


def part_lengths(
    lengths: Floats, options: ResolvedTokenizer, around: int, added: float
) -> Int64:
    """Return the tokens of the parts that documents are packed as, in their order.

    Args:
        lengths: Tokens of each document without special tokens, float64[n].
        options: Policy for long documents.
        around: Number of special tokens of a document that count for `max_length`.
        added: Mean number of tokens that are put around a document.
    """
    room = max(1, options.max_length - around)
    contents = lengths
    if options.long_documents == "drop":
        contents = lengths[lengths <= room]
    elif options.long_documents == "truncate":
        contents = np.minimum(lengths, room)
    elif options.long_documents == "split":
        # Full parts, and the rest of each document as its last part.
        counts = np.maximum(np.ceil(lengths / room), 1).astype(np.int64)
        contents = np.full(int(counts.sum()), float(room))
        contents[np.cumsum(counts) - 1] = lengths - (counts - 1) * room
    return np.maximum(np.rint(contents + added), 1).astype(np.int64)


def expected_rows(
    samples: Sequence[LengthSample],
    pack: ResolvedPack,
    shares: Sequence[float],
    streams: int,
) -> int:
    """Return the expected number of packed rows of a source.

    Args:
        samples: Documents of each kind of input.
        pack: Width of rows, strategy and its options.
        shares: Share of each split in the documents.
        streams: Number of streams that each split is packed in: one for each unit, or
            for each file that a unit writes at a time.
    """
    tokens = sum(sample.tokens for sample in samples)
    rows = 0.0
    for share in shares:
        # A stream without documents has no rows.
        documents = share * sum(_documents_of(sample) for sample in samples)
        used_streams = max(1, min(streams, round(documents)))
        stream_tokens = tokens * share / used_streams
        if pack.strategy == "greedy" and pack.max_segments is None:
            rows += used_streams * max(1.0, stream_tokens / pack.width + 0.5)
            continue
        window_tokens = max(1, min(pack.window_tokens, round(stream_tokens)))
        for sample in samples:
            rows += sample.tokens * share * _rows_per_token(sample, pack, window_tokens)
    return math.ceil(rows)


def _documents_of(sample: LengthSample) -> float:
    """Return the expected number of documents of one kind of input."""
    if not len(sample.lengths):
        return 0.0
    return sample.tokens / float(sample.lengths.mean())


def _rows_per_token(
    sample: LengthSample, pack: ResolvedPack, window_tokens: int
) -> float:
    """Return the rows of some windows of a sample per token that they hold."""
    planned_rows = 0
    planned_tokens = 0
    for lengths in _windows(sample.lengths, window_tokens):
        planned_rows += plan_segments(lengths, pack).rows
        planned_tokens += int(lengths.sum())
    return planned_rows / max(1, planned_tokens)


def _windows(lengths: Int64, window_tokens: int) -> Iterator[Int64]:
    """Yield the documents that begin in each window of a sample, for at most
    :data:`_MOST_WINDOWS` of them.
    """
    begins = np.cumsum(lengths) - lengths
    window = begins // window_tokens
    borders = np.flatnonzero(np.diff(window)) + 1
    windows = np.split(lengths, borders)
    # A step over windows, rounded up.
    step = -(-len(windows) // _MOST_WINDOWS)
    yield from windows[::step]

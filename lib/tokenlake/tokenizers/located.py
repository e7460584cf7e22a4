"""The tokens of a batch and their places, by the fast engine where its ids tell them, else by the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.spans import Spans
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.places import (
    Placed,
    PlacingReference,
    touched,
    touched_in_order,
    whole_characters,
)
from tokenlake.tokenizers.reference import Reference
from tokenlake.tokenizers.sampling import require_equal
from tokenlake.tokenizers.sizes import TokenSizes

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The tokens of a batch of texts.

    Attributes:
        text: the batch.
        offsets: int64[n + 1] from 0, row i has ids ``offsets[i]:offsets[i + 1]``.
        ids: int32[total].
        edges: int64[total + 1]: token j of row i, unless that is odd, holds bytes ``edges[j]:edges[j + 1]`` of
            its text, counted from ``edges[offsets[i]]``.
        odd: int64[k], ascending: the rows whose places are the reference's.
        start, stop: int64[tokens of odd rows]: the bytes that they hold.
    """

    text: pa.LargeStringArray
    offsets: Int64
    ids: Int32
    edges: Int64
    odd: Int64
    start: Int64
    stop: Int64

    def row(self, row: int) -> Placed:
        """Return a row that is not odd: its ids, and where each begins and ends (bytes)."""
        first, last = int(self.offsets[row]), int(self.offsets[row + 1])
        edges = self.edges[first : last + 1] - self.edges[first]
        start, stop = whole_characters(self.text, np.full(last - first, row, np.int64), edges[:-1], edges[1:])
        return self.ids[first:last], start, stop

    def places(self) -> tuple[Int64, Int64]:
        """Return where each token begins and ends: int64[total], int64[total], bytes of its own text."""
        counts = np.diff(self.offsets)
        base = np.repeat(self.edges[self.offsets[:-1]], counts)
        start, stop = self.edges[:-1] - base, self.edges[1:] - base
        if len(self.odd):
            inside = np.repeat(self._is_odd(), counts)
            start[inside], stop[inside] = self.start, self.stop
        return whole_characters(self.text, np.repeat(np.arange(len(counts)), counts), start, stop)

    def touched(self, spans: Spans) -> Bools:
        """Return which tokens hold a byte of the stretches `spans` of the texts: bool[total]."""
        row = np.repeat(np.arange(len(spans)), np.diff(spans.offsets))
        first, last = whole_characters(self.text, row, spans.start, spans.stop)
        base = self.edges[self.offsets[row]]
        if not len(self.odd):
            return touched_in_order(self.edges[:-1], self.edges[1:], first + base, last + base)
        odd = self._is_odd()
        even = ~odd[row]
        mask = touched_in_order(self.edges[:-1], self.edges[1:], (first + base)[even], (last + base)[even])
        counts = np.diff(self.offsets)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[odd])])
        whole = Spans(spans.offsets, first, last).select(odd)
        sizes = np.diff(string_buffers(self.text)[0])[odd]
        mask[np.repeat(odd, counts)] = touched(self.start, self.stop, offsets, whole, sizes)
        return mask

    def _is_odd(self) -> Bools:
        odd = np.zeros(len(self.text), np.bool_)
        odd[self.odd] = True
        return odd


@final
class Locator:
    """Finds the places of tokens.

    Args:
        files: the tokenizer.
        reference: its reference engine.
        literal: special tokens in a text are plain text.
    """

    def __init__(self, files: TokenizerFiles, reference: Reference, *, literal: bool) -> None:
        self.reference = PlacingReference(reference, literal=literal)
        self.sizes = TokenSizes.of(files, literal=literal)

    def by_reference(self, text: pa.LargeStringArray) -> Located:
        """Encode and locate by the reference alone."""
        rows = self.reference.encode(cast("list[str]", text.to_pylist()))
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(ids) for ids, _, _ in rows], out=offsets[1:])
        ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _, _ in rows)])
        return self._with_odd(
            text, offsets, ids, np.zeros(len(ids) + 1, np.int64), np.arange(len(rows)), rows
        )

    def by_ids(self, text: pa.LargeStringArray, offsets: Int64, ids: Int32, guarded: Int64) -> Located:
        """Locate what an engine made of a batch, of whose rows `guarded` (ascending) are the reference's.

        Raises:
            EngineMismatchError: a row that the reference had to look at has other ids.
        """
        if self.sizes is None:
            edges, odd = np.zeros(len(ids) + 1, np.int64), np.arange(len(text))
        else:
            edges, odd = self.sizes.edges(text, offsets, ids)
            odd = np.union1d(odd, guarded) if len(guarded) else odd
        texts = cast("list[str]", text.take(pa.array(odd, pa.int64())).to_pylist()) if len(odd) else []
        rows = self.reference.encode(texts)
        for row, value, placed in zip(odd.tolist(), texts, rows, strict=True):
            require_equal(value, (placed[0],), (ids[offsets[row] : offsets[row + 1]],))
        return self._with_odd(text, offsets, ids, edges, odd, rows)

    def of_texts(
        self, encode: Callable[[pa.LargeStringArray], tuple[Int64, Int32]], texts: list[str]
    ) -> list[Placed]:
        """Encode by an engine and locate texts, as :meth:`by_ids` does; of odd ones by the reference."""
        text = pa.array(texts, pa.large_string())
        located = self.by_ids(text, *encode(text), np.empty(0, np.int64))
        start, stop = located.places()
        cuts = located.offsets[1:-1]
        return (
            list(zip(np.split(located.ids, cuts), np.split(start, cuts), np.split(stop, cuts), strict=True))
            if texts
            else []
        )

    @staticmethod
    def _with_odd(
        text: pa.LargeStringArray, offsets: Int64, ids: Int32, edges: Int64, odd: Int64, rows: list[Placed]
    ) -> Located:
        nothing = np.empty(0, np.int64)
        start = np.concatenate([nothing, *(start for _, start, _ in rows)])
        stop = np.concatenate([nothing, *(stop for _, _, stop in rows)])
        return Located(text=text, offsets=offsets, ids=ids, edges=edges, odd=odd, start=start, stop=stop)

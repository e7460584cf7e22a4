"""The tokens of a batch and their places, by the fast engine where its ids tell them, else by the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.ragged import offsets_of
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
from tokenlake.tokenizers.reference import BATCH_BYTES, Reference
from tokenlake.tokenizers.sampling import require_equal
from tokenlake.tokenizers.sizes import TokenSizes

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BLOCK: Final = 1 << 18  # tokens that are located at a time


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

    def places(self) -> tuple[Int64, Int64]:
        """Return where each token begins and ends: int64[total], int64[total], bytes of its own text."""
        counts = np.diff(self.offsets)
        starts = string_buffers(self.text)[0][:-1]
        base = np.repeat(starts, counts)
        shift: Any = starts[0] - self.edges[0] if len(starts) else 0
        if len(self.odd):
            shift = np.repeat(starts - self.edges[self.offsets[:-1]], counts)
        start, stop = self.edges[:-1] + shift, self.edges[1:] + shift
        if len(self.odd):
            inside = np.repeat(self._is_odd(), counts)
            start[inside], stop[inside] = self.start + base[inside], self.stop + base[inside]
        start, stop = whole_characters(self.text, start, stop)
        return start - base, stop - base

    def touched(self, spans: Spans) -> Bools:
        """Return which tokens hold a byte of the stretches `spans` of the texts: bool[total]."""
        row = np.repeat(np.arange(len(spans)), np.diff(spans.offsets))
        begin = string_buffers(self.text)[0][row]
        first, last = whole_characters(self.text, spans.start + begin, spans.stop + begin)
        shift = self.edges[self.offsets[row]] - begin
        if not len(self.odd):
            return touched_in_order(self.edges[:-1], self.edges[1:], first + shift, last + shift)
        odd = self._is_odd()
        even = ~odd[row]
        mask = touched_in_order(self.edges[:-1], self.edges[1:], (first + shift)[even], (last + shift)[even])
        counts = np.diff(self.offsets)
        whole = Spans(spans.offsets, first - begin, last - begin).select(odd)
        sizes = np.diff(string_buffers(self.text)[0])[odd]
        mask[np.repeat(odd, counts)] = touched(self.start, self.stop, offsets_of(counts[odd]), whole, sizes)
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

    def by_reference(self, text: pa.LargeStringArray) -> Iterator[Located]:
        """Encode and locate by the reference alone, :data:`BATCH_BYTES` of text at a time."""
        for first, last in _blocks(string_buffers(text)[0], BATCH_BYTES):
            part = text.slice(first, last - first)
            rows = self.reference.encode(cast("list[str]", part.to_pylist()))
            offsets = offsets_of([len(ids) for ids, _, _ in rows])
            ids = np.concatenate([ids for ids, _, _ in rows])
            yield _with_odd(part, offsets, ids, _unknown(ids), np.arange(len(rows)), rows)

    def by_ids(
        self, text: pa.LargeStringArray, offsets: Int64, ids: Int32, guarded: Int64
    ) -> Iterator[Located]:
        """Locate what an engine made of a batch, of whose rows `guarded` (ascending) are the reference's.

        Yields:
            The batch piece by piece: what is small is quick.

        Raises:
            EngineMismatchError: a row that the reference had to look at has other ids.
        """
        for first, last in _blocks(offsets, _BLOCK):
            begin, end = int(offsets[first]), int(offsets[last])
            held_back = guarded[(guarded >= first) & (guarded < last)] - first
            part = text.slice(first, last - first)
            yield self._block(part, offsets[first : last + 1] - begin, ids[begin:end], held_back)

    def of_texts(
        self, encode: Callable[[pa.LargeStringArray], tuple[Int64, Int32]], texts: list[str]
    ) -> list[Placed]:
        """Encode texts by an engine, and locate them as :meth:`by_ids`."""
        rows: list[Placed] = []
        for text in texts:
            array: pa.LargeStringArray = pa.array([text], pa.large_string())
            rows.append(self.of_row(array, *encode(array), 0))
        return rows

    def of_row(self, text: pa.LargeStringArray, offsets: Int64, ids: Int32, row: int) -> Placed:
        """Return the ids that an engine made of a row of a batch, and where each begins and ends (bytes)."""
        ids = ids[offsets[row] : offsets[row + 1]]
        located = self._block(text.slice(row, 1), np.array([0, len(ids)]), ids, np.empty(0, np.int64))
        return ids, *located.places()

    def _block(self, text: pa.LargeStringArray, offsets: Int64, ids: Int32, guarded: Int64) -> Located:
        if self.sizes is None:
            edges, odd = _unknown(ids), np.arange(len(text))
        else:
            edges, odd = self.sizes.edges(text, offsets, ids)
        if len(guarded):
            odd = np.union1d(odd, guarded)
        texts = cast("list[str]", text.take(pa.array(odd, pa.int64())).to_pylist()) if len(odd) else []
        rows = self.reference.encode(texts)
        for row, value, placed in zip(odd.tolist(), texts, rows, strict=True):
            require_equal(value, (placed[0],), (ids[offsets[row] : offsets[row + 1]],))
        return _with_odd(text, offsets, ids, edges, odd, rows)


def _blocks(offsets: Int64, size: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of n rows (first, last exclusive) of `size` items or less, at least one row each."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, int(offsets[first]) + size, "right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _unknown(ids: Int32) -> Int64:
    return np.zeros(len(ids) + 1, np.int64)


def _with_odd(
    text: pa.LargeStringArray, offsets: Int64, ids: Int32, edges: Int64, odd: Int64, rows: list[Placed]
) -> Located:
    nothing = np.empty(0, np.int64)
    start = np.concatenate([nothing, *(start for _, start, _ in rows)])
    stop = np.concatenate([nothing, *(stop for _, _, stop in rows)])
    return Located(text=text, offsets=offsets, ids=ids, edges=edges, odd=odd, start=start, stop=stop)

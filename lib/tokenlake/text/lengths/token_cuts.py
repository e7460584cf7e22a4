"""Where the ids of a document that is encoded already may be cut: between characters, or where its text decides.

For the latter only the part of a text that its budget can reach is encoded once more: a document may be a thousand
times longer. That part is exact if its ids are those of the document; where they are not, it is made longer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.ragged import Bools, Int32, Int64
from tokenlake.text.lengths.truncation import Bytes, Cut, Side, Strategy, character_at, truncate
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles


def cut_before(goes_on: Bools, least: Int64, at: Int64) -> Int64:
    """Return the last cut at or before each of `at` that goes through no character, but none before `least`.

    Args:
        goes_on: bool[total], which tokens begin in the midst of a character.
        least, at: int64[n], places among the tokens; ``least <= at <= total``.
    """
    found = at.copy()
    while True:
        wrong = np.flatnonzero((found > least) & (found < len(goes_on)))
        wrong = wrong[goes_on[found[wrong]]]
        if not len(wrong):
            return found
        found[wrong] -= 1


def cut_after(goes_on: Bools, at: Int64, most: Int64) -> Int64:
    """Return the first cut at or after each of `at` that goes through no character, but none after `most`."""
    found = at.copy()
    while True:
        wrong = np.flatnonzero(found < most)
        wrong = wrong[goes_on[found[wrong]]]
        if not len(wrong):
            return found
        found[wrong] += 1


def pieces(goes_on: Bools, begin: int, end: int, most: int) -> Int64:
    """Return where the pieces of the tokens ``begin:end`` begin, int64[k], none longer than `most` tokens.

    A piece ends before a character that does not fit any more; a character of more than `most` tokens is cut, for
    here nothing may be lost.
    """
    cuts = np.arange(begin, end, most)
    if not goes_on[cuts[1:]].any():
        return cuts
    found = [begin]
    while found[-1] + most < end:
        at = found[-1] + most
        while at > found[-1] and goes_on[at]:
            at -= 1
        found.append(at if at > found[-1] else found[-1] + most)
    return np.array(found, np.int64)


CharactersBools = Bools

#: How byte-level BPE spells the bytes 0x80 to 0xBF, which continue a character of UTF-8: those that Latin-1 prints as
#: themselves, and the others by the letters from U+0122 on, in order.
_CONTINUE: Final = frozenset(
    [*map(chr, range(0xA1, 0xAD)), *map(chr, range(0xAE, 0xC0)), *map(chr, range(0x122, 0x144))]
)
_BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(0x80, 0xC0))


def continuing_tokens(files: TokenizerFiles) -> CharactersBools:
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


PlacedInt64 = Int64

#: Beyond what the budget should take, by the document's own bytes per token.
_SPARE: Final = 1.25
_LEAST_BYTES: Final = 512
_GROWTH: Final = 4


def cut_texts(
    encoder: Encoder,
    text: pa.LargeStringArray,
    ids: Int32,
    offsets: PlacedInt64,
    budgets: PlacedInt64,
    strategy: Strategy,
    side: Side,
) -> tuple[PlacedInt64, PlacedInt64]:
    """Return which tokens of n documents are kept: ``first:last`` of each, int64[n] twice.

    Args:
        encoder: what made the ids.
        text: large_string[n].
        ids, offsets: int32[total], int64[n + 1]: the ids of the texts; each has more than its budget.
        budgets: int64[n].
        strategy, side: as for :func:`tokenlake.text.lengths.truncation.truncate`.
    """
    counts = np.diff(offsets)
    first, last = np.zeros(len(text), np.int64), np.zeros(len(text), np.int64)
    rows = range(len(text))
    spare = _SPARE
    while rows:
        parts = [_DecidingPart(text, row, int(counts[row]), int(budgets[row]), side, spare) for row in rows]
        encoded, start, stop = encoder.encode_places(
            pa.array([part.text for part in parts], pa.large_string())
        )
        again: list[int] = []
        for at, (row, part) in enumerate(zip(rows, parts, strict=True)):
            own = slice(int(encoded.offsets[at]), int(encoded.offsets[at + 1]))
            if not part.is_exact(encoded.ids[own], ids[offsets[row] : offsets[row + 1]]):
                again.append(row)
                continue
            cut = part.cut(start[own], stop[own], strategy)
            # Tokens are counted from the side that is kept.
            skipped = 0 if side == "right" else int(counts[row]) - (own.stop - own.start)
            first[row], last[row] = cut.first + skipped, cut.last + skipped
        rows, spare = again, spare * _GROWTH
    return first, last


class _DecidingPart:
    """The part of a text that decides where it is cut: with more tokens than the budget, at the side that is kept."""

    def __init__(
        self, text: pa.LargeStringArray, row: int, count: int, budget: int, side: Side, spare: float
    ) -> None:
        buffer: Any = text[row].as_buffer()
        self._data: Bytes = np.frombuffer(buffer, np.uint8)
        self._budget = budget
        self._side: Side = side
        self._needed = min(budget + 1, count)
        whole = len(self._data)
        size = int(self._needed * (whole / count) * spare) + _LEAST_BYTES
        begin, end = (0, min(size, whole)) if side == "right" else (max(0, whole - size), whole)
        self._begin, end = character_at(self._data, begin), character_at(self._data, end)
        self._is_whole = (self._begin, end) == (0, whole)
        self.text = self._data[self._begin : end].tobytes().decode()

    def is_exact(self, ids: Int32, wanted: Int32) -> bool:
        """Whether the tokens that count are those of the document."""
        if self._is_whole:
            return True
        if self._side == "right":
            return np.array_equal(ids[: self._needed], wanted[: self._needed])
        return np.array_equal(ids[-self._needed :], wanted[-self._needed :])

    def cut(self, start: PlacedInt64, stop: PlacedInt64, strategy: Strategy) -> Cut:
        """Cut by the places of the part's tokens, bytes of the part."""
        return truncate(
            self._data.data, start + self._begin, stop + self._begin, self._budget, strategy, self._side
        )

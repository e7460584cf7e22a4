"""Choosing where a text is cut so that it fits into a number of tokens.

A text is encoded whole, and its tokens are cut: what is left is a prefix of its ids (a suffix, where the left side is
cut away). Encoding the shortened text again would give other ids near the cut, of which there might be more than the
budget, and every strategy would be a search; a trainer would see tokens at the end of documents that this text never
has there.

A cut between two tokens is *clean* if no character lies on both sides of it: a character of several bytes may be
several tokens. Of the clean cuts

- ``simple`` takes the longest that fits;
- ``word`` the longest that fits and lies between words (:mod:`tokenlake.lengths.words`), else as simple;
- ``sentence`` the longest that fits and lies between sentences (:mod:`tokenlake.lengths.sentences`), else as word;
- ``smart`` as sentence where that keeps at least :data:`SMART_SHARE` of the budget, else as word where that does,
  else as simple: it never gives up more than a fifth of the budget for a nicer end;
- ``none`` cuts nothing.

Words and sentences are never cut to nothing: at least one character must be left. With the side ``left`` the
beginning is cut away: the same cuts, counted from the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import ConfigError
from tokenlake.lengths.sentences import sentence_breaks
from tokenlake.lengths.words import is_word_boundary

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

Strategy = Literal["none", "simple", "word", "sentence", "smart"]
Side = Literal["left", "right"]

STRATEGIES: Final[tuple[Strategy, ...]] = ("none", "simple", "word", "sentence", "smart")
SIDES: Final[tuple[Side, ...]] = ("left", "right")

SMART_SHARE: Final = 0.8
"""Of the budget that a cut between sentences, or between words, must keep to be taken by ``smart``."""

#: Bytes of text looked at beyond the budget: what follows a full stop decides whether it ends a sentence.
_MARGIN: Final = 256


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept of a text.

    Attributes:
        first, last: the tokens ``first:last`` are kept.
        start, stop: the bytes ``start:stop`` of the text are kept.
        by: the rule that chose the cut; ``none``: nothing was cut.
    """

    first: int
    last: int
    start: int
    stop: int
    by: Strategy

    def __len__(self) -> int:
        return self.last - self.first


def truncate(
    text: str | bytes | memoryview,
    start: Int64,
    stop: Int64,
    budget: int,
    strategy: Strategy = "smart",
    side: Side = "right",
) -> Cut:
    """Choose what is kept of a text so that it has at most `budget` tokens.

    Args:
        text: the text, or its UTF-8 bytes.
        start, stop: int64[n], the bytes of the text that each of its tokens holds; tokens of one character may share
            its bytes, and one that the tokenizer made up may hold none.
        budget: most tokens to keep, special tokens not counted; less than 1 keeps nothing.
        side: the side from which tokens are taken away.

    Raises:
        ConfigError: an unknown strategy or side.
    """
    require("strategy", strategy, STRATEGIES)
    require("side", side, SIDES)
    data = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)
    count = len(start)
    if strategy == "none" or count <= budget:
        return Cut(0, count, 0, len(data), "none")
    if budget < 1:
        return (
            Cut(0, 0, 0, 0, "simple")
            if side == "right"
            else Cut(count, count, len(data), len(data), "simple")
        )
    window = _Window(data, start, stop, budget, side)
    at, by = _choose(window, budget, strategy)
    if side == "right":
        return Cut(0, at, 0, window.low(at), by)
    return Cut(at, count, window.high(at), len(data), by)


def require(what: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise a ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{what} is {value!r}, expected one of {', '.join(map(repr, allowed))}")


def _choose(window: _Window, budget: int, strategy: Strategy) -> tuple[int, Strategy]:
    least = SMART_SHARE * budget if strategy == "smart" else 1
    if strategy in ("sentence", "smart"):
        at = window.between_sentences()
        if at is not None and window.kept(at) >= least:
            return at, "sentence"
    if strategy != "simple":
        at = window.between_words(least)
        if at is not None:
            return at, "word"
    return int(window.clean()[0]), "simple"


@final
class _Window:
    """The cuts of a text that fit into the budget, longest first, and the part of the text that decides among them.

    A cut ``k`` lies before token k. The bytes before it end at ``low(k)``, those after it begin at ``high(k)``; where
    the tokenizer drops blanks the two differ.
    """

    def __init__(self, data: Bytes, start: Int64, stop: Int64, budget: int, side: Side) -> None:
        count = len(start)
        right = side == "right"
        # The cuts k of the window, ascending, and the tokens on both sides of them.
        self._cuts = np.arange(0, budget + 1) if right else np.arange(count - budget, count + 1)
        self._right, self._count = right, count
        self._size = len(data)
        self._low, self._high = _edges(start, stop, self._cuts, self._size)
        self._data = data
        self._inside = _inside(data, self._low, self._high)

    def low(self, at: int) -> int:
        return int(self._low[at - int(self._cuts[0])])

    def high(self, at: int) -> int:
        return int(self._high[at - int(self._cuts[0])])

    def kept(self, at: int) -> int:
        """Tokens kept by the cut."""
        return at if self._right else self._count - at

    def clean(self) -> npt.NDArray[np.int64]:
        """Every clean cut, the longest first; there is always the one that keeps nothing."""
        cuts = self._cuts[~self._inside]
        return cuts[::-1] if self._right else cuts

    def _real(self) -> npt.NDArray[np.int64]:
        """The clean cuts that leave a character and take one away, the longest first."""
        fits = ~self._inside & (self._low > 0) & (self._high < self._size)
        cuts = self._cuts[fits]
        return cuts[::-1] if self._right else cuts

    def between_words(self, least: float) -> int | None:
        """The longest cut between words that keeps at least so many tokens."""
        text, byte = self._text
        for cut in self._real().tolist():
            if self.kept(cut) < least:
                return None
            low, high = self._characters(np.array([self.low(cut), self.high(cut)]), byte).tolist()
            if any(is_word_boundary(text, at) for at in range(low, high + 1)):
                return cut
        return None

    def between_sentences(self) -> int | None:
        """The longest cut between sentences."""
        text, byte = self._text
        ends, begins = sentence_breaks(text)
        cuts = self._real()
        if not len(ends) or not len(cuts):
            return None
        at = cuts - self._cuts[0]
        low, high = self._characters(self._low[at], byte), self._characters(self._high[at], byte)
        # Breaks ascend: the last that ends at or before the cut reaches furthest.
        last = np.searchsorted(ends, high, side="right") - 1
        fits = np.flatnonzero((last >= 0) & (begins[last] >= low))
        return int(cuts[fits[0]]) if len(fits) else None

    @cached_property
    def _text(self) -> tuple[str, int]:
        """The part of the text that decides, and the byte at which it begins."""
        begin, end = 0, len(self._data)
        if self._right:
            end = character_at(self._data, int(self._high[-1]) + _MARGIN)
        else:
            begin = character_at(self._data, int(self._low[0]) - _MARGIN)
        return self._data[begin:end].tobytes().decode("utf-8", "replace"), begin

    @cached_property
    def _before(self) -> Int64:
        """int64[bytes + 1]: the characters of :attr:`_text` that begin before each of its bytes."""
        text, begin = self._text
        part = self._data[begin : begin + len(text.encode())]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum((part & 0xC0) != 0x80)])

    def _characters(self, bytes_: Int64, begin: int) -> Int64:
        """Turn places in the text's bytes into places in the characters of :attr:`_text`."""
        return bytes_ - begin if self._text[0].isascii() else self._before[bytes_ - begin]


def _edges(start: Int64, stop: Int64, cuts: Int64, size: int) -> tuple[Int64, Int64]:
    """Return where the bytes before each cut end, and where those after it begin: int64[len(cuts)] each."""
    first, last = int(cuts[0]), int(cuts[-1])
    before = np.concatenate([[stop[:first].max(initial=0)], stop[first:last]])
    after = np.concatenate([start[first:last], [start[last:].min(initial=size)]])
    return np.maximum.accumulate(before), np.minimum.accumulate(after[::-1])[::-1]


def _inside(data: Bytes, low: Int64, high: Int64) -> Bools:
    """Return which cuts go through a character: tokens on both sides hold it, or a byte in the midst of it."""
    there = high < len(data)
    goes_on = np.zeros(len(low), np.bool_)
    goes_on[there] = (data[high[there]] & 0xC0) == 0x80
    return (low > high) | goes_on


def character_at(data: Bytes, at: int) -> int:
    """Return the place at or before byte `at` where a character begins, inside of the text."""
    at = min(max(at, 0), len(data))
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at

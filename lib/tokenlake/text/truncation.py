"""Truncation: where a text is cut so that it fits into a number of tokens.

A text is encoded whole, and its tokens are cut: what is left is a prefix of its ids (a suffix, where the left side is
cut away). Encoding the shortened text again would give other ids near the cut, of which there might be more than the
budget, and every strategy would be a search; a trainer would see tokens at the end of documents that this text never
has there.

A cut between two tokens is *clean* if no character lies on both sides of it: a character of several bytes may be
several tokens. Of the clean cuts

- ``simple`` takes the longest that fits;
- ``word`` the longest that fits and lies between words, else as simple;
- ``sentence`` the longest that fits and lies between sentences, else as word;
- ``smart`` as sentence where that keeps at least :data:`SMART_SHARE` of the budget, else as word where that does,
  else as simple: it never gives up more than a fifth of the budget for a nicer end;
- ``none`` cuts nothing.

Words and sentences are never cut to nothing: at least one character must be left. With the side ``left`` the
beginning is cut away: the same cuts, counted from the end.

A sentence ends with ``.``, ``!``, ``?`` or ``…``, with quotes and brackets that close after it, before a blank or
the end of the text; with the full stop of a script that needs no blank (``。``, ``！``, ``।``, ``؟`` ...); or
before an empty line. A full stop ends none after an abbreviation or an initial (``Dr. J. Smith``), nor where the text
goes on in lower case.

A word is a run of letters, digits, marks and underscores, with an apostrophe, hyphen, full stop, comma or colon
between two of them (``don't``, ``well-known``, ``3.14``, ``12:30``). In scripts that are written without blanks
every letter is a word of its own: there is no telling words apart without a dictionary. What stands between words
may be cut anywhere, but never between a character and the marks that belong to it, nor inside an emoji sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, final, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import Bools, Int32, Int64
from tokenlake.config.values import require_one_of
from tokenlake.text.boundaries import is_word_boundary, sentence_breaks
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles

Bytes = npt.NDArray[np.uint8]

Strategy = Literal["none", "simple", "word", "sentence", "smart"]
Side = Literal["left", "right"]

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
SIDES: Final[tuple[Side, ...]] = get_args(Side)

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
    require_one_of("strategy", strategy, STRATEGIES)
    require_one_of("side", side, SIDES)
    data = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)
    count, right = len(start), side == "right"
    if strategy == "none" or count <= budget:
        return Cut(0, count, 0, len(data), "none")
    if budget < 1:
        token, place = (0, 0) if right else (count, len(data))
        return Cut(token, token, place, place, "simple")
    cuts = np.arange(0, budget + 1) if right else np.arange(count - budget, count + 1)
    low, high = _edges(start, stop, cuts, len(data))
    reach = int(high[-1]) + _MARGIN if right else int(low[0]) - _MARGIN
    # Every clean cut, the longest first; there is always the one that keeps nothing.
    clean = np.flatnonzero(~_inside(data, low, high))[:: -1 if right else 1]
    cuts, low, high = cuts[clean], low[clean], high[clean]
    kept = cuts if right else count - cuts
    at, by = _choose(_Window(data, reach, right), low, high, kept, strategy, SMART_SHARE * budget)
    if right:
        return Cut(0, int(cuts[at]), 0, int(low[at]), by)
    return Cut(int(cuts[at]), count, int(high[at]), len(data), by)


def _choose(
    window: _Window, low: Int64, high: Int64, kept: Int64, strategy: Strategy, share: float
) -> tuple[int, Strategy]:
    """Return which of the clean cuts, the longest first, is taken, and by which rule.

    Args:
        low, high: where the bytes before each cut end, and where those after it begin.
        kept: tokens that each keeps.
        share: tokens that ``smart`` keeps at least for a nicer end.
    """
    least = share if strategy == "smart" else 1
    # Those that leave a character and take one away.
    real = np.flatnonzero((low > 0) & (high < len(window.data)))
    if strategy == "simple" or not len(real):
        return 0, "simple"
    first, last = window.characters(low), window.characters(high)
    if strategy != "word":
        at = _between_sentences(window.text, first[real], last[real])
        if at is not None and kept[real[at]] >= least:
            return int(real[at]), "sentence"
    for at in real[kept[real] >= least].tolist():
        if any(is_word_boundary(window.text, place) for place in range(int(first[at]), int(last[at]) + 1)):
            return at, "word"
    return 0, "simple"


def _between_sentences(text: str, first: Int64, last: Int64) -> int | None:
    """Return the first of the cuts ``first`` to ``last`` (characters) that lies between sentences."""
    ends, begins = sentence_breaks(text)
    if not len(ends):
        return None
    # Breaks ascend: the last that ends at or before the cut reaches furthest.
    before = np.searchsorted(ends, last, side="right") - 1
    fits = np.flatnonzero((before >= 0) & (begins[before] >= first))
    return int(fits[0]) if len(fits) else None


@final
class _Window:
    """The part of a text that decides among cuts: up to the byte `reach`, or from it on."""

    def __init__(self, data: Bytes, reach: int, right: bool) -> None:
        self.data = data
        reach = character_at(data, reach)
        self._begin = 0 if right else reach
        self._part = data[:reach] if right else data[reach:]

    @cached_property
    def text(self) -> str:
        """The part as characters."""
        return self._part.tobytes().decode("utf-8", "replace")

    def characters(self, places: Int64) -> Int64:
        """Turn bytes of the data into characters of :attr:`text`."""
        if self.text.isascii():
            return places - self._begin
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum((self._part & 0xC0) != 0x80)])
        return before[np.clip(places - self._begin, 0, len(self._part))]


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


def whole_cut(goes_on: Bools, at: Int64, limit: Int64) -> Int64:
    """Return the first cut from each of `at` towards its `limit` that goes through no character, else the limit.

    Args:
        goes_on: bool[total], which tokens begin in the midst of a character.
        at, limit: int64[n], places among the tokens, 0 to total.
    """
    found, step = at.copy(), np.sign(limit - at)
    while True:
        wrong = np.flatnonzero((found != limit) & (found < len(goes_on)))
        wrong = wrong[goes_on[found[wrong]]]
        if not len(wrong):
            return found
        found[wrong] += step[wrong]


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
    byte_level = any(_has_byte_level(files.spec.get(stage)) for stage in ("pre_tokenizer", "decoder"))
    if not (byte_level or model.get("byte_fallback")):
        return found
    added = {token["content"] for token in files.added_tokens}
    for token in files.tokens:
        if token not in added and (token[:1] in _CONTINUE if byte_level else token in _BYTE_TOKENS):
            found[files.token_id(token)] = True
    return found


def _has_byte_level(stage: Any) -> bool:
    if isinstance(stage, dict):
        return stage.get("type") == "ByteLevel" or any(map(_has_byte_level, stage.values()))
    return isinstance(stage, list) and any(map(_has_byte_level, stage))


#: Bytes of a document that are encoded once more, beyond what its budget should take: a share of it, and so many.
_SPARE, _LEAST_BYTES, _GROWTH = 1.25, 512, 4


def cut_texts(
    encoder: Encoder,
    text: pa.LargeStringArray,
    ids: Int32,
    offsets: Int64,
    budgets: Int64,
    strategy: Strategy,
    side: Side,
) -> tuple[Int64, Int64]:
    """Return which tokens of n documents are kept: ``first:last`` of each, int64[n] twice.

    Only the part of a text that its budget can reach is encoded once more: a document may be a thousand times longer.
    That part is exact if its ids are those of the document; where they are not, it is made longer.

    Args:
        encoder: what made the ids.
        text: large_string[n].
        ids, offsets: int32[total], int64[n + 1]: the ids of the texts; each has more than its budget.
        budgets: int64[n].
        strategy, side: as for :func:`truncate`.
    """
    counts, right = np.diff(offsets), side == "right"
    first, last = np.zeros(len(text), np.int64), np.zeros(len(text), np.int64)
    rows, spare = list(range(len(text))), _SPARE
    while rows:
        needed = {row: min(int(budgets[row]) + 1, int(counts[row])) for row in rows}
        scalars: Any = text
        data: dict[int, Bytes] = {row: np.frombuffer(scalars[row].as_buffer(), np.uint8) for row in rows}
        reach: dict[int, tuple[int, int]] = {}
        for row, text_bytes in data.items():  # a share of the bytes, and some more, at the side that is kept
            whole = len(text_bytes)
            size = min(int(whole * (needed[row] / int(counts[row]) * spare)) + _LEAST_BYTES, whole)
            ends = (0, size) if right else (whole - size, whole)
            reach[row] = character_at(text_bytes, ends[0]), character_at(text_bytes, ends[1])
        parts = [data[row][slice(*reach[row])].tobytes().decode() for row in rows]
        encoded, start, stop = encoder.encode_places(pa.array(parts, pa.large_string()))
        again: list[int] = []
        for row, begin, end in zip(
            rows, encoded.offsets[:-1].tolist(), encoded.offsets[1:].tolist(), strict=True
        ):
            own, whole = encoded.ids[begin:end], ids[offsets[row] : offsets[row + 1]]
            decide = slice(None, needed[row]) if right else slice(-needed[row], None)
            if reach[row] != (0, len(data[row])) and not np.array_equal(own[decide], whole[decide]):
                again.append(row)
                continue
            places = start[begin:end] + reach[row][0], stop[begin:end] + reach[row][0]
            cut = truncate(data[row].data, *places, int(budgets[row]), strategy, side)
            # Tokens are counted from the side that is kept.
            skipped = 0 if right else len(whole) - len(own)
            first[row], last[row] = cut.first + skipped, cut.last + skipped
        rows, spare = again, spare * _GROWTH
    return first, last

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
from typing import Any, Final, Literal, NamedTuple, final, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64
from tokenlake.base.checks import require_one_of
from tokenlake.etl.text.boundaries import is_word_boundary, sentence_breaks
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles

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
    count = len(start)
    right = side == "right"
    if strategy == "none" or count <= budget:
        return Cut(0, count, 0, len(data), "none")
    if budget < 1:
        if right:
            return Cut(0, 0, 0, 0, "simple")
        return Cut(count, count, len(data), len(data), "simple")
    # 1. All cuts that fit the budget. Cut k is between token k - 1 and token k.
    cuts = np.arange(0, budget + 1) if right else np.arange(count - budget, count + 1)
    low, high = _edges(start, stop, cuts, len(data))
    reach = int(high[-1]) + _MARGIN if right else int(low[0]) - _MARGIN
    # 2. The clean ones, the longest first. The cut that keeps nothing is always among them.
    clean = np.flatnonzero(~_inside(data, low, high))[:: -1 if right else 1]
    cuts = cuts[clean]
    low = low[clean]
    high = high[clean]
    # 3. The one that the strategy chooses.
    kept = cuts if right else count - cuts
    chosen, by = _choose(_Window(data, reach, right), low, high, kept, strategy, SMART_SHARE * budget)
    cut = int(cuts[chosen])
    if right:
        return Cut(0, cut, 0, int(low[chosen]), by)
    return Cut(cut, count, int(high[chosen]), len(data), by)


def _choose(
    window: _Window, low: Int64, high: Int64, kept: Int64, strategy: Strategy, share: float
) -> tuple[int, Strategy]:
    """Return which of the clean cuts, the longest first, is taken, and by which rule.

    Args:
        low, high: Byte offsets at which the tokens before each cut end, and those after it begin.
        kept: Number of tokens that each cut keeps.
        share: Least number of tokens that ``smart`` keeps for a nicer end.
    """
    least = share if strategy == "smart" else 1
    # Cuts that leave a character and take one away.
    real = np.flatnonzero((low > 0) & (high < len(window.data)))
    if strategy == "simple" or not len(real):
        return 0, "simple"
    first_character = window.characters(low)
    last_character = window.characters(high)
    if strategy != "word":
        number = _between_sentences(window.text, first_character[real], last_character[real])
        if number is not None and kept[real[number]] >= least:
            return int(real[number]), "sentence"
    for cut in real[kept[real] >= least].tolist():
        for character in range(int(first_character[cut]), int(last_character[cut]) + 1):
            if is_word_boundary(window.text, character):
                return cut, "word"
    return 0, "simple"


def _between_sentences(text: str, first: Int64, last: Int64) -> int | None:
    """Return the index of the first cut between sentences; cut i lies between characters first[i] and last[i]."""
    ends, begins = sentence_breaks(text)
    if not len(ends):
        return None
    # Breaks ascend: of those whose sentence ends at or before the cut, the last one reaches furthest.
    last_break = np.searchsorted(ends, last, side="right") - 1
    fits = np.flatnonzero((last_break >= 0) & (begins[last_break] >= first))
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

    def characters(self, offsets: Int64) -> Int64:
        """Return the index in :attr:`text` of the character at each byte offset of the data."""
        if self.text.isascii():
            return offsets - self._begin
        begins_character = (self._part & 0xC0) != 0x80
        characters_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(begins_character)])
        return characters_before[np.clip(offsets - self._begin, 0, len(self._part))]


def _edges(start: Int64, stop: Int64, cuts: Int64, size: int) -> tuple[Int64, Int64]:
    """Return the byte offsets at which the tokens before each cut end, and those after it begin: int64[len(cuts)] each.

    Tokens may share bytes. A cut's end is therefore the largest `stop` of all tokens before it, and its begin the
    smallest `start` of all tokens after it.
    """
    first = int(cuts[0])
    last = int(cuts[-1])
    stops = np.concatenate([[stop[:first].max(initial=0)], stop[first:last]])
    starts = np.concatenate([start[first:last], [start[last:].min(initial=size)]])
    return np.maximum.accumulate(stops), np.minimum.accumulate(starts[::-1])[::-1]


def _inside(data: Bytes, low: Int64, high: Int64) -> Bools:
    """Return which cuts go through a character: tokens on both sides hold it, or its bytes are on both sides."""
    in_text = high < len(data)
    continues_character = np.zeros(len(low), np.bool_)
    continues_character[in_text] = (data[high[in_text]] & 0xC0) == 0x80
    return (low > high) | continues_character


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
    cuts = at.copy()
    step = np.sign(limit - at)
    while True:
        movable = np.flatnonzero((cuts != limit) & (cuts < len(goes_on)))
        inside = movable[goes_on[cuts[movable]]]
        if not len(inside):
            return cuts
        cuts[inside] += step[inside]


def pieces(goes_on: Bools, begin: int, end: int, most: int) -> Int64:
    """Return where the pieces of the tokens ``begin:end`` begin, int64[k], none longer than `most` tokens.

    A piece ends before a character that does not fit any more; a character of more than `most` tokens is cut, for
    here nothing may be lost.
    """
    cuts = np.arange(begin, end, most)
    if not goes_on[cuts[1:]].any():
        return cuts
    begins = [begin]
    while begins[-1] + most < end:
        cut = begins[-1] + most
        while cut > begins[-1] and goes_on[cut]:
            cut -= 1
        if cut == begins[-1]:  # one character fills the whole part
            cut += most
        begins.append(cut)
    return np.array(begins, np.int64)


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
_SPARE: Final = 1.25
_LEAST_BYTES: Final = 512
_GROWTH: Final = 4


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
    counts = np.diff(offsets)
    right = side == "right"
    first = np.zeros(len(text), np.int64)
    last = np.zeros(len(text), np.int64)
    scalars: Any = text
    pending = list(range(len(text)))
    spare = _SPARE
    while pending:
        # 1. The part of each text to encode: a share of its bytes, and some more, at the side that is kept.
        parts: list[_TextPart] = []
        for row in pending:
            data = np.frombuffer(scalars[row].as_buffer(), np.uint8)
            needed = min(int(budgets[row]) + 1, int(counts[row]))
            size = int(len(data) * (needed / int(counts[row]) * spare)) + _LEAST_BYTES
            size = min(size, len(data))
            begin = 0 if right else len(data) - size
            parts.append(
                _TextPart(row, data, character_at(data, begin), character_at(data, begin + size), needed)
            )
        texts = [part.data[part.begin : part.end].tobytes().decode() for part in parts]
        encoded, start, stop = encoder.encode_places(pa.array(texts, pa.large_string()))
        # 2. A part is exact if the ids that decide are those of the document.
        pending = []
        for number, part in enumerate(parts):
            row = part.row
            tokens = slice(int(encoded.offsets[number]), int(encoded.offsets[number + 1]))
            part_ids = encoded.ids[tokens]
            document_ids = ids[offsets[row] : offsets[row + 1]]
            deciding = slice(None, part.needed) if right else slice(-part.needed, None)
            is_whole = part.begin == 0 and part.end == len(part.data)
            if not is_whole and not np.array_equal(part_ids[deciding], document_ids[deciding]):
                pending.append(row)
                continue
            # 3. Cut. Tokens are counted from the side that is kept.
            cut = truncate(
                part.data.data,
                start[tokens] + part.begin,
                stop[tokens] + part.begin,
                int(budgets[row]),
                strategy,
                side,
            )
            skipped = 0 if right else len(document_ids) - len(part_ids)
            first[row] = cut.first + skipped
            last[row] = cut.last + skipped
        spare *= _GROWTH
    return first, last


class _TextPart(NamedTuple):
    """A part of a document's text that is encoded once more.

    Attributes:
        row: Index of the document.
        data: UTF-8 bytes of its whole text.
        begin, end: Byte offsets of the part.
        needed: Number of tokens, from the side that is kept, that decide where the document is cut.
    """

    row: int
    data: Bytes
    begin: int
    end: int
    needed: int

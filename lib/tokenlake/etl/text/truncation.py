"""Truncation: where a text is cut so that it fits into a number of tokens.

A text is encoded whole, and its tokens are cut: the result is a prefix of its ids (a
suffix, where the left side is cut away). Encoding the shortened text again would give
other ids near the cut, maybe more than the budget, so that every strategy would be a
search; and a trainer would see tokens at the end of documents that the text does not
have there. In a build the number of tokens comes from
:mod:`tokenlake.etl.unit.length_policy`.

A cut between two tokens is *clean* if no character lies on both sides of it: a
character of several bytes may be several tokens. Of the clean cuts

- ``simple`` takes the longest that fits;
- ``word`` the longest that fits and lies between words, else as simple;
- ``sentence`` the longest that fits and lies between sentences, else as word;
- ``smart`` as sentence where that keeps at least :data:`SMART_SHARE` of the budget,
  else as word where that does, else as simple: it never gives up more than a fifth of
  the budget for a nicer end;
- ``none`` cuts nothing.

Words and sentences are never cut to nothing: at least one character must be left. With
the side ``left`` the beginning is cut away: the same cuts, counted from the end.

A sentence ends with ``.``, ``!``, ``?`` or ``…``, with quotes and brackets that close
after it, before a blank or the end of the text; with the full stop of a script that
needs no blank (``。``, ``！``, ``।``, ``؟`` ...); or before an empty line. A full stop
ends no sentence after an abbreviation or an initial (``Dr. J. Smith``), nor before a
word in lower case.

A word is a run of letters, digits, marks and underscores, with an apostrophe, hyphen, full stop, comma or colon
between two of them (``don't``, ``well-known``, ``3.14``, ``12:30``). In scripts that are written without blanks
every letter is a word of its own, because only a dictionary could find the words. A cut may lie anywhere between two
words, but never between a character and the marks that belong to it, nor inside an emoji sequence. For example, 34
tokens, one for each character, of ``Dr. Smith saw 3.14 cats. Then he left! Why not?``::

    simple    Dr. Smith saw 3.14 cats. Then he l
    word      Dr. Smith saw 3.14 cats. Then he_
    sentence  Dr. Smith saw 3.14 cats._
    smart     as word: the sentence would keep less than 80% of the budget
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
"""Of the budget that a cut between sentences, or between words, must keep to be
taken by ``smart``.
"""

_MARGIN: Final = 256
"""Bytes of text that are read beyond the budget: they decide whether a full stop
ends a sentence.
"""


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a text that is kept.

    Attributes:
        first: Index of the first token that is kept.
        last: Index behind the last token that is kept.
        start: Byte offset in the text at which the kept part begins.
        stop: Byte offset at which it ends.
        by: Rule that chose the cut; ``none``: nothing was cut.
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
    """Return the part of a text that is kept of at most `budget` tokens.

    Args:
        text: Text, or its UTF-8 bytes.
        start: int64[n]: byte offset at which each token begins. Tokens of one character
            may share its bytes, and a token that the tokenizer added may hold none.
        stop: int64[n]: byte offset at which each token ends.
        budget: Maximum number of tokens, special tokens not counted; less than 1 keeps
            nothing.
        strategy: Rule that chooses the cut.
        side: Side from which tokens are cut away.

    Raises:
        ConfigError: The strategy or the side is unknown.
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
    # 2. The clean ones, the longest first. The cut that keeps nothing is always among
    #    them.
    clean = np.flatnonzero(~_inside(data, low, high))[:: -1 if right else 1]
    cuts = cuts[clean]
    low = low[clean]
    high = high[clean]
    # 3. The one that the strategy chooses.
    kept = cuts if right else count - cuts
    chosen, by = _choose(
        _Window(data, reach, right), low, high, kept, strategy, SMART_SHARE * budget
    )
    cut = int(cuts[chosen])
    if right:
        return Cut(0, cut, 0, int(low[chosen]), by)
    return Cut(cut, count, int(high[chosen]), len(data), by)


def _choose(
    window: _Window,
    low: Int64,
    high: Int64,
    kept: Int64,
    strategy: Strategy,
    share: float,
) -> tuple[int, Strategy]:
    """Return the index of the cut that is taken of the clean ones, the longest first,
    and the rule that chose it.

    Args:
        window: Part of the text that decides.
        low: Byte offsets at which the tokens before each cut end.
        high: Byte offsets at which the tokens after each cut begin.
        kept: Number of tokens that each cut keeps.
        strategy: Rule.
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
        number = _between_sentences(
            window.text, first_character[real], last_character[real]
        )
        if number is not None and kept[real[number]] >= least:
            return int(real[number]), "sentence"
    for cut in real[kept[real] >= least].tolist():
        for character in range(int(first_character[cut]), int(last_character[cut]) + 1):
            if is_word_boundary(window.text, character):
                return cut, "word"
    return 0, "simple"


def _between_sentences(text: str, first: Int64, last: Int64) -> int | None:
    """Return the index of the first cut between sentences; cut i lies between
    characters first[i] and last[i].
    """
    ends, begins = sentence_breaks(text)
    if not len(ends):
        return None
    # Breaks ascend: of those whose sentence ends at or before the cut, the last one
    # reaches furthest.
    last_break = np.searchsorted(ends, last, side="right") - 1
    fits = np.flatnonzero((last_break >= 0) & (begins[last_break] >= first))
    return int(fits[0]) if len(fits) else None


@final
class _Window:
    """The part of a text that decides among cuts.

    Args:
        data: UTF-8 bytes of the text.
        reach: Byte offset at which the part ends, or begins.
        right: True for the part up to `reach`, False for the part from it on.
    """

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
        """Return the index in :attr:`text` of the character at each byte offset of
        the data.
        """
        if self.text.isascii():
            return offsets - self._begin
        begins_character = (self._part & 0xC0) != 0x80
        characters_before = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(begins_character)]
        )
        return characters_before[np.clip(offsets - self._begin, 0, len(self._part))]


def _edges(start: Int64, stop: Int64, cuts: Int64, size: int) -> tuple[Int64, Int64]:
    """Return the byte offsets at which the tokens before each cut end, and those after
    it begin: int64[len(cuts)] each.

    Tokens may share bytes. A cut's end is therefore the largest `stop` of all tokens
    before it, and its begin the smallest `start` of all tokens after it.
    """
    first = int(cuts[0])
    last = int(cuts[-1])
    stops = np.concatenate([[stop[:first].max(initial=0)], stop[first:last]])
    starts = np.concatenate([start[first:last], [start[last:].min(initial=size)]])
    return np.maximum.accumulate(stops), np.minimum.accumulate(starts[::-1])[::-1]


def _inside(data: Bytes, low: Int64, high: Int64) -> Bools:
    """Return which cuts go through a character: tokens on both sides hold it, or its
    bytes are on both sides.
    """
    in_text = high < len(data)
    continues_character = np.zeros(len(low), np.bool_)
    continues_character[in_text] = (data[high[in_text]] & 0xC0) == 0x80
    return (low > high) | continues_character


def character_at(data: Bytes, at: int) -> int:
    """Return the byte offset at or before `at` at which a character begins, between
    0 and the size of the text.
    """
    at = min(max(at, 0), len(data))
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def whole_cut(goes_on: Bools, at: Int64, limit: Int64) -> Int64:
    """Return the first cut from each of `at` towards its `limit` that goes through no
    character; the limit if all do.

    Args:
        goes_on: bool[total]: True for tokens that begin inside a character.
        at: int64[n]: indices of tokens, 0 to total.
        limit: int64[n]: indices of tokens, 0 to total.
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
    """Return the indices at which the pieces of the tokens ``begin:end`` begin:
    int64[k].

    A piece ends before a character that does not fit any more. A character of more than
    `most` tokens is cut, because no token may be lost.

    Args:
        goes_on: bool[total]: True for tokens that begin inside a character.
        begin: Index of the first token.
        end: Index behind the last token.
        most: Maximum number of tokens of a piece.
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


# Byte-level BPE spells the bytes 0x80 to 0xBF, which continue a character of UTF-8, by
# these letters: printable ones of Latin-1 stand for themselves, and the others are the
# letters from U+0122 on, in order.
_CONTINUE: Final = frozenset(
    [
        *map(chr, range(0xA1, 0xAD)),
        *map(chr, range(0xAE, 0xC0)),
        *map(chr, range(0x122, 0x144)),
    ]
)
_BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(0x80, 0xC0))


def continuing_tokens(files: TokenizerFiles) -> Bools:
    """Return the ids whose first byte continues a character: bool[vocabulary].

    All are False if the tokens of a tokenizer are whole characters.
    """
    continues = np.zeros(files.vocab_size, np.bool_)
    is_byte_level = any(
        _has_byte_level(files.spec.get(stage)) for stage in ("pre_tokenizer", "decoder")
    )
    has_byte_tokens = bool(files.spec["model"].get("byte_fallback"))
    if not is_byte_level and not has_byte_tokens:
        return continues
    # Added tokens are plain text, whatever their letters.
    added_tokens = {token["content"] for token in files.added_tokens}
    for token in files.tokens:
        if token in added_tokens:
            continue
        is_continuing = (
            token[:1] in _CONTINUE if is_byte_level else token in _BYTE_TOKENS
        )
        if is_continuing:
            continues[files.token_id(token)] = True
    return continues


def _has_byte_level(stage: Any) -> bool:
    """Return whether a stage of a tokenizer, or one inside it, is ByteLevel."""
    if isinstance(stage, dict):
        return stage.get("type") == "ByteLevel" or any(
            map(_has_byte_level, stage.values())
        )
    return isinstance(stage, list) and any(map(_has_byte_level, stage))


# A document's budget should take a share of its bytes. The part that is encoded once
# more is longer by this factor, and by this number of bytes. Each further attempt
# multiplies the factor.
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
    """Return the tokens ``first:last`` of n documents that are kept: int64[n] twice.

    Only the part of a text that its budget can reach is encoded once more: a document
    may be a thousand times longer. That part is exact if its ids are those of the
    document; otherwise a longer part is encoded.

    Args:
        encoder: Encoder that made the ids.
        text: large_string[n]: texts.
        ids: int32[total]: ids of the texts; each has more than its budget.
        offsets: int64[n + 1]: index of the first id of each text.
        budgets: int64[n]: maximum number of tokens of each text.
        strategy: Rule that chooses a cut.
        side: Side from which tokens are cut away.
    """
    counts = np.diff(offsets)
    right = side == "right"
    first = np.zeros(len(text), np.int64)
    last = np.zeros(len(text), np.int64)
    scalars: Any = text
    pending = list(range(len(text)))
    spare = _SPARE
    while pending:
        # 1. The part of each text to encode: a share of its bytes, and some more, at
        #    the side that is kept.
        parts: list[_TextPart] = []
        for row in pending:
            data = np.frombuffer(scalars[row].as_buffer(), np.uint8)
            needed = min(int(budgets[row]) + 1, int(counts[row]))
            size = int(len(data) * (needed / int(counts[row]) * spare)) + _LEAST_BYTES
            size = min(size, len(data))
            begin = 0 if right else len(data) - size
            parts.append(
                _TextPart(
                    row,
                    data,
                    character_at(data, begin),
                    character_at(data, begin + size),
                    needed,
                )
            )
        texts = [part.data[part.begin : part.end].tobytes().decode() for part in parts]
        encoded, start, stop = encoder.encode_places(pa.array(texts, pa.large_string()))
        # 2. A part is exact if the ids that decide are those of the document.
        pending = []
        for number, part in enumerate(parts):
            row = part.row
            tokens = slice(
                int(encoded.offsets[number]), int(encoded.offsets[number + 1])
            )
            part_ids = encoded.ids[tokens]
            document_ids = ids[offsets[row] : offsets[row + 1]]
            deciding = slice(None, part.needed) if right else slice(-part.needed, None)
            is_whole = part.begin == 0 and part.end == len(part.data)
            if not is_whole and not np.array_equal(
                part_ids[deciding], document_ids[deciding]
            ):
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
        begin: Byte offset at which the part begins.
        end: Byte offset at which it ends.
        needed: Number of tokens, from the side that is kept, that decide where the
            document is cut.
    """

    row: int
    data: Bytes
    begin: int
    end: int
    needed: int

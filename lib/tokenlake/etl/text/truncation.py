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

A word is a run of letters, digits, marks and underscores, with an apostrophe, hyphen,
full stop, comma or colon between two of them (``don't``, ``well-known``, ``3.14``,
``12:30``). In scripts that are written without blanks every letter is a word of its
own, because only a dictionary could find the words. A cut may lie anywhere between two
words, but never between a character and the marks that belong to it, nor inside an
emoji sequence. For example, 34 tokens, one for each character, of ``Dr. Smith saw 3.14
cats. Then he left! Why not?``::

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
    utf8_text = text.encode() if isinstance(text, str) else text
    data = np.frombuffer(utf8_text, np.uint8)
    token_count = len(start)
    keeps_left = side == "right"
    # Nothing to cut, or nothing to keep.
    if strategy == "none" or token_count <= budget:
        return Cut(0, token_count, 0, len(data), "none")
    if budget < 1:
        if keeps_left:
            return Cut(0, 0, 0, 0, "simple")
        return Cut(token_count, token_count, len(data), len(data), "simple")
    # 1. All cuts that fit the budget. Cut k is between token k - 1 and token k.
    if keeps_left:
        cuts = np.arange(0, budget + 1)
    else:
        cuts = np.arange(token_count - budget, token_count + 1)
    end_before, begin_after = _edges(start, stop, cuts, len(data))
    if keeps_left:
        reach = int(begin_after[-1]) + _MARGIN
    else:
        reach = int(end_before[0]) - _MARGIN
    # 2. The clean ones, the longest first. The cut that keeps nothing is always among
    #    them.
    clean_cuts = np.flatnonzero(~_inside(data, end_before, begin_after))
    if keeps_left:
        clean_cuts = clean_cuts[::-1]
    cuts = cuts[clean_cuts]
    end_before = end_before[clean_cuts]
    begin_after = begin_after[clean_cuts]
    # 3. The one that the strategy chooses.
    remaining_tokens = cuts if keeps_left else token_count - cuts
    window = _Window(data, reach, keeps_left)
    chosen_cut, rule = _choose(
        window,
        end_before,
        begin_after,
        remaining_tokens,
        strategy,
        SMART_SHARE * budget,
    )
    cut = int(cuts[chosen_cut])
    if keeps_left:
        return Cut(0, cut, 0, int(end_before[chosen_cut]), rule)
    return Cut(cut, token_count, int(begin_after[chosen_cut]), len(data), rule)


def _choose(
    window: _Window,
    end_before: Int64,
    begin_after: Int64,
    remaining_tokens: Int64,
    strategy: Strategy,
    share: float,
) -> tuple[int, Strategy]:
    """Return the index of the cut that is taken, and the rule that chose it.

    Args:
        window: Part of the text that decides.
        end_before: Byte offsets at which the tokens before each clean cut end; the cut
            that keeps most comes first.
        begin_after: Byte offsets at which the tokens after each cut begin.
        remaining_tokens: Number of tokens that each cut keeps.
        strategy: Rule.
        share: Least number of tokens that ``smart`` keeps for a nicer end.
    """
    least_tokens = share if strategy == "smart" else 1
    # Only cuts that leave a character and take one away have a nicer end.
    takes_some = begin_after < len(window.data)
    inner_cuts = np.flatnonzero((end_before > 0) & takes_some)
    if strategy == "simple" or not len(inner_cuts):
        return 0, "simple"
    first_character = window.characters(end_before)
    last_character = window.characters(begin_after)
    # 1. Between sentences.
    if strategy != "word":
        position = _between_sentences(
            window.text, first_character[inner_cuts], last_character[inner_cuts]
        )
        if position is not None:
            sentence_cut = int(inner_cuts[position])
            if remaining_tokens[sentence_cut] >= least_tokens:
                return sentence_cut, "sentence"
    # 2. Between words: at any character between the tokens of both sides.
    long_enough = inner_cuts[remaining_tokens[inner_cuts] >= least_tokens]
    for cut in long_enough.tolist():
        for character in range(int(first_character[cut]), int(last_character[cut]) + 1):
            if is_word_boundary(window.text, character):
                return cut, "word"
    return 0, "simple"


def _between_sentences(text: str, first: Int64, last: Int64) -> int | None:
    """Return the index of the first cut between sentences; None where none is.

    Cut i lies between the characters ``first[i]`` and ``last[i]``.
    """
    ends, begins = sentence_breaks(text)
    if not len(ends):
        return None
    # Breaks ascend: of those whose sentence ends at or before the cut, the last one
    # reaches furthest.
    last_break = np.searchsorted(ends, last, side="right") - 1
    is_at_break = (last_break >= 0) & (begins[last_break] >= first)
    matching_cuts = np.flatnonzero(is_at_break)
    if not len(matching_cuts):
        return None
    return int(matching_cuts[0])


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
        """Return the index in :attr:`text` of the character at each byte offset."""
        # In ASCII, characters are bytes.
        if self.text.isascii():
            return offsets - self._begin
        # In UTF-8, a byte 0b10xxxxxx continues a character.
        begins_character = (self._part & 0xC0) != 0x80
        no_characters = np.zeros(1, np.int64)
        characters_before = np.concatenate([no_characters, np.cumsum(begins_character)])
        byte_indices = np.clip(offsets - self._begin, 0, len(self._part))
        return characters_before[byte_indices]


def _edges(start: Int64, stop: Int64, cuts: Int64, size: int) -> tuple[Int64, Int64]:
    """Return the byte offsets at which tokens before each cut end, and those after begin.

    Tokens may share bytes. A cut's end is therefore the largest `stop` of all tokens
    before it, and its begin the smallest `start` of all tokens after it. Both are
    int64[len(cuts)].
    """
    first_cut = int(cuts[0])
    last_cut = int(cuts[-1])
    stop_before = stop[:first_cut].max(initial=0)
    stops = np.concatenate([[stop_before], stop[first_cut:last_cut]])
    start_after = start[last_cut:].min(initial=size)
    starts = np.concatenate([start[first_cut:last_cut], [start_after]])
    # The largest so far, from the left; the smallest so far, from the right.
    end_before = np.maximum.accumulate(stops)
    begin_after = np.minimum.accumulate(starts[::-1])[::-1]
    return end_before, begin_after


def _inside(data: Bytes, end_before: Int64, begin_after: Int64) -> Bools:
    """Return which cuts go through a character.

    Tokens on both sides hold it, or its bytes are on both sides.
    """
    is_in_text = begin_after < len(data)
    first_bytes = data[begin_after[is_in_text]]
    continues_character = np.zeros(len(end_before), np.bool_)
    continues_character[is_in_text] = (first_bytes & 0xC0) == 0x80
    return (end_before > begin_after) | continues_character


def character_at(data: Bytes, at: int) -> int:
    """Return the byte offset at or before `at` at which a character begins.

    It is between 0 and the size of the text.
    """
    byte_offset = min(max(at, 0), len(data))
    while 0 < byte_offset < len(data) and data[byte_offset] & 0xC0 == 0x80:
        byte_offset -= 1
    return byte_offset


def whole_cut(goes_on: Bools, at: Int64, limit: Int64) -> Int64:
    """Return the first cut from each of `at` that goes through no character.

    Cuts are searched towards their `limit`, which is the cut if all others do.

    Args:
        goes_on: bool[total]: True for tokens that begin inside a character.
        at: int64[n]: indices of tokens, 0 to total.
        limit: int64[n]: indices of tokens, 0 to total.
    """
    # All cuts move by one token at a time: a character has few tokens.
    cuts = at.copy()
    direction = np.sign(limit - at)
    while True:
        movable_cuts = np.flatnonzero((cuts != limit) & (cuts < len(goes_on)))
        inside_cuts = movable_cuts[goes_on[cuts[movable_cuts]]]
        if not len(inside_cuts):
            return cuts
        cuts[inside_cuts] += direction[inside_cuts]


def pieces(goes_on: Bools, begin: int, end: int, most: int) -> Int64:
    """Return the indices at which the pieces of the tokens ``begin:end`` begin.

    A piece ends before a character that does not fit any more. A character of more than
    `most` tokens is cut, because no token may be lost.

    Args:
        goes_on: bool[total]: True for tokens that begin inside a character.
        begin: Index of the first token.
        end: Index behind the last token.
        most: Maximum number of tokens of a piece.

    Returns:
        int64[k].
    """
    # Most documents have no character across a border: all pieces are equally long.
    cuts = np.arange(begin, end, most)
    if not goes_on[cuts[1:]].any():
        return cuts
    begins = [begin]
    while begins[-1] + most < end:
        piece_end = begins[-1] + most
        while piece_end > begins[-1] and goes_on[piece_end]:
            piece_end -= 1
        if piece_end == begins[-1]:  # one character fills the whole piece
            piece_end += most
        begins.append(piece_end)
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
    spec = files.spec
    stages = [spec.get("pre_tokenizer"), spec.get("decoder")]
    is_byte_level = any(map(_has_byte_level, stages))
    has_byte_tokens = bool(spec["model"].get("byte_fallback"))
    if not is_byte_level and not has_byte_tokens:
        return continues
    # Added tokens are plain text, whatever their letters.
    added_tokens = {token["content"] for token in files.added_tokens}
    for token in files.tokens:
        if token in added_tokens:
            continue
        if is_byte_level:
            is_continuing = token[:1] in _CONTINUE
        else:
            is_continuing = token in _BYTE_TOKENS
        if is_continuing:
            continues[files.token_id(token)] = True
    return continues


def _has_byte_level(stage: Any) -> bool:
    """Return whether a stage of a tokenizer, or one inside it, is ByteLevel."""
    if isinstance(stage, dict):
        if stage.get("type") == "ByteLevel":
            return True
        return any(map(_has_byte_level, stage.values()))
    if isinstance(stage, list):
        return any(map(_has_byte_level, stage))
    return False


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
    keeps_left = side == "right"
    first = np.zeros(len(text), np.int64)
    last = np.zeros(len(text), np.int64)
    pending_rows = list(range(len(text)))
    factor = _SPARE
    while pending_rows:
        # 1. The part of each text to encode. One token more than the budget shows
        #    whether the cut goes through a character.
        parts: list[_TextPart] = []
        part_texts: list[str] = []
        for row in pending_rows:
            row_tokens = int(counts[row])
            needed_tokens = min(int(budgets[row]) + 1, row_tokens)
            share = needed_tokens / row_tokens * factor
            part = _text_part(text, row, share, needed_tokens, keeps_left)
            parts.append(part)
            part_texts.append(part.text())
        encoded, start, stop = encoder.encode_places(
            pa.array(part_texts, pa.large_string())
        )
        # 2. A part is exact if the ids that decide are those of the document.
        pending_rows = []
        for number, part in enumerate(parts):
            row = part.row
            first_token, end_token = encoded.offsets[number : number + 2].tolist()
            tokens = slice(first_token, end_token)
            part_ids = encoded.ids[tokens]
            document_ids = ids[offsets[row] : offsets[row + 1]]
            if not part.is_whole() and not _decide_alike(
                part_ids, document_ids, part.needed, keeps_left
            ):
                pending_rows.append(row)
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
            skipped_tokens = 0
            if not keeps_left:
                skipped_tokens = len(document_ids) - len(part_ids)
            first[row] = cut.first + skipped_tokens
            last[row] = cut.last + skipped_tokens
        factor *= _GROWTH
    return first, last


def _text_part(
    text: pa.LargeStringArray, row: int, share: float, needed: int, keeps_left: bool
) -> _TextPart:
    """Return a share of a document's bytes, and some more, at the side that is kept.

    Args:
        text: Texts of all documents, large_string[n].
        row: Index of the document.
        share: Share of its bytes; more than 1 means all.
        needed: Number of tokens that decide where the document is cut.
        keeps_left: Whether the beginning of the document is kept.
    """
    scalars: Any = text
    data = np.frombuffer(scalars[row].as_buffer(), np.uint8)
    part_size = min(int(len(data) * share) + _LEAST_BYTES, len(data))
    begin = 0 if keeps_left else len(data) - part_size
    return _TextPart(
        row=row,
        data=data,
        begin=character_at(data, begin),
        end=character_at(data, begin + part_size),
        needed=needed,
    )


def _decide_alike(
    part_ids: Int32, document_ids: Int32, needed: int, keeps_left: bool
) -> bool:
    """Return whether the ids that decide on a cut are equal in a part and the document."""
    deciding = slice(None, needed) if keeps_left else slice(-needed, None)
    return np.array_equal(part_ids[deciding], document_ids[deciding])


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

    def text(self) -> str:
        """Return the characters of the part."""
        return self.data[self.begin : self.end].tobytes().decode()

    def is_whole(self) -> bool:
        """Return whether the part is the whole text."""
        return self.begin == 0 and self.end == len(self.data)

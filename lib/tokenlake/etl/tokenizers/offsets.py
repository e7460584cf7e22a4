"""Spans of texts in characters and bytes, the bytes of each token, tokens of a span.

In the forms of the allow-list, and of most tokenizers whose words can be cached, the
size of a token in bytes follows from its id. Byte-level BPE spells every byte of a text
by one character of its alphabet. SentencePiece forms write a blank as U+2581, and a
byte of a character that the vocabulary lacks as ``<0xE4>``. The blank that they insert
before a piece of text (the whole text, or a part between two added tokens) holds no
byte.

1. The sizes of the ids are looked up. Each inserted blank takes one byte off the size
   of its token.
2. The cumulative sum of the sizes gives the place of each token.
3. A row whose sum does not end at the last byte of its text is *odd*. The reference
   gives its places.

For example, the tokens "\u2581Hi", "\u2581you" of "Hi you" have the sizes 3 and 4. The
first blank was inserted, so the places are 0:2 and 2:6. A text that holds U+2581 itself
is odd.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final, Self, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import (
    Bools,
    Int32,
    Int64,
    Ragged,
    blocks,
    is_ascii,
    offsets_of,
    places,
    string_buffers,
    taken,
    values,
)
from tokenlake.etl.tokenizers.allowlist import BYTE_LEVEL_ALPHABET, BYTE_TOKENS, flat
from tokenlake.etl.tokenizers.backends import (
    BATCH_BYTES,
    IdBackend,
    Placed,
    ReferenceBackend,
    require_equal,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.spelling import (
    objection_to_spelling,
    parting_tokens,
    prefix_rule,
)

# Tokens that are located at a time.
_BLOCK: Final = 1 << 18
# A byte 10xxxxxx is not the first byte of a character, which has three of them at most.
_CONTINUES: Final = 0x80
_LONGEST: Final = 3
_MARK: Final = "\u2581"
_BLANK: Final = 0x20
# Size of an id whose bytes are not known. No sum of real sizes reaches it.
_UNKNOWN: Final = 1 << 29
# Set in the size of an added token, which ends a piece of text.
_ADDED: Final = 1 << 30
# Largest number of pieces of a row that are followed one after the other; a row with
# more of them is odd.
_MOST_PIECES: Final = 64

Span = tuple[int, int]
"""UTF-8 bytes of a text: the first, and the one after the last."""

CharacterSpan = tuple[int, int]
"""Characters of a text: the first, and the one after the last."""


@final
@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of n texts, ragged.

    Attributes:
        offsets: int64[n + 1] from 0; text i has spans ``offsets[i]:offsets[i + 1]``.
        start: int64[k], first byte of each span, from the beginning of its text. The
            spans of a text ascend, are disjoint and not empty.
        stop: int64[k], byte after the last of each span.
    """

    offsets: Int64
    start: Int64
    stop: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, rows: Sequence[Sequence[Span]]) -> Self:
        """Return the spans of texts, a list of (start, stop) for each."""
        pairs = np.array(list(chain.from_iterable(rows)), np.int64).reshape(-1, 2)
        return cls(
            offsets_of([len(row) for row in rows]),
            pairs[:, 0].copy(),
            pairs[:, 1].copy(),
        )

    def slice(self, first: int, last: int) -> Self:
        """Return the spans of texts ``first`` to ``last`` (exclusive)."""
        first_span = int(self.offsets[first])
        last_span = int(self.offsets[last])
        return type(self)(
            self.offsets[first : last + 1] - first_span,
            self.start[first_span:last_span],
            self.stop[first_span:last_span],
        )

    def select(self, mask: Bools) -> Self:
        """Return the spans of the texts where `mask` (bool[n]) is true."""
        return self.take(np.flatnonzero(mask))

    def take(self, order: Int64) -> Self:
        """Return the spans of some texts.

        Args:
            order: int64[m], numbers of the texts, in the order of the result.
        """
        counts = np.diff(self.offsets)[order]
        offsets = offsets_of(counts)
        span_numbers = places(self.offsets[:-1][order], counts)
        return type(self)(offsets, self.start[span_numbers], self.stop[span_numbers])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the spans of all texts of `parts`, in order."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        start = np.concatenate([part.start for part in parts])
        stop = np.concatenate([part.stop for part in parts])
        return cls(offsets_of(counts), start, stop)


def byte_spans(text: str, spans: Sequence[CharacterSpan]) -> list[Span]:
    """Return spans of characters as spans of UTF-8 bytes, without empty ones.

    Args:
        text: Text.
        spans: Spans of characters, ascending and disjoint.
    """
    # Of ASCII, characters are bytes.
    not_empty = [(start, stop) for start, stop in spans if start < stop]
    if text.isascii():
        return not_empty
    in_bytes: list[Span] = []
    # The end of the previous span, in characters and in bytes.
    character_end = 0
    byte_end = 0
    for start, stop in not_empty:
        begin = byte_end + len(text[character_end:start].encode())
        end = begin + len(text[start:stop].encode())
        in_bytes.append((begin, end))
        character_end = stop
        byte_end = end
    return in_bytes


@final
@dataclass(frozen=True, slots=True)
class Located:
    """The tokens of a batch of texts.

    Attributes:
        text: Batch.
        offsets: int64[n + 1] from 0; row i has ids ``offsets[i]:offsets[i + 1]``.
        ids: int32[total].
        start: int64[total], first byte of each token, in the data of `text`.
        stop: int64[total], byte after the last of each token.
        ordered: Whether `start` and `stop` are known to ascend. A normalizer may change
            the order.
    """

    text: pa.LargeStringArray
    offsets: Int64
    ids: Int32
    start: Int64
    stop: Int64
    ordered: bool = True

    def places(self) -> tuple[Int64, Int64]:
        """Return the beginning and the end of each token in its text.

        They are int64[total] each, in bytes of whole characters.
        """
        base = np.repeat(string_buffers(self.text)[0][:-1], np.diff(self.offsets))
        start, stop = whole_characters(self.text, self.start, self.stop)
        return start - base, stop - base

    def touched(self, spans: Spans) -> Bools:
        """Return which tokens hold a byte of the spans of the texts: bool[total]."""
        rows = np.repeat(np.arange(len(spans)), np.diff(spans.offsets))
        begins = string_buffers(self.text)[0][rows]
        start, stop = whole_characters(
            self.text, spans.start + begins, spans.stop + begins
        )
        widened = Spans(spans.offsets, start, stop)
        return touched(self.start, self.stop, self.offsets, widened, self.ordered)

    def with_rows(self, rows: Int64, placed: list[Placed]) -> Located:
        """Return a copy with other places of some rows.

        Args:
            rows: Numbers of the rows.
            placed: Ids of each of these rows, and the first byte and the end of each id
                in the text of the row.
        """
        begins = string_buffers(self.text)[0]
        start = self.start.copy()
        stop = self.stop.copy()
        for row, (_, row_start, row_stop) in zip(rows.tolist(), placed, strict=True):
            tokens = slice(self.offsets[row], self.offsets[row + 1])
            start[tokens] = row_start + begins[row]
            stop[tokens] = row_stop + begins[row]
        return replace(self, start=start, stop=stop, ordered=False)


@final
class Locator:
    """Find the places of tokens.

    Args:
        reference: Reference backend of the tokenizer.
        backend: Name of the backend whose ids are located, for messages.
    """

    def __init__(self, reference: ReferenceBackend, backend: str) -> None:
        self.reference: Final = reference
        self._backend = backend
        self.sizes = TokenSizes.of(reference.files, literal=reference.literal)

    def by_reference(self, text: pa.LargeStringArray) -> Iterator[Located]:
        """Encode and locate by the reference alone, a part of the batch at a time."""
        for first_row, last_row in blocks(string_buffers(text)[0], BATCH_BYTES):
            batch = text.slice(first_row, last_row - first_row)
            rows = self.reference.places(batch)
            offsets = offsets_of([len(ids) for ids, _, _ in rows])
            ids = np.concatenate([ids for ids, _, _ in rows])
            no_places = np.zeros(len(ids), np.int64)
            # Places of the whole batch, which all rows replace by theirs.
            located = Located(batch, offsets, ids, no_places, no_places)
            yield located.with_rows(np.arange(len(rows)), rows)

    def by_ids(
        self, text: pa.LargeStringArray, encoded: Ragged, guarded: Int64
    ) -> Iterator[Located]:
        """Locate the tokens of a batch that was encoded.

        Args:
            text: Batch.
            encoded: Ids of the batch.
            guarded: Rows (ascending) that the reference encoded.

        Yields:
            The batch part by part. Small arrays stay in the cache of the processor.

        Raises:
            EngineMismatchError: The reference gives other ids to a row whose places it
                has to give.
        """
        for first_row, last_row in blocks(encoded.offsets, _BLOCK):
            first_id = int(encoded.offsets[first_row])
            last_id = int(encoded.offsets[last_row])
            block_ids = Ragged(
                encoded.ids[first_id:last_id],
                encoded.offsets[first_row : last_row + 1] - first_id,
            )
            guarded_rows = (
                guarded[(guarded >= first_row) & (guarded < last_row)] - first_row
            )
            yield self._block(
                text.slice(first_row, last_row - first_row), block_ids, guarded_rows
            )

    def of_texts(self, backend: IdBackend, texts: pa.LargeStringArray) -> list[Placed]:
        """Encode texts by a backend, each by itself, and locate the tokens."""
        placed: list[Placed] = []
        for row in range(len(texts)):
            text = texts.slice(row, 1)
            placed.append(self.of_row(text, backend.encode(text), 0))
        return placed

    def of_row(self, text: pa.LargeStringArray, encoded: Ragged, row: int) -> Placed:
        """Return the ids of a row of a batch with their first bytes and ends."""
        row_ids = Ragged.taken(
            encoded.ids,
            encoded.offsets[row : row + 1],
            encoded.offsets[row + 1 : row + 2],
        )
        located = self._block(text.slice(row, 1), row_ids, np.empty(0, np.int64))
        start, stop = located.places()
        return row_ids.ids, start, stop

    def _block(
        self, text: pa.LargeStringArray, encoded: Ragged, guarded: Int64
    ) -> Located:
        """Locate the tokens of a part of a batch."""
        ids = encoded.ids
        offsets = encoded.offsets

        # 1. Places that follow from the ids.
        if self.sizes is None:
            start = np.zeros(len(ids), np.int64)
            stop = start
            odd = np.arange(len(text))
        else:
            start, stop, odd = self.sizes.places(text, offsets, ids)
        if len(guarded):
            odd = np.union1d(odd, guarded)
        located = Located(text, offsets, ids, start, stop)
        if not len(odd):
            return located

        # 2. Places of the other rows by the reference, which must give the same ids.
        odd_texts = taken(text, odd)
        placed = self.reference.places(odd_texts)
        for odd_index, row in enumerate(odd.tolist()):
            expected_ids = placed[odd_index][0]
            row_ids = ids[offsets[row] : offsets[row + 1]]
            require_equal(
                self._backend, str(odd_texts[odd_index]), (expected_ids,), (row_ids,)
            )
        return located.with_rows(odd, placed)


@final
class TokenSizes:
    """The size of each id of a tokenizer, and the places of inserted blanks.

    Args:
        files: Tokenizer of the allow-list, or one whose words can be cached.
        literal: Whether special tokens are plain text in a text.
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool) -> None:
        spec = files.spec
        vocab: dict[str, int] = spec["model"]["vocab"]
        is_sentencepiece = bool(spec["model"].get("byte_fallback"))

        # 1. Bytes of each id. An entry for each, and one for an id out of range.
        table = np.full(files.vocab_size + 1, _UNKNOWN, np.int32)
        for token, token_id in vocab.items():
            if token in BYTE_TOKENS and is_sentencepiece:
                table[token_id] = 1
            elif is_sentencepiece and token:
                # The mark has three bytes, the blank in the text has one.
                table[token_id] = len(token.encode()) - 2 * token.count(_MARK)
            elif token and BYTE_LEVEL_ALPHABET.issuperset(token):
                table[token_id] = len(token)
        # The unknown token replaces text of any size.
        unknown_token = spec["model"].get("unk_token")
        if unknown_token is not None and unknown_token in vocab:
            table[vocab[unknown_token]] = _UNKNOWN
        added_tokens = parting_tokens(files, literal=literal)
        for token in added_tokens:
            table[files.token_id(token)] = len(token.encode()) | _ADDED
        self._table = table
        self._has_added = bool(added_tokens)

        # 2. The pieces of text that get a blank: "never" any, "every" one, the "first",
        #    those without one ("missing").
        self._blanks = prefix_rule(files)
        self._composes = flat(spec.get("normalizer"), "normalizers") == [
            {"type": "NFC"}
        ]

    @classmethod
    def of(cls, files: TokenizerFiles, *, literal: bool) -> TokenSizes | None:
        """Return the sizes of a tokenizer, None if they do not follow from the ids."""
        if objection_to_spelling(files, literal=literal) is not None:
            return None
        return cls(files, literal=literal)

    def places(
        self, text: pa.LargeStringArray, offsets: Int64, ids: Int32
    ) -> tuple[Int64, Int64, Int64]:
        """Return the places of the tokens of a batch.

        Args:
            text: Batch.
            offsets: int64[n + 1]; row i has ids ``offsets[i]:offsets[i + 1]``.
            ids: int32[total].

        Returns:
            First byte and end of each token, int64[total] each, in the data of `text`;
            and the odd rows, int64[k], ascending, whose places do not follow from the
            ids.
        """
        starts, data = string_buffers(text)
        odd_rows = self._unsure(text)

        # 1. Sizes of the tokens, without inserted blanks.
        sizes = self._table.take(ids, mode="clip")
        if self._blanks == "every":
            sizes[self._pieces(offsets, sizes)] -= 1
        elif self._blanks == "first":
            is_filled = np.diff(offsets) > 0
            first_tokens = offsets[:-1][is_filled]
            first_bytes = data[starts[:-1][is_filled]]
            has_inserted = (sizes[first_tokens] < _ADDED) & (first_bytes != _BLANK)
            sizes[first_tokens[has_inserted]] -= 1
        elif self._blanks == "missing":
            odd_rows = np.union1d(odd_rows, self._follow(text, offsets, sizes))
        if self._has_added:
            sizes &= _ADDED - 1

        # 2. Their cumulative sum.
        edges = np.empty(len(ids) + 1, np.int64)
        edges[0] = 0
        np.cumsum(sizes, out=edges[1:])
        edges += starts[0]

        # 3. Rows whose sum is not the size of their text. The rows after them are
        #    shifted to their texts.
        wrong_rows = np.flatnonzero(np.diff(edges[offsets]) != np.diff(starts))
        odd_rows = np.union1d(odd_rows, wrong_rows)
        if not odd_rows.size:
            return edges[:-1], edges[1:], odd_rows
        shift = np.repeat(starts[:-1] - edges[offsets[:-1]], np.diff(offsets))
        return edges[:-1] + shift, edges[1:] + shift, odd_rows

    def _pieces(self, offsets: Int64, sizes: Int32) -> Int64:
        """Return the first tokens of pieces of text: int64[k], some of them twice."""
        first_tokens = offsets[:-1][np.diff(offsets) > 0]
        if not self._has_added:
            return first_tokens
        # A piece also begins after each added token, which is no piece itself.
        after_added = np.flatnonzero(sizes >= _ADDED) + 1
        first_tokens = np.concatenate(
            [first_tokens, after_added[after_added < len(sizes)]]
        )
        return first_tokens[sizes[first_tokens] < _ADDED]

    def _follow(self, text: pa.LargeStringArray, offsets: Int64, sizes: Int32) -> Int64:
        """Subtract inserted blanks from `sizes` where a piece begins without a blank.

        The text at the place of a piece decides. The place depends on the blanks that
        were inserted before the earlier pieces of the row, so the first pieces of all
        rows are looked at first, then the second ones, and so on.

        Returns:
            The rows that have more than :data:`_MOST_PIECES` pieces: int64[k],
            ascending.
        """
        # 1. The first token of each piece, its row, and the number of the piece there.
        starts, data = string_buffers(text)
        first_tokens = np.unique(self._pieces(offsets, sizes))
        rows = np.searchsorted(offsets, first_tokens, "right") - 1
        ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)

        # 2. The place of each piece if no blank was inserted in its row.
        sums = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes & (_ADDED - 1), out=sums[1:])
        piece_places = starts[rows] + sums[first_tokens] - sums[offsets[rows]]

        # 3. Round by round, correct the places by the blanks before them, and look at
        #    the text.
        inserted_in_row = np.zeros(len(offsets), np.int64)
        for rank in range(min(_MOST_PIECES, int(ranks.max(initial=-1)) + 1)):
            pieces = np.flatnonzero(ranks == rank)
            piece_rows = rows[pieces]
            first_bytes = piece_places[pieces] - inserted_in_row[piece_rows]
            first_bytes = np.minimum(first_bytes, starts[piece_rows + 1] - 1)
            has_inserted = data[first_bytes] != _BLANK
            sizes[first_tokens[pieces[has_inserted]]] -= 1
            inserted_in_row[piece_rows[has_inserted]] += 1
        return np.unique(rows[ranks >= _MOST_PIECES])

    def _unsure(self, text: pa.LargeStringArray) -> Int64:
        """Return the rows (int64[k], ascending) whose sum could be right by chance."""
        # The mark in a text has three bytes, a blank that is taken for it has one.
        if self._blanks == "missing":
            return np.flatnonzero(values(pc.match_substring(text, _MARK)))
        if not self._composes:
            return np.empty(0, np.int64)
        # NFC changes the bytes of a text. Python's tables may be newer than those of
        # the reference, which makes a difference for guarded rows only.
        non_ascii = np.flatnonzero(~values(pc.string_is_ascii(text)))
        texts = cast("list[str]", taken(text, non_ascii).to_pylist())
        is_changed = [not unicodedata.is_normalized("NFC", row) for row in texts]
        return non_ascii[is_changed]


def whole_characters(
    text: pa.LargeStringArray, start: Int64, stop: Int64
) -> tuple[Int64, Int64]:
    """Widen spans to whole characters.

    Args:
        text: Texts.
        start, stop: int64[k], first byte and end of each span, in the data of `text`.
    """
    starts, data = string_buffers(text)
    if is_ascii(text):
        return start, stop
    return _moved(start, data[: starts[-1]], -1), _moved(stop, data[: starts[-1]], 1)


def _moved(positions: Int64, data: npt.NDArray[np.uint8], step: int) -> Int64:
    """Move places inside a character byte by byte to its border.

    Args:
        positions: int64[k], byte offsets.
        data: uint8, UTF-8.
        step: Direction, -1 for the beginning and 1 for the end.
    """
    positions = positions.copy()
    inside_character = np.flatnonzero(
        data.take(positions, mode="clip") & 0xC0 == _CONTINUES
    )
    for _ in range(_LONGEST):
        inside_character = inside_character[positions[inside_character] < len(data)]
        inside_character = inside_character[
            data[positions[inside_character]] & 0xC0 == _CONTINUES
        ]
        positions[inside_character] += step
    return positions


def touched(
    start: Int64, stop: Int64, offsets: Int64, spans: Spans, ordered: bool = False
) -> Bools:
    """Return which tokens hold a byte of a span, for texts laid end to end.

    Args:
        start: int64[total], first byte of each token.
        stop: int64[total], byte after the last of each token.
        offsets: int64[n + 1]; text i has tokens ``offsets[i]:offsets[i + 1]``.
        spans: Spans of the n texts, in the same bytes as the tokens.
        ordered: Whether `start` and `stop` are known to ascend.

    Returns:
        bool[total]. A token that holds no byte (a blank that the tokenizer inserts)
        belongs to the byte after it, as if the blank were a part of the next token.
    """
    if not ordered and (np.any(start[1:] < start[:-1]) or np.any(stop[1:] < stop[:-1])):
        return _touched_in_disorder(start, stop, offsets, spans)
    # 1. The tokens first:last (exclusive) of each span.
    first_tokens = np.searchsorted(stop, spans.start, "right")
    last_tokens = np.searchsorted(start, spans.stop, "left")

    # 2. Tokens without bytes right before the span.
    pending = np.flatnonzero(first_tokens)
    while len(pending):
        token_before = first_tokens[pending] - 1
        pending = pending[
            (start[token_before] == stop[token_before])
            & (start[token_before] == spans.start[pending])
        ]
        first_tokens[pending] -= 1
        pending = pending[first_tokens[pending] > 0]

    # 3. The union of these intervals, whose borders ascend; they may overlap and be
    #    empty.
    ends_before = np.zeros(len(last_tokens), np.int64)
    ends_before[1:] = np.maximum.accumulate(last_tokens)[:-1]
    first_tokens = np.maximum(first_tokens, ends_before)
    last_tokens = np.maximum(first_tokens, last_tokens)

    # 4. Between the borders, tokens are by turns outside and inside a span.
    borders = np.stack([first_tokens, last_tokens], 1).ravel()
    borders = np.concatenate([np.zeros(1, np.int64), borders, np.array([len(start)])])
    is_inside = np.arange(len(borders) - 1) % 2 == 1
    return np.repeat(is_inside, np.diff(borders))


def _touched_in_disorder(
    start: Int64, stop: Int64, offsets: Int64, spans: Spans
) -> Bools:
    """Return the result of :func:`touched`, span by span.

    The normalizer may have changed the order of the tokens.
    """
    mask = np.zeros(len(start), np.bool_)
    for row, (first_token, last_token) in enumerate(pairwise(offsets.tolist())):
        begins = start[first_token:last_token]
        ends = stop[first_token:last_token]
        for span in range(int(spans.offsets[row]), int(spans.offsets[row + 1])):
            is_blank_before = (begins == ends) & (begins == spans.start[span])
            ends_after = (ends > spans.start[span]) | is_blank_before
            span_tokens = np.flatnonzero((begins < spans.stop[span]) & ends_after)
            if len(span_tokens):
                mask[
                    first_token + span_tokens[0] : first_token + span_tokens[-1] + 1
                ] = True
    return mask

"""Spans of texts, where the tokens of a text lie in its bytes, and which of them a span touches.

In the forms of the allow-list, and of most tokenizers whose words can be cached, a token's bytes follow from its id.
Byte-level BPE spells every byte of a text by one character of its alphabet. SentencePiece forms write a blank as U+2581
and what the vocabulary lacks as ``<0xE4>``, a byte each; the blank that they put before a piece of text (all of the
text, or what lies between two added tokens) holds none. So the places of a batch's tokens are one cumulative sum;
where it does not end at the text's last byte (a text that holds U+2581 itself), the row is odd, and the reference
engine gives its places.
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
from tokenlake.etl.tokenizers.engines import BATCH_BYTES, IdEngine, Placed, ReferenceEngine, require_equal
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.spelling import objection_to_spelling, parting_tokens, prefix_rule

_BLOCK: Final = 1 << 18  # tokens that are located at a time
_CONTINUES: Final = 0x80  # of the form 10xxxxxx: not the first byte of a character
_LONGEST: Final = 3  # such bytes in a character
_MARK: Final = "\u2581"
_BLANK: Final = 0x20
# What no sum of real sizes reaches: an id that nothing makes.
_UNKNOWN: Final = 1 << 29
# Set in the size of an added token, which ends a piece of text.
_ADDED: Final = 1 << 30
# Pieces of a row that are followed one after the other ("missing"); a row with more of them is odd.
_MOST_PIECES: Final = 64

Span = tuple[int, int]
"""UTF-8 bytes of a text: first, and last exclusive."""


@final
@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of n texts, ragged.

    Attributes:
        offsets: int64[n + 1] from 0; text i has spans ``offsets[i]:offsets[i + 1]``.
        start, stop: int64[k], UTF-8 bytes from the beginning of the own text; ascending, disjoint, none
            empty.
    """

    offsets: Int64
    start: Int64
    stop: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, rows: Sequence[Sequence[Span]]) -> Self:
        """Return the spans of texts, a list of (start, stop) for each."""
        flat = np.array(list(chain.from_iterable(rows)), np.int64).reshape(-1, 2)
        return cls(offsets_of([len(row) for row in rows]), flat[:, 0].copy(), flat[:, 1].copy())

    def slice(self, first: int, last: int) -> Self:
        """Return the spans of texts ``first`` to ``last`` (exclusive)."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        return type(self)(self.offsets[first : last + 1] - begin, self.start[begin:end], self.stop[begin:end])

    def select(self, mask: Bools) -> Self:
        """Return the spans of the texts where `mask` (bool[n]) is true."""
        return self.take(np.flatnonzero(mask))

    def take(self, order: Int64) -> Self:
        """Return the spans of the texts `order` (int64[m]), in that order."""
        counts = np.diff(self.offsets)[order]
        offsets = offsets_of(counts)
        inside = places(self.offsets[:-1][order], counts)
        return type(self)(offsets, self.start[inside], self.stop[inside])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the spans of all texts of `parts`, in order."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(
            offsets_of(counts),
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.stop for part in parts]),
        )


def byte_spans(text: str, spans: Sequence[Span]) -> list[Span]:
    """Turn spans of characters into spans of UTF-8 bytes, leaving empty ones out."""
    full = [(start, stop) for start, stop in spans if start < stop]
    if text.isascii():
        return full
    found: list[Span] = []
    place = size = 0
    for start, stop in full:
        begin = size + len(text[place:start].encode())
        place, size = stop, begin + len(text[start:stop].encode())
        found.append((begin, size))
    return found


@final
@dataclass(frozen=True, slots=True)
class Located:
    """The tokens of a batch of texts.

    Attributes:
        text: the batch.
        offsets: int64[n + 1] from 0, row i has ids ``offsets[i]:offsets[i + 1]``.
        ids: int32[total].
        start, stop: int64[total]: the bytes that each token holds, of the array's own data.
        ordered: whether both are known to ascend; a normalizer may change the order.
    """

    text: pa.LargeStringArray
    offsets: Int64
    ids: Int32
    start: Int64
    stop: Int64
    ordered: bool = True

    def places(self) -> tuple[Int64, Int64]:
        """Return where each token begins and ends: int64[total], int64[total], bytes of its own text."""
        base = np.repeat(string_buffers(self.text)[0][:-1], np.diff(self.offsets))
        start, stop = whole_characters(self.text, self.start, self.stop)
        return start - base, stop - base

    def touched(self, spans: Spans) -> Bools:
        """Return which tokens hold a byte of the `spans` of the texts: bool[total]."""
        row = np.repeat(np.arange(len(spans)), np.diff(spans.offsets))
        begin = string_buffers(self.text)[0][row]
        whole = whole_characters(self.text, spans.start + begin, spans.stop + begin)
        return touched(self.start, self.stop, self.offsets, Spans(spans.offsets, *whole), self.ordered)

    def with_rows(self, rows: Int64, placed: list[Placed]) -> Located:
        """Return the same with the places of some rows, bytes of their own texts, as another engine gives them."""
        starts = string_buffers(self.text)[0]
        start, stop = self.start.copy(), self.stop.copy()
        for row, (_, first, last) in zip(rows.tolist(), placed, strict=True):
            tokens = slice(self.offsets[row], self.offsets[row + 1])
            start[tokens], stop[tokens] = first + starts[row], last + starts[row]
        return replace(self, start=start, stop=stop, ordered=False)


@final
class Locator:
    """Finds the places of tokens.

    Args:
        reference: the tokenizer's reference engine.
        engine: the one whose ids are located; named where they differ.
    """

    def __init__(self, reference: ReferenceEngine, engine: str) -> None:
        self.reference: Final = reference
        self._engine = engine
        self.sizes = TokenSizes.of(reference.files, literal=reference.literal)

    def by_reference(self, text: pa.LargeStringArray) -> Iterator[Located]:
        """Encode and locate by the reference alone, some of the text at a time."""
        for first, last in blocks(string_buffers(text)[0], BATCH_BYTES):
            part = text.slice(first, last - first)
            rows = self.reference.places(part)
            offsets = offsets_of([len(ids) for ids, _, _ in rows])
            ids = np.concatenate([ids for ids, _, _ in rows])
            nowhere = np.zeros(len(ids), np.int64)
            located = Located(part, offsets, ids, nowhere, nowhere)
            yield located.with_rows(np.arange(len(rows)), rows)

    def by_ids(self, text: pa.LargeStringArray, made: Ragged, guarded: Int64) -> Iterator[Located]:
        """Locate what an engine made of a batch, of whose rows `guarded` (ascending) are the reference's.

        Yields:
            The batch piece by piece: what is small is quick.

        Raises:
            EngineMismatchError: a row that the reference had to look at has other ids.
        """
        for first, last in blocks(made.offsets, _BLOCK):
            begin, end = int(made.offsets[first]), int(made.offsets[last])
            held_back = guarded[(guarded >= first) & (guarded < last)] - first
            part, offsets = text.slice(first, last - first), made.offsets[first : last + 1] - begin
            yield self._block(part, Ragged(made.ids[begin:end], offsets), held_back)

    def of_texts(self, engine: IdEngine, texts: pa.LargeStringArray) -> list[Placed]:
        """Encode texts by an engine, each by itself, and locate them as :meth:`by_ids`."""
        alone = (texts.slice(row, 1) for row in range(len(texts)))
        return [self.of_row(text, engine.encode(text), 0) for text in alone]

    def of_row(self, text: pa.LargeStringArray, made: Ragged, row: int) -> Placed:
        """Return the ids that an engine made of a row of a batch, and where each begins and ends (bytes)."""
        own = Ragged.taken(made.ids, made.offsets[row : row + 1], made.offsets[row + 1 : row + 2])
        located = self._block(text.slice(row, 1), own, np.empty(0, np.int64))
        return own.ids, *located.places()

    def _block(self, text: pa.LargeStringArray, made: Ragged, guarded: Int64) -> Located:
        ids, offsets = made.ids, made.offsets
        if self.sizes is None:
            start = stop = np.zeros(len(ids), np.int64)
            odd = np.arange(len(text))
        else:
            start, stop, odd = self.sizes.places(text, offsets, ids)
        odd = np.union1d(odd, guarded) if len(guarded) else odd
        located = Located(text, offsets, ids, start, stop)
        if not len(odd):
            return located
        texts = taken(text, odd)
        rows = self.reference.places(texts)
        for at, row in enumerate(odd.tolist()):
            require_equal(
                self._engine, str(texts[at]), (rows[at][0],), (ids[offsets[row] : offsets[row + 1]],)
            )
        return located.with_rows(odd, rows)


@final
class TokenSizes:
    """The sizes of a tokenizer's ids, and where its made-up blanks are.

    Args:
        files: a tokenizer of the allow-list, or one whose words can be cached.
        literal: special tokens are never matched in a text.
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool) -> None:
        spec, added = files.spec, parting_tokens(files, literal=literal)
        marked = bool(spec["model"].get("byte_fallback"))
        table = np.full(files.vocab_size + 1, _UNKNOWN, np.int32)  # bytes of each id
        for token, i in spec["model"]["vocab"].items():
            if token in BYTE_TOKENS and marked:
                table[i] = 1
            elif marked and token:
                table[i] = len(token.encode()) - 2 * token.count(_MARK)
            elif token and BYTE_LEVEL_ALPHABET.issuperset(token):
                table[i] = len(token)
        # What the unknown token stands in the place of has any size.
        unknown = spec["model"].get("unk_token")
        if unknown is not None and unknown in spec["model"]["vocab"]:
            table[spec["model"]["vocab"][unknown]] = _UNKNOWN
        for token in added:
            table[files.token_id(token)] = len(token.encode()) | _ADDED
        self._table, self._has_added = table, bool(added)
        # Which pieces of text get a blank: "never" any, "every" one, the "first", those without one ("missing").
        self._blanks = prefix_rule(files)
        self._composes = flat(spec.get("normalizer"), "normalizers") == [{"type": "NFC"}]

    @classmethod
    def of(cls, files: TokenizerFiles, *, literal: bool) -> TokenSizes | None:
        """Return the sizes of a tokenizer, or None where an id alone does not tell them."""
        if objection_to_spelling(files, literal=literal) is not None:
            return None
        return cls(files, literal=literal)

    def places(self, text: pa.LargeStringArray, offsets: Int64, ids: Int32) -> tuple[Int64, Int64, Int64]:
        """Return where the tokens of a batch lie.

        Args:
            text: the batch.
            offsets: int64[n + 1], row i has ids ``offsets[i]:offsets[i + 1]``.
            ids: int32[total].

        Returns:
            start and stop, int64[total] each, bytes of the array's own data; and int64[k], ascending, the odd rows,
            whose places are another matter.
        """
        starts, data = string_buffers(text)
        odd = self._unsure(text)
        held = self._table.take(ids, mode="clip")
        if self._blanks == "every":
            held[self._pieces(offsets, held)] -= 1
        elif self._blanks == "first":
            first = offsets[:-1][np.diff(offsets) > 0]
            begins = data[starts[:-1][np.diff(offsets) > 0]]
            held[first[(held[first] < _ADDED) & (begins != _BLANK)]] -= 1
        elif self._blanks == "missing":
            odd = np.union1d(odd, self._follow(text, offsets, held))
        if self._has_added:
            held &= _ADDED - 1
        edges = np.empty(len(ids) + 1, np.int64)
        edges[0] = 0
        np.cumsum(held, out=edges[1:])
        edges += starts[0]
        wrong = np.flatnonzero(np.diff(edges[offsets]) != np.diff(starts))
        odd = np.union1d(odd, wrong) if odd.size else wrong
        if not odd.size:
            return edges[:-1], edges[1:], odd
        shift = np.repeat(starts[:-1] - edges[offsets[:-1]], np.diff(offsets))
        return edges[:-1] + shift, edges[1:] + shift, odd

    def _pieces(self, offsets: Int64, held: Int32) -> Int64:
        """Return which tokens begin a piece of text: int64[k], some of them twice."""
        begins = offsets[:-1][np.diff(offsets) > 0]
        if not self._has_added:
            return begins
        after = np.flatnonzero(held >= _ADDED) + 1
        begins = np.concatenate([begins, after[after < len(held)]])
        return begins[held[begins] < _ADDED]

    def _follow(self, text: pa.LargeStringArray, offsets: Int64, held: Int32) -> Int64:
        """Take the made-up blanks out of `held` where a piece has one only if it does not begin with a blank.

        Whether it does says the text at the piece's place, which depends on the row's earlier pieces: so the
        first pieces of all rows come first, then the second ones.
        """
        starts, data = string_buffers(text)
        token = np.unique(self._pieces(offsets, held))
        row = np.searchsorted(offsets, token, "right") - 1
        rank = np.arange(len(row)) - np.searchsorted(row, row)
        sizes = np.concatenate([np.zeros(1, np.int64), np.cumsum(held & (_ADDED - 1), dtype=np.int64)])
        place = starts[row] + sizes[token] - sizes[offsets[row]]
        gone = np.zeros(len(offsets), np.int64)
        for number in range(min(_MOST_PIECES, int(rank.max(initial=-1)) + 1)):
            now = np.flatnonzero(rank == number)
            here = np.minimum(place[now] - gone[row[now]], starts[row[now] + 1] - 1)
            made_up = now[data[here] != _BLANK]
            held[token[made_up]] -= 1
            gone[row[made_up]] += 1
        return np.unique(row[rank >= _MOST_PIECES])

    def _unsure(self, text: pa.LargeStringArray) -> Int64:
        """Return the rows (int64[k], ascending) whose sum could be right by chance."""
        if self._blanks == "missing":
            return np.flatnonzero(values(pc.match_substring(text, _MARK)))
        if not self._composes:
            return np.empty(0, np.int64)
        # NFC changes a text's bytes; tables newer than the reference's concern guarded rows only.
        other = np.flatnonzero(~values(pc.string_is_ascii(text)))
        texts = cast("list[str]", taken(text, other).to_pylist())
        return other[[not unicodedata.is_normalized("NFC", value) for value in texts]]


def whole_characters(text: pa.LargeStringArray, start: Int64, stop: Int64) -> tuple[Int64, Int64]:
    """Widen spans ``start:stop`` (int64[k], bytes of the array's own data) to whole characters."""
    starts, data = string_buffers(text)
    if is_ascii(text):
        return start, stop
    return _moved(start, data[: starts[-1]], -1), _moved(stop, data[: starts[-1]], 1)


def _moved(place: Int64, data: npt.NDArray[np.uint8], step: int) -> Int64:
    """Return places with those inside a character moved by single bytes to its border."""
    place, which = place.copy(), np.flatnonzero(data.take(place, mode="clip") & 0xC0 == _CONTINUES)
    for _ in range(_LONGEST):
        which = which[place[which] < len(data)]
        which = which[data[place[which]] & 0xC0 == _CONTINUES]
        place[which] += step
    return place


def touched(start: Int64, stop: Int64, offsets: Int64, spans: Spans, ordered: bool = False) -> Bools:
    """Return which tokens hold a byte of a span, of texts laid end to end.

    Args:
        start, stop: int64[total], bytes of each token.
        offsets: int64[n + 1], text i has tokens ``offsets[i]:offsets[i + 1]``.
        spans: of the n texts, in the same bytes as the tokens.
        ordered: whether `start` and `stop` are known to ascend.

    Returns:
        bool[total]. A token that holds no byte (a blank that the tokenizer made up) belongs to the byte after it: so
        whether that blank is a token of its own or part of the next one makes no difference.
    """
    if not ordered and (np.any(start[1:] < start[:-1]) or np.any(stop[1:] < stop[:-1])):
        return _touched_in_disorder(start, stop, offsets, spans)
    begin, end = np.searchsorted(stop, spans.start, "right"), np.searchsorted(start, spans.stop, "left")
    back = np.flatnonzero(begin)
    while len(back):  # a token that holds no byte right before the span
        before = begin[back] - 1
        back = back[(start[before] == stop[before]) & (start[before] == spans.start[back])]
        begin[back] -= 1
        back = back[begin[back] > 0]
    # Intervals whose borders ascend; they may overlap and be empty.
    begin = np.maximum(begin, np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(end)[:-1]]))
    edges = np.stack([begin, np.maximum(begin, end)], 1).ravel()
    edges = np.concatenate([np.zeros(1, np.int64), edges, np.array([len(start)])])
    return np.repeat(np.arange(len(edges) - 1) % 2 == 1, np.diff(edges))


def _touched_in_disorder(start: Int64, stop: Int64, offsets: Int64, spans: Spans) -> Bools:
    """As :func:`touched`, span by span: a normalizer may have changed the order."""
    mask = np.zeros(len(start), np.bool_)
    for row, (first, last) in enumerate(pairwise(offsets.tolist())):
        begins, ends = start[first:last], stop[first:last]
        for at in range(int(spans.offsets[row]), int(spans.offsets[row + 1])):
            held = (ends > spans.start[at]) | ((begins == ends) & (begins == spans.start[at]))
            hit = (begins < spans.stop[at]) & held
            inside = np.flatnonzero(hit)
            if len(inside):
                mask[first + inside[0] : first + inside[-1] + 1] = True
    return mask

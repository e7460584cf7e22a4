"""Encode batches of text by cached words.

1. Texts that the fast path cannot reproduce go to the reference: those that normalizing
   may change, and those that hold an added token which strips white space or must be a
   word by itself.
2. The others are parted at added tokens, and the parts are copied end to end, with a
   space in front where the tokenizer puts one.
3. Block by block, the parts are split into words, and the words are looked up.
4. The ids of the words follow each other; ids of added tokens are put between them.
"""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import (
    Int32,
    Int64,
    Ragged,
    UInt8,
    UInt64,
    offsets_of,
    select,
    string_buffers,
    taken,
)
from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.etl.tokenizers.allowlist import BYTE_TOKENS
from tokenlake.etl.tokenizers.engines import ReferenceEngine, deliberate
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.kernel_constants import PAIR_WORDS
from tokenlake.etl.tokenizers.words import native
from tokenlake.etl.tokenizers.words.added import AddedTokens
from tokenlake.etl.tokenizers.words.automaton import Splitter
from tokenlake.etl.tokenizers.words.expressions import UnsupportedError
from tokenlake.etl.tokenizers.words.kept import Tables, kept_tables
from tokenlake.etl.tokenizers.words.merging import Merger
from tokenlake.etl.tokenizers.words.rules import MARK, split_rules_of
from tokenlake.etl.tokenizers.words.table import WordTable
from tokenlake.runtime.tokenizer_guard.adapter import Backend, open_backend

BLOCK_BYTES: Final = 1 << 18
"""Bytes of text that are split, looked up and written while they are in the
processor's cache.
"""
_SLACK: Final = 8  # bytes behind the last text, because eight are read at once
_ASCII: Final = 128
_POINTS: Final = 0x110000


@final
class WordEngine:
    """The cached words of one tokenizer.json.

    Args:
        files: The tokenizer.
        literal: Whether special tokens are plain text.
        reference: Encodes the texts that are left to it; None to load it when it is
            needed.

    Raises:
        MissingExtraError: numba is not installed, or cannot compile the loops.
        TokenizerError: The tokenizer has a part that is not reproduced here.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        *,
        literal: bool = True,
        reference: ReferenceEngine | None = None,
    ) -> None:
        try:
            loops = native.loops()
        except ImportError as error:
            raise MissingExtraError(
                "tokenizer backend 'words' needs its packages: pip install 'tokenlake[etl]'"
            ) from error
        except RuntimeError as error:
            raise MissingExtraError(
                f"tokenizer backend 'words' cannot run here: {error}. Install another version of numba, or use "
                "tokenizer_backend: tokenizers"
            ) from error
        try:
            rules = split_rules_of(files)
        except UnsupportedError as error:
            raise TokenizerError(
                f"tokenizer {files.name!r}: the backend 'words' does not support it: {error}; "
                "use tokenizer_backend: tokenizers",
                tokenizer=files.name,
            ) from error
        self.files = files
        self._literal = literal
        self._reference = reference
        self._loops = loops
        self._rules = rules
        self._added = AddedTokens(loops, files, literal=literal)
        merger = Merger.of(loops, files, is_sentencepiece=rules.is_sentencepiece)
        self._table = WordTable(loops, merger, self.encode_words)
        self._one_thread = Lock()
        self._kinds = _combining_classes() if rules.composes else None
        self._first: _Stage
        if rules.is_sentencepiece:
            self._first = _Segments(loops, files, starts_words=rules.starts_words)
        else:
            self._first = _Expressions(loops, rules.splitters)

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of valid UTF-8 without nulls, contiguous, from 0."""
        offsets, data = string_buffers(text)
        parts, ruled = self._added.find(data, offsets)
        left = ruled
        if self._kinds is not None:
            left = np.union1d(ruled, self._changed(text, self._kinds))
        if len(left):
            is_free = np.ones(len(text), np.bool_)
            is_free[left] = False
            rows = self._slow().encode(taken(text, left))
            return self.encode(select(text, is_free)).inserted(rows, left)
        led = np.full(len(parts.begins), self._rules.prefix == "every", np.uint8)
        if self._rules.prefix == "first":
            led[parts.first[:-1]] = 1
        with self._one_thread:
            made = self._encode_parts(data, parts.begins, parts.stops, led)
        is_token = parts.after >= 0
        tokens = parts.after[is_token]
        ids = made.ids
        if len(tokens):
            ids = np.insert(ids, made.offsets[1:][is_token], tokens)
        tokens_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_token)])
        return Ragged(ids, (made.offsets + tokens_before)[parts.first])

    def _changed(self, text: pa.LargeStringArray, kinds: UInt8) -> Int64:
        """Return the texts (int64[k], ascending) that normalizing changes."""
        offsets, data = string_buffers(text)
        unsure = np.zeros(len(text), np.uint8)
        self._loops.find_unsure(data, offsets.copy(), kinds, unsure)
        changed: list[int] = []
        for row in np.flatnonzero(unsure).tolist():
            value = str(text[row])
            if self._slow().normalized(value) != value:
                changed.append(row)
        return np.array(changed, np.int64)

    def _slow(self) -> ReferenceEngine:
        if self._reference is None:
            self._reference = ReferenceEngine(self.files, literal=self._literal)
        return self._reference

    @cached_property
    def _backend(self) -> Backend:
        """The reference implementation of the model alone."""
        return open_backend(self.files.name, self._rules.model_alone(self.files))

    def encode_words(self, words: list[str]) -> tuple[Int64, Int32]:
        """Return the ids of words by the reference implementation."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding words"):
            rows = self._backend.encode(words, literal=True)
        offsets = offsets_of([len(row) for row in rows])
        return offsets, np.concatenate([np.empty(0, np.int32), *rows])

    def _encode_parts(
        self, data: UInt8, begins: Int64, stops: Int64, led: Any
    ) -> Ragged:
        """Return the ids of parts of texts."""
        count = len(begins)
        laid = np.empty(int((stops - begins).sum()) + count + _SLACK, np.uint8)
        edges = np.empty(count + 1, np.int64)
        once = self._rules.only_if_missing
        size = self._loops.lay_out(
            data, begins, stops, led, once, self._first.mark, laid, edges
        )
        # A guess of how many ids there are; more room is made where needed.
        ids = np.empty(size // 3 + 16, np.int32)
        offsets = np.zeros(count + 1, np.int64)
        part = 0
        place = 0
        at = 0
        while part < count:
            before = part
            part, place, words, cuts, counts = self._first.split(
                laid, edges, part, place
            )
            found, total = self._table.find(laid, cuts, words)
            if at + total > len(ids):
                larger = np.empty(max(2 * len(ids), at + total), np.int32)
                larger[:at] = ids[:at]
                ids = larger
            at = self._loops.write_ids(
                found, words, self._table.ids, before, part, counts, ids, at, offsets
            )
        return Ragged(ids[:at], offsets)


class _Stage(Protocol):
    """Splits parts of texts into words.

    Attributes:
        mark: The code point that counts as a space beside the space itself, -1 for
            none.
    """

    mark: int

    def split(
        self, laid: UInt8, edges: Int64, part: int, place: int
    ) -> tuple[int, int, int, Int64, Int64]:
        """Split a block of parts.

        Returns:
            The first part that is not finished, the byte to go on at, the number of
            words, their edges, and for each part (from entry 1 on) the number of words
            up to its end.
        """
        ...


@final
class _Expressions:
    """Splits by expressions, one after the other."""

    def __init__(self, loops: Any, splitters: tuple[Splitter, ...]) -> None:
        self.mark = -1
        self._splitters = splitters
        self._loops = loops
        self._cuts = np.empty((max(2, len(splitters)), 2 * BLOCK_BYTES + 2), np.int64)

    def split(
        self, laid: UInt8, edges: Int64, part: int, place: int
    ) -> tuple[int, int, int, Int64, Int64]:
        counts = np.zeros(len(edges), np.int64)
        first = part
        if not self._splitters:
            # Each part is a word.
            stop = int(np.searchsorted(edges, place + BLOCK_BYTES, "right"))
            last = min(max(stop, part + 1), len(edges) - 1)
            filled = np.diff(edges[part : last + 1]) > 0
            cuts = np.append(edges[part:last][filled], edges[last])
            counts[part + 1 : last + 1] = np.cumsum(filled)
            return last, int(edges[last]), len(cuts) - 1, cuts, counts
        tables = self._splitters[0].tables
        cuts = self._cuts[0]
        part, place, words = self._loops.split(
            laid, edges, part, place, BLOCK_BYTES, *tables, cuts, counts
        )
        cuts = cuts[: words + 1]
        for number, splitter in enumerate(self._splitters[1:], 1):
            size = int(cuts[-1] - cuts[0])
            room = self._cuts[number]
            if size + 2 > len(room):
                room = np.empty(size + 2, np.int64)
            inner = np.zeros(len(cuts), np.int64)
            _, _, words = self._loops.split(
                laid, cuts, 0, cuts[0], size + 1, *splitter.tables, room, inner
            )
            counts[first + 1 : part + 1] = inner[counts[first + 1 : part + 1]]
            cuts = room[: words + 1]
        return part, place, words, cuts, counts


@final
class _Segments:
    """Cuts where no token of the vocabulary holds the characters on both sides."""

    def __init__(
        self, loops: Any, files: TokenizerFiles, *, starts_words: bool
    ) -> None:
        self.mark = ord(MARK)
        self._loops = loops
        self._spaced = np.full(_POINTS, starts_words, np.uint8)
        self._ascii: UInt8 = np.zeros(_ASCII * _ASCII, np.uint8)
        self._bits: UInt64 = np.zeros(PAIR_WORDS, np.uint64)
        self._cuts = np.empty(BLOCK_BYTES + 2, np.int32)
        tables = kept_tables(files, "neighbours", lambda: _neighbours(files)) or {}
        left: Int64 = tables["left"]
        right: Int64 = tables["right"]
        if starts_words:
            is_kept = right != ord(" ")
            left = left[is_kept]
            right = right[is_kept]
        is_ascii = (left < _ASCII) & (right < _ASCII)
        self._ascii[left[is_ascii] * _ASCII + right[is_ascii]] = 1
        loops.add_pairs(self._bits, left[~is_ascii].copy(), right[~is_ascii].copy())

    def split(
        self, laid: UInt8, edges: Int64, part: int, place: int
    ) -> tuple[int, int, int, Int64, Int64]:
        counts = np.zeros(len(edges), np.int32)
        begin = place
        part, place, words = self._loops.cut(
            laid,
            edges,
            part,
            begin,
            BLOCK_BYTES,
            self._ascii,
            self._bits,
            self._spaced,
            self.mark,
            self._cuts,
            counts[1:],
        )
        cuts = self._cuts[: words + 1].astype(np.int64) + begin
        return part, place, words, cuts, counts.astype(np.int64)


def _neighbours(files: TokenizerFiles) -> Tables:
    """Return the code points that tokens of a vocabulary hold side by side: "left" and
    "right", int64[k] each.

    Every token that merges make is in the vocabulary; what else is there only costs
    cuts.
    """
    vocab: dict[str, int] = files.spec["model"]["vocab"]
    tokens = [token for token in vocab if token and token not in BYTE_TOKENS]
    text = "".join(tokens).replace(MARK, " ")
    characters = np.frombuffer(
        text.encode("utf-32-le", "surrogatepass"), np.uint32
    ).astype(np.int64)
    is_inside = np.ones(len(characters), np.bool_)
    is_inside[np.cumsum(np.array([len(token) for token in tokens], np.int64)) - 1] = (
        False
    )
    coded = np.unique((characters[:-1] * _POINTS + characters[1:])[is_inside[:-1]])
    left, right = np.divmod(coded, _POINTS)
    return {"left": left, "right": right}


def _combining_classes() -> UInt8:
    """Return the canonical combining class of each code point, 255 for those that NFC
    may change: uint8[0x110000].

    Python's tables serve for any version of Unicode: a text of characters that they
    know is normalized in an older version if it is so in theirs, because a version that
    does not know a mark takes it for one that joins nothing. What they do not know may
    change.
    """
    import unicodedata

    kinds = np.zeros(_POINTS, np.uint8)
    joined: set[int] = set()
    for point in range(_POINTS):
        character = chr(point)
        category = unicodedata.category(character)
        if category in ("Cn", "Co", "Cs"):
            kinds[point] = 255
            continue
        kinds[point] = unicodedata.combining(character)
        decomposition = unicodedata.decomposition(character)
        if decomposition and not decomposition.startswith("<"):
            pieces = decomposition.split(" ")
            if len(pieces) > 1:
                joined.add(int(pieces[1], 16))
            if unicodedata.normalize("NFC", character) != character:
                kinds[point] = 255
    # Vowels and final consonants of Hangul join what is before them.
    joined.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))
    kinds[sorted(joined)] = 255
    return kinds


def open_engine(
    files: TokenizerFiles,
    *,
    literal: bool,
    threads: bool,
    reference: ReferenceEngine | None,
) -> WordEngine:
    """Open the backend of cached words for a tokenizer; see
    :class:`tokenlake.etl.tokenizers.encoder.OpenEngine`.
    """
    return WordEngine(files, literal=literal, reference=reference)

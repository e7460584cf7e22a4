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
from tokenlake.etl.tokenizers.backends import ReferenceBackend, deliberate
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
from tokenlake.runtime.tokenizer_guard.adapter import (
    LibraryTokenizer,
    open_library_tokenizer,
)

BLOCK_BYTES: Final = 1 << 18
"""Bytes of text that are split, looked up and written while they are in the
processor's cache.
"""
# Bytes behind the last text, because the loops read eight at once.
_SLACK: Final = 8
_ASCII: Final = 128
_POINTS: Final = 0x110000
# Marks a code point that normalizing may change, in an array of combining classes.
_MAY_CHANGE: Final = 255


@final
class WordBackend:
    """The cached words of one tokenizer.json.

    Args:
        files: Tokenizer.
        literal: Whether special tokens are plain text.
        reference: Reference for the texts that are left to it; None to load it when it
            is needed.

    Raises:
        MissingExtraError: numba is not installed, or cannot compile the loops.
        TokenizerError: The tokenizer has a part that is not reproduced here.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        *,
        literal: bool = True,
        reference: ReferenceBackend | None = None,
    ) -> None:
        # 1. The compiled loops, and the rules by which the tokenizer splits.
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
        # 2. Everything that stays the same for all batches.
        self.files = files
        self._literal = literal
        self._reference = reference
        self._loops = loops
        self._rules = rules
        self._added = AddedTokens(loops, files, literal=literal)
        merger = Merger.of(loops, files, is_sentencepiece=rules.is_sentencepiece)
        self._table = WordTable(loops, merger, self.encode_words)
        self._one_thread = Lock()
        self._combining_classes: UInt8 | None = None
        if rules.composes:
            self._combining_classes = _combining_classes()
        self._stage: _Stage
        if rules.is_sentencepiece:
            self._stage = _Segments(loops, files, starts_words=rules.starts_words)
        else:
            self._stage = _Expressions(loops, rules.splitters)

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of valid UTF-8 without nulls, contiguous, from 0."""
        offsets, data = string_buffers(text)

        # 1. Give the texts that only the reference encodes exactly to it, and the
        #    others to this method again.
        parts, reference_rows = self._added.find(data, offsets)
        if self._combining_classes is not None:
            changed_rows = self._changed(text, self._combining_classes)
            reference_rows = np.union1d(reference_rows, changed_rows)
        if len(reference_rows):
            is_free = np.ones(len(text), np.bool_)
            is_free[reference_rows] = False
            encoded_rows = self._slow().encode(taken(text, reference_rows))
            free_rows = self.encode(select(text, is_free))
            return free_rows.inserted(encoded_rows, reference_rows)

        # 2. Encode the parts between added tokens.
        gets_space = np.full(len(parts.begins), self._rules.prefix == "every", np.uint8)
        if self._rules.prefix == "first":
            gets_space[parts.first[:-1]] = 1
        with self._one_thread:
            encoded = self._encode_parts(data, parts.begins, parts.stops, gets_space)

        # 3. Put the ids of the added tokens between those of the parts. The offset of a
        #    text then grows by the number of tokens before it.
        is_token = parts.after >= 0
        token_ids = parts.after[is_token]
        ids = encoded.ids
        if len(token_ids):
            ids = np.insert(ids, encoded.offsets[1:][is_token], token_ids)
        tokens_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_token)])
        return Ragged(ids, (encoded.offsets + tokens_before)[parts.first])

    def _changed(self, text: pa.LargeStringArray, combining_classes: UInt8) -> Int64:
        """Return the texts (int64[k], ascending) that normalizing changes."""
        offsets, data = string_buffers(text)
        unsure = np.zeros(len(text), np.uint8)
        self._loops.find_unsure(data, offsets.copy(), combining_classes, unsure)
        # The quick check is certain of most texts. The others are normalized.
        changed: list[int] = []
        for row in np.flatnonzero(unsure).tolist():
            row_text = str(text[row])
            if self._slow().normalized(row_text) != row_text:
                changed.append(row)
        return np.array(changed, np.int64)

    def _slow(self) -> ReferenceBackend:
        """Return the reference, which is loaded when a text first needs it."""
        if self._reference is None:
            self._reference = ReferenceBackend(self.files, literal=self._literal)
        return self._reference

    @cached_property
    def _library(self) -> LibraryTokenizer:
        """The reference implementation of the model alone."""
        return open_library_tokenizer(
            self.files.name, self._rules.model_alone(self.files)
        )

    def encode_words(self, words: list[str]) -> tuple[Int64, Int32]:
        """Return the ids of words by the reference implementation."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding words"):
            rows = self._library.encode(words, literal=True)
        offsets = offsets_of([len(row) for row in rows])
        return offsets, np.concatenate([np.empty(0, np.int32), *rows])

    def _encode_parts(
        self, data: UInt8, begins: Int64, stops: Int64, gets_space: Any
    ) -> Ragged:
        """Return the ids of parts of texts."""

        # 1. Copy the parts end to end, some with a space in front.
        part_count = len(begins)
        laid = np.empty(int((stops - begins).sum()) + part_count + _SLACK, np.uint8)
        edges = np.empty(part_count + 1, np.int64)
        once = self._rules.only_if_missing
        size = self._loops.lay_out(
            data, begins, stops, gets_space, once, self._stage.mark, laid, edges
        )

        # 2. Block by block, split them into words, look these up, and write their ids.
        #    The array begins with a guess of the number of ids, and doubles.
        ids = np.empty(size // 3 + 16, np.int32)
        offsets = np.zeros(part_count + 1, np.int64)
        part = 0
        byte_offset = 0
        write_offset = 0
        while part < part_count:
            first_part = part
            part, byte_offset, words, cuts, counts = self._stage.split(
                laid, edges, part, byte_offset
            )
            results, total = self._table.find(laid, cuts, words)
            if write_offset + total > len(ids):
                larger = np.empty(max(2 * len(ids), write_offset + total), np.int32)
                larger[:write_offset] = ids[:write_offset]
                ids = larger
            write_offset = self._loops.write_ids(
                results,
                words,
                self._table.ids,
                first_part,
                part,
                counts,
                ids,
                write_offset,
                offsets,
            )
        return Ragged(ids[:write_offset], offsets)


class _Stage(Protocol):
    """Splits parts of texts into words.

    Attributes:
        mark: Code point that counts as a space, -1 for none.
    """

    mark: int

    def split(
        self, laid: UInt8, edges: Int64, part: int, byte_offset: int
    ) -> tuple[int, int, int, Int64, Int64]:
        """Split a block of parts.

        Returns:
            The first part that is not finished, the byte at which the next block
            begins, the number of words, their edges, and for each part (from entry 1
            on) the number of words up to its end.
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
        self, laid: UInt8, edges: Int64, part: int, byte_offset: int
    ) -> tuple[int, int, int, Int64, Int64]:
        counts = np.zeros(len(edges), np.int64)
        first_part = part
        if not self._splitters:
            # Each part is a word. Empty parts hold none. A block has one part at least,
            # however long.
            block_end = int(np.searchsorted(edges, byte_offset + BLOCK_BYTES, "right"))
            end_part = min(max(block_end, part + 1), len(edges) - 1)
            is_filled = np.diff(edges[part : end_part + 1]) > 0
            cuts = np.append(edges[part:end_part][is_filled], edges[end_part])
            counts[part + 1 : end_part + 1] = np.cumsum(is_filled)
            return end_part, int(edges[end_part]), len(cuts) - 1, cuts, counts

        # 1. Split a block by the first expression.
        tables = self._splitters[0].tables
        cuts = self._cuts[0]
        part, byte_offset, words = self._loops.split(
            laid, edges, part, byte_offset, BLOCK_BYTES, *tables, cuts, counts
        )
        cuts = cuts[: words + 1]

        # 2. Split its pieces by each of the others. These see the block as a whole, so
        #    the limit lies behind it. The number of pieces up to the end of a part is
        #    read at the number that the split before gave.
        for split_number, splitter in enumerate(self._splitters[1:], 1):
            block_size = int(cuts[-1] - cuts[0])
            inner_cuts = self._cuts[split_number]
            if block_size + 2 > len(inner_cuts):
                inner_cuts = np.empty(block_size + 2, np.int64)
            inner_counts = np.zeros(len(cuts), np.int64)
            _, _, words = self._loops.split(
                laid,
                cuts,
                0,
                cuts[0],
                block_size + 1,
                *splitter.tables,
                inner_cuts,
                inner_counts,
            )
            counts[first_part + 1 : part + 1] = inner_counts[
                counts[first_part + 1 : part + 1]
            ]
            cuts = inner_cuts[: words + 1]
        return part, byte_offset, words, cuts, counts


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
        # The pairs of characters that tokens hold; of ASCII in a table, the others in a
        # set of hashes.
        tables = kept_tables(files, "neighbours", lambda: _neighbours(files)) or {}
        left: Int64 = tables["left"]
        right: Int64 = tables["right"]
        if starts_words:
            # A space begins a word, whatever tokens hold one inside.
            is_not_space = right != ord(" ")
            left = left[is_not_space]
            right = right[is_not_space]
        is_ascii = (left < _ASCII) & (right < _ASCII)
        self._ascii[left[is_ascii] * _ASCII + right[is_ascii]] = 1
        loops.add_pairs(self._bits, left[~is_ascii].copy(), right[~is_ascii].copy())

    def split(
        self, laid: UInt8, edges: Int64, part: int, byte_offset: int
    ) -> tuple[int, int, int, Int64, Int64]:
        counts = np.zeros(len(edges), np.int32)
        # The loop of the segment cache has int32 cuts that begin at the block.
        block_start = byte_offset
        part, byte_offset, words = self._loops.cut(
            laid,
            edges,
            part,
            block_start,
            BLOCK_BYTES,
            self._ascii,
            self._bits,
            self._spaced,
            self.mark,
            self._cuts,
            counts[1:],
        )
        cuts = self._cuts[: words + 1].astype(np.int64) + block_start
        return part, byte_offset, words, cuts, counts.astype(np.int64)


def _neighbours(files: TokenizerFiles) -> Tables:
    """Return the code points that tokens of a vocabulary hold side by side.

    Every token that merges make is in the vocabulary. Other tokens of it only cost
    cuts.

    Returns:
        "left" and "right": int64[k] each, the distinct pairs.
    """
    vocab: dict[str, int] = files.spec["model"]["vocab"]
    tokens = [token for token in vocab if token and token not in BYTE_TOKENS]
    characters_text = "".join(tokens).replace(MARK, " ")
    points = np.frombuffer(
        characters_text.encode("utf-32-le", "surrogatepass"), np.uint32
    ).astype(np.int64)
    # The tokens lie end to end: the last character of one makes no pair with the first
    # of the next.
    token_sizes = np.array([len(token) for token in tokens], np.int64)
    is_inside = np.ones(len(points), np.bool_)
    is_inside[np.cumsum(token_sizes) - 1] = False
    pair_codes = np.unique((points[:-1] * _POINTS + points[1:])[is_inside[:-1]])
    left, right = np.divmod(pair_codes, _POINTS)
    return {"left": left, "right": right}


def _combining_classes() -> UInt8:
    """Return the canonical combining class of each code point: uint8[0x110000].

    255 marks code points that NFC may change.

    Python's tables serve for any version of Unicode. A text of characters that they
    know is normalized in an older version if it is so in theirs, because a version that
    does not know a mark takes it for one that joins nothing. Characters that they do
    not know may change.
    """
    import unicodedata

    classes = np.zeros(_POINTS, np.uint8)
    joining_points: set[int] = set()
    for point in range(_POINTS):
        character = chr(point)
        category = unicodedata.category(character)
        if category in ("Cn", "Co", "Cs"):
            # Unassigned, private or a surrogate.
            classes[point] = _MAY_CHANGE
            continue
        classes[point] = unicodedata.combining(character)
        decomposition = unicodedata.decomposition(character)
        # A canonical decomposition into two characters is composed again by NFC if the
        # second one follows the first. A "<" begins one of compatibility only.
        if decomposition and not decomposition.startswith("<"):
            decomposed_points = decomposition.split(" ")
            if len(decomposed_points) > 1:
                joining_points.add(int(decomposed_points[1], 16))
            if unicodedata.normalize("NFC", character) != character:
                classes[point] = _MAY_CHANGE
    # Vowels and final consonants of Hangul join what is before them.
    joining_points.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))
    classes[sorted(joining_points)] = _MAY_CHANGE
    return classes


def open_backend(
    files: TokenizerFiles,
    *,
    literal: bool,
    threads: bool,
    reference: ReferenceBackend | None,
) -> WordBackend:
    """Open the backend of cached words for a tokenizer.

    See :class:`tokenlake.etl.tokenizers.encoder.OpenBackend`.
    """
    return WordBackend(files, literal=literal, reference=reference)

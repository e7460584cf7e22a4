"""Segment cache: cut texts where no ids change, and look the segments up.

**Byte pair encoding in SentencePiece's style** (Llama 1 and 2, Mistral, Gemma, Phi-3,
TinyLlama) has no pre-tokenizer: by definition the whole text is one word, in which
neighbours are merged, the pair of the lowest rank first. Yet where no token of the
vocabulary holds two neighbouring characters side by side, no merge joins them. A merge
that joined what lies left of the cut with what lies right of it would make a token that
holds both. So all merges happen on one side of the cut; those of one side neither
enable nor prevent those of the other, and in each of them the order of ranks is the
order of the whole. Hence the ids of the whole are the ids of the parts, end to end. (A
character that the vocabulary lacks becomes the tokens of its bytes, with which nothing
merges: there is a cut on both of its sides.)

Example: in a vocabulary with the tokens "ab" and " c", but none in which a "b" stands
beside a space, "ab cab" is cut into "ab", " c" and "ab": no token holds "ca" either.

**WordPiece and Unigram** (BERT, ELECTRA; T5, XLM-R, ALBERT) make the ids of every word
by itself. So a text can be cut where a word ends whatever lies around, if normalizing
does not reach over the cut. BERT's normalizer changes each character, or a letter and
its marks, and its words end at white space and at every sign: cuts are between two
ASCII characters of which one is a space or a sign, and none is a control character,
which is dropped. With Unigram a cut is before the space, or what normalizing makes one,
that follows a letter, digit or sign which normalizing keeps: all white space that comes
together is on one side, with the marks on it, and what follows begins with a space, as
if one had been put before it.

Such segments are short, and nearly all of them were met before: 1% are distinct. So ids
are looked up by bytes in a table, and made once for each distinct segment: merged,
searched (Unigram's words of plain ASCII) or asked of the reference. Pairs of ASCII are
looked up in a table of 128 x 128; others in a set of hashes, in which a collision only
costs a cut.

SentencePiece's spaces become U+2581; one may be put before a text, which byte pair
encoding does before it is cut. An added token parts a text into pieces, each of which
`tokenizers` takes for itself, and so does this. Segments of more than :data:`LONGEST`
bytes go to another backend.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, Final, final
from unicodedata import category

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from tokenlake.base.arrays import (
    Bools,
    Int32,
    Int64,
    Ragged,
    offsets_of,
    string_buffers,
    text_over,
)
from tokenlake.errors import MissingExtraError, TokenizerError
from tokenlake.etl.tokenizers.allowlist import flat, merge_pairs, model_type
from tokenlake.etl.tokenizers.backends import GigatokenBackend, ReferenceBackend
from tokenlake.etl.tokenizers.files import TOKENIZER_JSON, TokenizerFiles
from tokenlake.etl.tokenizers.kernel_constants import MARK, PAIR_WORDS
from tokenlake.runtime.tokenizer_guard.generation import OLDER, exports_parts

LONGEST: Final = 1024
"""Bytes of the longest segment that is merged here: the time grows with the square
of the length.
"""
BLOCK_BYTES: Final = 1 << 19
"""Bytes of text that are cut, looked up and written while they are in the
processor's cache.
"""
# Slots of a new table and of the largest one, 32 bytes each. At most half of them are
# used, so that a search ends after few steps.
_SMALL: Final = 1 << 16
_LARGE: Final = 1 << 20
_MOST_KEYS: Final = 1 << 26
"""Bytes of all segments in a table from which on it is emptied."""
_SPACE: Final = " "
_MARK: Final = "\u2581"
_POINTS: Final = 0x110000
# The scripts that are written with spaces. U+0D4E is the one letter among them that
# belongs to the letter behind it.
_ALPHABETS: Final = 0x2000
_HANGUL: Final = range(0xAC00, 0xD7A4)
_PREPENDED: Final = 0x0D4E
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
_UNKNOWN_COSTS: Final = 10.0
"""Difference between the lowest score and that of a character that no piece spells."""
_ASCII: Final = 128
# A normalizer that only writes the mark, and puts none in front.
_BARE: Final[Any] = {"type": "Replace", "pattern": {"String": _SPACE}, "content": _MARK}


@final
class SegmentBackend:
    """The segment cache of one tokenizer.json.

    Args:
        files: Tokenizer of the allow-list, of SentencePiece's style, WordPiece or
            Unigram.
        literal: Whether special added tokens are left out, so that their strings are
            plain text.

    Raises:
        MissingExtraError: numba is not installed, or has no folder for what it
            compiles.
        TokenizerError: It is WordPiece or Unigram, and the installed `tokenizers` does
            not export parts.
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool = True) -> None:
        # 1. The compiled loops.
        try:
            from tokenlake.etl.tokenizers import segment_kernels
        except ImportError as error:
            raise MissingExtraError(
                "tokenizer backend 'segments' needs its packages: pip install 'tokenlake[etl]'"
            ) from error
        except RuntimeError as error:
            # numba found no folder to write to.
            raise MissingExtraError(
                f"tokenizer backend 'segments' cannot store its compiled code: {error}; set NUMBA_CACHE_DIR "
                "to a folder that can be written"
            ) from error
        if model_type(files) != "BPE" and not exports_parts():
            raise TokenizerError(
                f"tokenizer {files.name!r}: the backend 'segments' reads the parts of a {model_type(files)} tokenizer, "
                f"which the installed tokenizers does not export; use tokenizer_backend: tokenizers, or {OLDER}",
                tokenizer=files.name,
            )
        self.files = files
        self._run: Any = segment_kernels

        # 2. The added tokens, end to end, with their ids.
        added = files.matched_tokens(literal=literal)
        contents = [token.encode() for token in added]
        self._added_ids = np.array([files.token_id(token) for token in added], np.int32)
        self._added_edges = offsets_of([len(content) for content in contents])
        self._added = np.frombuffer(bytearray(b"".join(contents)), np.uint8)
        self._first_bytes = np.zeros(256, np.uint8)
        for content in contents:
            self._first_bytes[content[0]] = 1

        # 3. The model, the table, and arrays that every block uses again.
        model_class = _Merges if model_type(files) == "BPE" else _Words
        self._model = model_class(files, literal, segment_kernels)
        self._one_thread = Lock()
        self._restart(_SMALL)
        self._cuts = np.empty(BLOCK_BYTES + 2, np.int32)
        self._slots = np.empty(BLOCK_BYTES, np.int32)
        self._new = np.empty(BLOCK_BYTES, np.int32)

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of valid UTF-8 without nulls, contiguous, from 0."""
        offsets, data = string_buffers(text)
        # Copies, because one layout has one compiled form of each loop.
        begins = offsets[:-1].copy()
        stops = offsets[1:].copy()

        # 1. Find the added tokens: the place, the row and the number of each.
        if not len(self._added_ids):
            return self._encoded(data, begins, stops, np.arange(len(text)))
        # Tokens do not overlap, so the shortest one bounds their number.
        text_bytes = int(offsets[-1] - offsets[0])
        most_tokens = text_bytes // int(np.diff(self._added_edges).min()) + 1
        token_places, rows, numbers = np.empty((3, most_tokens), np.int64)
        count = self._run.find_tokens(
            data,
            begins,
            stops,
            self._added,
            self._added_edges,
            self._first_bytes,
            token_places,
            rows,
            numbers,
        )
        if count == 0:
            return self._encoded(data, begins, stops, np.arange(len(text)))
        token_places = token_places[:count]
        rows = rows[:count]
        numbers = numbers[:count]

        # 2. A text with k added tokens is k + 1 pieces. Both borders ascend, so sorting
        #    pairs them.
        token_ends = token_places + np.diff(self._added_edges)[numbers]
        tokens_before = np.searchsorted(rows, np.arange(len(offsets)))
        first_pieces = tokens_before + np.arange(len(offsets))
        begins = np.sort(np.concatenate([begins, token_ends]))
        stops = np.sort(np.concatenate([stops, token_places]))
        pieces = self._encoded(data, begins, stops, first_pieces[:-1])

        # 3. Put the ids of the tokens between those of the pieces.
        after_piece = pieces.offsets[np.arange(count) + rows + 1]
        ids = np.insert(pieces.ids, after_piece, self._added_ids[numbers])
        return Ragged(ids, pieces.offsets[first_pieces] + tokens_before)

    def _encoded(
        self, data: UInt8, starts: Int64, stops: Int64, first_pieces: Int64
    ) -> Ragged:
        """Return the ids of n pieces of texts.

        Args:
            data: uint8, the texts.
            starts, stops: int64[n], byte offsets of the pieces.
            first_pieces: int64[m], pieces that begin a text.
        """
        with self._one_thread:
            try:
                return self._encode(data, starts, stops, first_pieces)
            except BaseException:
                # New segments are in the table before they have ids; a later text would
                # find them without ids.
                self._restart(_SMALL)
                raise

    def _encode(
        self, data: UInt8, begins: Int64, stops: Int64, first_pieces: Int64
    ) -> Ragged:
        """Return the ids of pieces; see :meth:`_encoded`, which holds the lock."""
        model = self._model
        rows = len(begins)

        # 1. Copy the pieces end to end, some with a space in front.
        gets_space = np.full(rows, model.prefix == "every", np.uint8)
        if model.prefix == "first":
            gets_space[first_pieces] = 1
        # Eight bytes are read at once, wherever a segment begins.
        laid = np.empty(int((stops - begins).sum()) + rows + 8, np.uint8)
        starts = np.empty(rows + 1, np.int64)
        size = self._run.lay_out(
            data, begins, stops, gets_space, model.once, MARK, laid, starts
        )

        # 2. Block by block, cut them into segments, look these up, and write their ids.
        ids = np.empty(size + 2, np.int32)
        offsets = np.zeros(rows + 1, np.int64)
        ends = np.empty(rows, np.int32)
        rule = (model.ascii, model.bits, model.spaced, model.mark)
        row = 0
        byte_offset = 0
        id_count = 0
        while row < rows:
            first_row = row
            block_start = byte_offset
            row, byte_offset, count = self._run.cut(
                laid, starts, row, block_start, BLOCK_BYTES, *rule, self._cuts, ends
            )
            self._look_up(laid, block_start, byte_offset - block_start, count)
            # The loop that writes may write two ids more than there are.
            new_ids = self._run.count_ids(self._table, self._slots, count)
            ids = _with_room(ids, id_count, new_ids + 2)
            id_count = self._run.write(
                self._table,
                self._slots,
                count,
                self._ids,
                ids,
                id_count,
                first_row,
                row,
                ends,
                offsets,
            )
        return Ragged(ids[:id_count], offsets)

    def _look_up(
        self, laid: npt.NDArray[np.uint8], begin: int, size: int, count: int
    ) -> None:
        """Find the slots of the segments of a block, and give new ones their ids."""
        self._make_room(size, count)
        keys_before = self._keys_used
        self._keys_used, new_count = self._run.look_up(
            laid,
            begin,
            self._cuts,
            count,
            self._table,
            self._keys,
            keys_before,
            self._slots,
            self._new,
        )
        self._segments += new_count
        new = self._new[:new_count]
        self._ids_used = self._model.make(
            self._table, new, self._keys, self._ids, self._ids_used
        )
        # Segments that the model cannot encode here go to another backend.
        without_ids = new[self._table[new, 1] >> np.uint64(32) == 0]
        if len(without_ids):
            self._ask(without_ids)

    def _ask(self, new_slots: Int32) -> None:
        """Give new segments the ids of another backend."""
        starts = self._table[new_slots, 2].astype(np.int64)
        sizes = (self._table[new_slots, 1] & np.uint64(0xFFFFFFFF)).astype(np.int64)
        texts: list[bytes] = []
        for start, size in zip(starts, sizes, strict=True):
            texts.append(self._keys[start : start + size].tobytes())
        offsets = offsets_of([len(text) for text in texts])
        encoded = self._model.bare.encode(
            text_over(offsets, pa.py_buffer(b"".join(texts)))
        )
        self._ids = _with_room(self._ids, self._ids_used, len(encoded.ids) + 2)
        self._ids_used = self._run.put_given(
            self._table,
            new_slots,
            encoded.offsets,
            encoded.ids,
            self._ids,
            self._ids_used,
        )

    def _make_room(self, size: int, count: int) -> None:
        """Make room for a block of which all segments are new.

        Args:
            size: Bytes of the block.
            count: Number of its segments.
        """
        # 1. A full table is emptied. Segments that come again are encoded again.
        if self._segments + count > self._model.most or self._keys_used > _MOST_KEYS:
            self._restart(len(self._table))

        # 2. A table of which more than half would be used is enlarged.
        capacity = len(self._table)
        while self._segments + count > capacity // 2:
            capacity *= 2
        if capacity > len(self._table):
            larger = np.zeros((capacity, 4), np.uint64)
            self._run.move(self._table, larger, self._keys)
            self._table = larger

        # 3. A segment of n bytes has at most n ids. The loops read eight bytes at once,
        #    and write two ids at once.
        self._keys = _with_room(self._keys, self._keys_used, size + 8)
        self._ids = _with_room(self._ids, self._ids_used, size + 2)

    def _restart(self, capacity: int) -> None:
        """Empty the table, with a number of slots."""
        self._table = np.zeros((capacity, 4), np.uint64)
        self._segments = 0
        # The bytes of the segments, and their ids.
        self._keys = np.empty(1 << 16, np.uint8)
        self._keys_used = 0
        self._ids = np.empty(1 << 16, np.int32)
        self._ids_used = 0


@final
class _Words:
    """WordPiece and Unigram, whose words are independent.

    New words are searched here, or encoded by the reference.

    This class and :class:`_Merges` decide how the texts of a tokenizer are cut, and
    give new segments their ids.

    Attributes:
        prefix: Pieces of a text that get a space in front: "every", "never" or "first".
        once: Whether a piece that begins with a space gets none.
        mark: Code point that counts as a space, -1 for none.
        ascii: uint8[128 * 128], 1 for two characters that may not be parted.
        bits: Set of the other pairs that may not be parted.
        spaced: uint8[0x110000], 1 for each code point beyond ASCII that is always
            parted from a space behind it.
        most: Largest number of segments in the table.
        bare: Backend for segments that :meth:`make` gives no ids.
    """

    prefix = "never"
    once = False

    def __init__(self, files: TokenizerFiles, literal: bool, run: Any) -> None:
        self._files = files
        self._literal = literal
        # The table is larger than that of merges, because the reference takes 100 times
        # as long as a merge.
        self.most = 2 * _LARGE
        self._pieces = None

        # 1. No pair beyond ASCII is parted, except before a space.
        self.bits = np.full(PAIR_WORDS, np.uint64(0xFFFFFFFFFFFFFFFF))
        stays = self._stays()
        self.spaced = stays.astype(np.uint8)

        # 2. ASCII pairs that are parted: around every sign with WordPiece, before a
        #    space that follows a character which stays with Unigram.
        if model_type(files) == "WordPiece":
            self.mark = -1
            is_parted = _parted_words()
        else:
            self.mark = MARK
            is_parted = np.zeros((_ASCII, _ASCII), np.bool_)
            blanks: list[int] = []
            for point in range(_ASCII):
                if self._normalized(chr(point)) in (_SPACE, _MARK):
                    blanks.append(point)
            is_parted[:, blanks] = stays[:_ASCII, None]
            self._pieces = self._searched(blanks)
        self.ascii = np.where(is_parted, 0, 1).astype(np.uint8).reshape(-1)

    def make(
        self, table: UInt64, new: Int32, keys: UInt8, ids: Int32, used: int
    ) -> int:
        """Give ids to new segments for which a search is enough.

        Returns:
            The number of entries of `ids` in use now.
        """
        if self._pieces is None:
            return used
        from tokenlake.etl.tokenizers import unigram_kernels

        return unigram_kernels.search_new(table, new, keys, ids, used, *self._pieces)

    def _normalized(self, character: str) -> str:
        """Return a character as the tokenizer's normalizer changes it."""
        return self.bare.normalized(character)

    def _searched(self, blanks: list[int]) -> tuple[Any, ...] | None:
        """Return the tables and the room for the search of Unigram.

        Args:
            blanks: ASCII code points that normalizing makes a space of.

        Returns:
            Arguments of :func:`unigram_kernels.search_new` from `branches` on; None if
            the pre-tokenizer makes another word of "space and letter" than the letter,
            alone or with one mark in front.
        """
        from tokenlake.etl.tokenizers.unigram_kernels import add_pieces

        library = self.bare.library.raw
        # As `tokenizers` read it: of some scores its last bit is another than in the
        # file, which decides between sums.
        model: dict[str, Any] = orjson.loads(library.to_str())["model"]
        pre_tokenized = library.pre_tokenizer.pre_tokenize_str(f"{_SPACE}a")
        words = [word for word, _ in pre_tokenized]
        if words not in ([f"{_MARK}a"], ["a"]):
            return None
        word_prefix = np.frombuffer(words[0][:-1].encode(), np.uint8)

        # 1. The tree of the pieces, and their scores.
        pieces = [piece.encode() for piece, _ in model["vocab"]]
        offsets = offsets_of([len(piece) for piece in pieces])
        size = int(offsets[-1])
        branches = np.zeros((1 << (2 * size).bit_length(), 2), np.uint64)
        pieces_of_nodes = np.full(size + 1, -1, np.int32)
        add_pieces(
            branches,
            np.frombuffer(b"".join(pieces), np.uint8),
            offsets,
            pieces_of_nodes,
        )
        scores = np.array([score for _, score in model["vocab"]], np.float64)
        scores = np.append(scores, scores.min() - _UNKNOWN_COSTS)
        unknown_id = -1
        if model.get("unk_id") is not None:
            unknown_id = model["unk_id"]

        # 2. Room for the bytes, the sums and the steps of the longest word.
        word_bytes = np.empty(LONGEST, np.uint8)
        best_totals = np.empty(LONGEST + 1)
        best_steps = np.empty((LONGEST + 1, 2), np.int32)
        return (
            branches,
            pieces_of_nodes,
            scores,
            unknown_id,
            self._plain(blanks),
            word_prefix,
            word_bytes,
            best_totals,
            best_steps,
        )

    def _plain(self, blanks: list[int]) -> UInt8:
        """Return the kinds of bytes that the search distinguishes: uint8[256].

        1 for printable ASCII characters that normalizing does not change, 2 for
        characters that become a space, 0 for all others.
        """
        # A character of a replaced text may stay alone, but change beside others.
        replaced = ""
        for part in flat(self._files.spec.get("normalizer"), "normalizers"):
            if part["type"] == "Replace":
                replaced += part["pattern"].get("String", "")
        plain = np.zeros(256, np.uint8)
        for point in range(ord("!"), _ASCII - 1):
            character = chr(point)
            is_unchanged = self._normalized(character) == character
            plain[point] = is_unchanged and character not in replaced
        plain[blanks] = 2
        return plain

    def _stays(self) -> Bools:
        """Return the characters after which a space begins a segment: bool[0x110000].

        They are letters, digits and signs that normalizing neither drops nor makes a
        space of.
        """
        stays = np.zeros(_POINTS, np.bool_)
        for point in chain(range(_ALPHABETS), _HANGUL):
            character = chr(point)
            # Letters, numbers, punctuation and symbols.
            if point == _PREPENDED or category(character)[0] not in "LNPS":
                continue
            normalized = self._normalized(character)
            is_visible = normalized != "" and normalized.isprintable()
            has_blank = _SPACE in normalized or _MARK in normalized
            stays[point] = is_visible and not has_blank
        return stays

    @cached_property
    def bare(self) -> ReferenceBackend:
        """The reference, for segments that the search leaves without ids."""
        return ReferenceBackend(self._files, literal=self._literal)


def _parted_words() -> Bools:
    """Return the ASCII pairs that BERT's pre-tokenizer parts: bool[128, 128].

    It parts all but two letters or digits. A control character is no side of a cut,
    because the normalizer drops it, and its neighbours may then belong together.
    """
    is_letter = np.array([chr(point).isalnum() for point in range(_ASCII)])
    is_printable = np.array([chr(point).isprintable() for point in range(_ASCII)])
    is_space = np.isin(np.arange(_ASCII), [ord(character) for character in " \t\n\r"])
    stays = is_space | is_printable
    are_letters = is_letter[:, None] & is_letter
    return stays[:, None] & stays & ~are_letters


@final
class _Merges:
    """Byte pair encoding without a pre-tokenizer.

    A text is cut between characters that no merge joins, and new segments are merged.
    Attributes are those of :class:`_Words`.
    """

    def __init__(self, files: TokenizerFiles, _literal: bool, run: Any) -> None:
        self._files = files
        self._run = run
        self.mark = MARK
        self.most = _LARGE // 2

        # The pre-tokenizer is Metaspace or none. Without one, a normalizer of several
        # steps begins with one that puts the mark in front.
        stage: dict[str, Any] = files.spec.get("pre_tokenizer") or {}
        normalizer: dict[str, Any] = files.spec.get("normalizer") or {}
        self._split = bool(stage.get("split"))
        self.spaced = np.full(_POINTS, self._split, np.uint8)
        self.once = bool(stage)
        self.prefix = "never"
        if stage:
            self.prefix = stage["prepend_scheme"]
        if self.prefix == "always" or (
            not stage and normalizer.get("type") == "Sequence"
        ):
            self.prefix = "every"
        self._pairs()
        self._vocabulary()

    def _pairs(self) -> None:
        """Collect the pairs of neighbouring characters in all merged tokens."""
        self.ascii: UInt8 = np.zeros(_ASCII * _ASCII, np.uint8)
        self.bits: npt.NDArray[np.uint64] = np.zeros(PAIR_WORDS, np.uint64)
        tokens = [left + right for left, right in self._merged]
        points = np.frombuffer(
            "".join(tokens).replace(_MARK, _SPACE).encode("utf-32-le"), np.uint32
        )

        # 1. The distinct pairs. The tokens lie end to end: the last character of one
        #    makes no pair with the first of the next.
        token_sizes = np.array([len(token) for token in tokens], np.int64)
        is_inside = np.ones(len(points), np.bool_)
        is_inside[np.cumsum(token_sizes) - 1] = False
        pair_codes = points[:-1].astype(np.int64) * _POINTS + points[1:]
        pairs = np.stack(np.divmod(np.unique(pair_codes[is_inside[:-1]]), _POINTS))
        if self._split:
            # No token reaches over the beginning of a word.
            pairs = pairs[:, pairs[1] != ord(_SPACE)]

        # 2. ASCII in a table, the others in a set of hashes.
        ascii_only = (pairs < _ASCII).all(axis=0)
        self.ascii[pairs[0, ascii_only] * _ASCII + pairs[1, ascii_only]] = 1
        # One layout, and so one compiled form of each loop: processes that compile at
        # once share a cache on disk.
        self._run.add_pairs(self.bits, *np.ascontiguousarray(pairs[:, ~ascii_only]))

    def _vocabulary(self) -> None:
        """Lay out the ids of characters and bytes, and the merges."""
        # 1. Characters. One without an id becomes the ids of its bytes.
        vocab: dict[str, int] = self._files.spec["model"]["vocab"]
        points = np.full(_POINTS, -1, np.int32)
        for token, index in vocab.items():
            if len(token) == 1:
                points[ord(token)] = index
        points[ord(_SPACE)] = points[ord(_MARK)]
        byte_ids = np.array([vocab[f"<0x{byte:02X}>"] for byte in range(256)], np.int32)

        # 2. Merges: the ids of the left, the right and the joined token, in a table of
        #    which at most a quarter is used.
        triples: list[tuple[int, int, int]] = []
        for left, right in self._merged:
            triples.append((vocab[left], vocab[right], vocab[left + right]))
        merge_ids = np.array(triples, np.int32).reshape(-1, 3)
        capacity = 1 << max(4, (4 * len(triples)).bit_length())
        merges = np.zeros((capacity, 2), np.uint64)
        self._run.add_merges(merges, *np.ascontiguousarray(merge_ids.T))
        self._merging = points, byte_ids, merges, np.empty(LONGEST, np.int64)

    def make(
        self, table: UInt64, new: Int32, keys: UInt8, ids: Int32, used: int
    ) -> int:
        """Give ids to new segments that are not too long.

        Returns:
            The number of entries of `ids` in use now.
        """
        return self._run.merge_new(table, new, keys, ids, used, *self._merging)

    @cached_property
    def _merged(self) -> list[tuple[str, str]]:
        """The pairs of tokens that are merged, in order of rank."""
        return [(left, right) for left, right in merge_pairs(self._files.spec["model"])]

    @cached_property
    def bare(self) -> GigatokenBackend:
        """gigatoken for segments that are too long; it puts nothing in front."""
        spec = {
            **self._files.spec,
            "normalizer": _BARE,
            "pre_tokenizer": None,
            "added_tokens": [],
        }
        json_bytes = orjson.dumps(spec)
        return GigatokenBackend(
            TokenizerFiles(name=self._files.name, files={TOKENIZER_JSON: json_bytes})
        )


def _with_room(array: npt.NDArray[Any], used: int, additional: int) -> npt.NDArray[Any]:
    """Return an array with room for additional entries behind the first `used` ones.

    It is the same array if that is large enough, else a copy of twice the size.
    """
    if used + additional <= len(array):
        return array
    larger = np.empty(max(2 * len(array), used + additional), array.dtype)
    larger[:used] = array[:used]
    return larger


def open_backend(
    files: TokenizerFiles,
    *,
    literal: bool,
    threads: bool,
    reference: ReferenceBackend | None,
) -> SegmentBackend:
    """Open the segment cache for a tokenizer.

    See :class:`tokenlake.etl.tokenizers.encoder.OpenBackend`.
    """
    return SegmentBackend(files, literal=literal)

"""Encode new words by their merges: ten times as fast as by the reference.

Byte pair encoding:

1. A word becomes the ids of its bytes, or of its characters.
2. Of all neighbours the pair with the lowest rank is merged, the leftmost of several.
3. This is repeated until no pair has a rank.

Example: the merges "h e" (rank 0), "l l" (1) and "he ll" (2) make of "hello" first
"he l l o", then "he ll o", then "hell o".

The ids follow from this alone if every character has an id, no pair has two ranks, and
the model does not mark where words begin or end. The gate compares the ids with the
reference's before a build, and samples are compared while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self, final

import numpy as np

from tokenlake.base.arrays import Int32, Int64, UInt8, offsets_of
from tokenlake.etl.tokenizers.allowlist import merge_pairs
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.kernel_constants import FILTER_WORDS
from tokenlake.etl.tokenizers.words.kept import Tables, kept_tables
from tokenlake.etl.tokenizers.words.rules import MARK
from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters

LONGEST_MERGED: Final = 2048
"""Bytes of the longest word that is merged: the time grows with the square of the
length.
"""
_POINTS: Final = 0x110000
_BYTES: Final = 256


@final
class Merger:
    """The merges of one tokenizer.

    Args:
        loops: Compiled loops, see :func:`tokenlake.etl.tokenizers.words.native.loops`.
        tables: Result of :func:`_tables_of`.

    Attributes:
        has_each_pair_once: Whether no two merges join the same pair.
    """

    def __init__(self, loops: Any, tables: Tables) -> None:
        self._loops = loops
        # 1. The id of each character, -1 for one that becomes the ids of its bytes.
        self._points = np.full(_POINTS, -1, np.int32)
        self._points[tables["characters"]] = tables["character_ids"]
        self._byte_ids: Int32 = tables["byte_ids"]

        # 2. The merges. A pair that has two ranks takes one slot of the table. The
        #    capacity is a power of two, of which at most half is used.
        merge_count = len(tables["joined"])
        self._merges = np.zeros(
            (1 << max(4, (2 * merge_count).bit_length()), 2), np.uint64
        )
        self._bits = np.zeros(FILTER_WORDS, np.uint64)
        loops.add_merges(
            self._merges, self._bits, tables["left"], tables["right"], tables["joined"]
        )
        self.has_each_pair_once = (
            int(np.count_nonzero(self._merges[:, 1])) == merge_count
        )

        # 3. Where only bytes have ids, the first look-ups of a word are read from a
        #    table of all pairs of bytes.
        self._byte_pairs: Int64 = np.empty(0, np.int64)
        if not len(tables["characters"]):
            self._byte_pairs = np.empty(_BYTES * _BYTES, np.int64)
            loops.fill_byte_pairs(
                self._merges, self._bits, self._byte_ids, self._byte_pairs
            )
        self._ranks = np.empty(LONGEST_MERGED, np.int64)

        # 4. The words that have an id as a whole, whatever the merges make of them, and
        #    a table of their numbers.
        self._whole_ids: Int32 = tables["whole_ids"]
        self._whole_edges: Int64 = tables["whole_edges"]
        self._whole_data: UInt8 = tables["whole_data"]
        capacity = 1 << (2 * len(self._whole_ids) + 2).bit_length()
        self._whole_slots = np.zeros(capacity, np.int32)
        loops.add_whole_words(self._whole_data, self._whole_edges, self._whole_slots)

    @classmethod
    def of(
        cls, loops: Any, files: TokenizerFiles, *, is_sentencepiece: bool
    ) -> Self | None:
        """Return the merges of a tokenizer.

        None if the ids do not follow from its vocabulary and merges alone.
        """
        tables = kept_tables(
            files,
            f"merges {is_sentencepiece}",
            lambda: _tables_of(files, is_sentencepiece=is_sentencepiece),
        )
        if tables is None:
            return None
        merger = cls(loops, tables)
        if not merger.has_each_pair_once:
            return None
        return merger

    def encode(
        self, laid: UInt8, cuts: Int64, new: Int64
    ) -> tuple[Int64, Int32] | None:
        """Return the ids of words by merging.

        Args:
            laid: Texts, with at least eight bytes behind the last word.
            cuts: Edges of all words.
            new: int64[n], numbers of the words to encode.

        Returns:
            Offsets (int64[n + 1]) and ids (int32[total]); None if a word is too long.
        """
        sizes = cuts[new + 1] - cuts[new]
        if sizes.max(initial=0) > LONGEST_MERGED:
            return None
        ids = np.empty(int(sizes.sum()), np.int32)
        offsets = np.zeros(len(new) + 1, np.int64)
        total = self._loops.merge_words(
            laid,
            cuts,
            new,
            self._whole_data,
            self._whole_edges,
            self._whole_slots,
            self._whole_ids,
            self._points,
            self._byte_ids,
            self._byte_pairs,
            self._merges,
            self._bits,
            self._ranks,
            offsets,
            ids,
        )
        return offsets, ids[:total]


def _tables_of(files: TokenizerFiles, *, is_sentencepiece: bool) -> Tables | None:
    """Return the tables that merging needs of a tokenizer.

    Returns:
        None if the ids of a word do not follow from them alone. Else:

        - left, right, joined: int32[merges], the ids of each merge's pair and the id
        that
          it becomes, in order of rank.
        - byte_ids: int32[256], the id of each byte.
        - characters, character_ids: int64[k] and int32[k], the characters that have an
          id; empty where only bytes have.
        - whole_data, whole_edges, whole_ids: uint8[total + 8], int64[n + 1] and
        int32[n],
          words that have an id as a whole, whatever the merges make of them.
    """
    model = files.spec["model"]
    vocab: dict[str, int] = model["vocab"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    pairs = merge_pairs(model)
    if any(len(pair) != 2 for pair in pairs):
        return None

    byte_ids = np.full(_BYTES, -1, np.int32)
    characters: dict[int, int] = {}
    whole_words: dict[bytes, int] = {}
    try:
        # 1. The ids of characters and bytes.
        if is_sentencepiece:
            characters = _character_ids(vocab)
            for byte in range(_BYTES):
                byte_ids[byte] = vocab.get(f"<0x{byte:02X}>", -1)
        else:
            alphabet = byte_characters()
            byte_ids[:] = [vocab[character] for character in alphabet]
            if model.get("ignore_merges"):
                whole_words = _whole_words(vocab, alphabet)

        # 2. The ids of each merge, in order of rank.
        left_ids: list[int] = []
        right_ids: list[int] = []
        joined_ids: list[int] = []
        for left, right in pairs:
            left_ids.append(vocab[left])
            right_ids.append(vocab[right])
            joined_ids.append(vocab[left + right])
    except KeyError:
        # A byte or a part of a merge is not in the vocabulary.
        return None

    # The loops read eight bytes at once, also of the last word.
    word_bytes = bytearray(b"".join(whole_words) + bytes(8))
    return {
        "left": np.array(left_ids, np.int32),
        "right": np.array(right_ids, np.int32),
        "joined": np.array(joined_ids, np.int32),
        "byte_ids": byte_ids,
        "characters": np.fromiter(characters, np.int64, len(characters)),
        "character_ids": np.fromiter(characters.values(), np.int32, len(characters)),
        "whole_data": np.frombuffer(word_bytes, np.uint8),
        "whole_edges": offsets_of([len(word) for word in whole_words]),
        "whole_ids": np.fromiter(whole_words.values(), np.int32, len(whole_words)),
    }


def _character_ids(vocab: dict[str, int]) -> dict[int, int]:
    """Return the id of each code point that is a token of SentencePiece's style.

    Raises:
        KeyError: The vocabulary has no token for a space.
    """
    ids: dict[int, int] = {}
    for token, token_id in vocab.items():
        if len(token) == 1:
            ids[ord(token)] = token_id
    # Texts hold spaces, which the vocabulary writes as the mark.
    ids[ord(" ")] = ids[ord(MARK)]
    return ids


def _whole_words(vocab: dict[str, int], alphabet: Sequence[str]) -> dict[bytes, int]:
    """Return the words that the tokens of a byte-level vocabulary spell."""
    # Each character of the alphabet becomes the character with the number of its byte,
    # which latin-1 encodes as that byte.
    byte_of_character: dict[int, Any] = {}
    for byte, character in enumerate(alphabet):
        byte_of_character[ord(character)] = chr(byte)
    byte_alphabet = frozenset(alphabet)
    words: dict[bytes, int] = {}
    for token, token_id in vocab.items():
        if token and byte_alphabet.issuperset(token):
            words[token.translate(byte_of_character).encode("latin-1")] = token_id
    return words

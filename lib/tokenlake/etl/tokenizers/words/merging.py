"""Encode new words here instead of asking the reference, which takes ten times as long.

Byte pair encoding is simple: of all neighbours in a word the pair with the lowest rank
is merged, the leftmost of several, until no pair has a rank. That is all there is to it
where every character has an id, no pair has two ranks, and the model does not mark
where words begin or end. The gate compares the ids with the reference's before a build,
and samples are compared while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self, final

import numpy as np

from tokenlake.base.arrays import Int32, Int64, UInt8, offsets_of
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
        loops: From :func:`tokenlake.etl.tokenizers.words.native.loops`.
        tables: From :func:`_tables_of`.

    Attributes:
        has_each_pair_once: Whether no two merges join the same pair.
    """

    def __init__(self, loops: Any, tables: Tables) -> None:
        self._loops = loops
        # The id of each character, -1 for one that becomes the ids of its bytes.
        self._points = np.full(_POINTS, -1, np.int32)
        self._points[tables["characters"]] = tables["character_ids"]
        self._byte_ids: Int32 = tables["byte_ids"]
        # The merges.
        count = len(tables["joined"])
        self._merges = np.zeros((1 << max(4, (2 * count).bit_length()), 2), np.uint64)
        self._bits = np.zeros(FILTER_WORDS, np.uint64)
        loops.add_merges(
            self._merges, self._bits, tables["left"], tables["right"], tables["joined"]
        )
        self.has_each_pair_once = int(np.count_nonzero(self._merges[:, 1])) == count
        self._byte_pairs: Int64 = np.empty(0, np.int64)
        if not len(tables["characters"]):
            self._byte_pairs = np.empty(_BYTES * _BYTES, np.int64)
            loops.fill_byte_pairs(
                self._merges, self._bits, self._byte_ids, self._byte_pairs
            )
        self._ranks = np.empty(LONGEST_MERGED, np.int64)
        # The words that have an id as a whole, whatever the merges make of them, and a
        # table of their numbers.
        self._whole_ids: Int32 = tables["whole_ids"]
        self._whole_edges: Int64 = tables["whole_edges"]
        self._whole_data: UInt8 = tables["whole_data"]
        self._whole_slots = np.zeros(
            1 << (2 * len(self._whole_ids) + 2).bit_length(), np.int32
        )
        loops.add_whole_words(self._whole_data, self._whole_edges, self._whole_slots)

    @classmethod
    def of(
        cls, loops: Any, files: TokenizerFiles, *, is_sentencepiece: bool
    ) -> Self | None:
        """Return the merges of a tokenizer, or None where they do not follow from
        its vocabulary and merges alone.
        """
        tables = kept_tables(
            files,
            f"merges {is_sentencepiece}",
            lambda: _tables_of(files, is_sentencepiece=is_sentencepiece),
        )
        if tables is None:
            return None
        merger = cls(loops, tables)
        return merger if merger.has_each_pair_once else None

    def encode(
        self, laid: UInt8, cuts: Int64, new: Int64
    ) -> tuple[Int64, Int32] | None:
        """Return the offsets (int64[n + 1]) and ids (int32[total]) of words, or None
        where one is too long.

        Args:
            laid: Texts, with at least eight bytes behind the last word.
            cuts: The edges of all words.
            new: int64[n], the numbers of the words that are encoded.
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
    """Return what merging needs of a tokenizer, or None where a word's ids do not
    follow from that alone.

    Returns:
        left, right, joined: int32[merges], the ids of each merge's pair and what
        becomes of it, in order of rank. byte_ids: int32[256], the id of each byte.
        characters, character_ids: int64[k] and int32[k], the characters that have an
        id; empty where only bytes have. whole_data, whole_edges, whole_ids: uint8[total
        + 8], int64[n + 1] and int32[n], words that have an id as a
            whole, whatever the merges make of them.
    """
    model = files.spec["model"]
    vocab: dict[str, int] = model["vocab"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    pairs = [
        merge.split(" ") if isinstance(merge, str) else merge
        for merge in model["merges"]
    ]
    if any(len(pair) != 2 for pair in pairs):
        return None
    byte_ids = np.full(_BYTES, -1, np.int32)
    characters: dict[int, int] = {}
    whole: dict[bytes, int] = {}
    try:
        if is_sentencepiece:
            characters = {
                ord(token): number for token, number in vocab.items() if len(token) == 1
            }
            characters[ord(" ")] = characters[ord(MARK)]
            for byte in range(_BYTES):
                byte_ids[byte] = vocab.get(f"<0x{byte:02X}>", -1)
        else:
            alphabet = byte_characters()
            byte_ids[:] = [vocab[character] for character in alphabet]
            if model.get("ignore_merges"):
                whole = _whole_words(vocab, alphabet)
        left = np.fromiter((vocab[first] for first, _ in pairs), np.int32, len(pairs))
        right = np.fromiter(
            (vocab[second] for _, second in pairs), np.int32, len(pairs)
        )
        joined = np.fromiter(
            (vocab[first + second] for first, second in pairs), np.int32, len(pairs)
        )
    except KeyError:
        # A byte or a part of a merge is not in the vocabulary.
        return None
    return {
        "left": left,
        "right": right,
        "joined": joined,
        "byte_ids": byte_ids,
        "characters": np.fromiter(characters, np.int64, len(characters)),
        "character_ids": np.fromiter(characters.values(), np.int32, len(characters)),
        "whole_data": np.frombuffer(bytearray(b"".join(whole) + bytes(8)), np.uint8),
        "whole_edges": offsets_of([len(word) for word in whole]),
        "whole_ids": np.fromiter(whole.values(), np.int32, len(whole)),
    }


def _whole_words(vocab: dict[str, int], alphabet: Sequence[str]) -> dict[bytes, int]:
    """Return the words that the tokens of a byte-level vocabulary spell."""
    bytes_of: dict[int, Any] = {
        ord(character): chr(byte) for byte, character in enumerate(alphabet)
    }
    known = frozenset(alphabet)
    words: dict[bytes, int] = {}
    for token, number in vocab.items():
        if token and known.issuperset(token):
            words[token.translate(bytes_of).encode("latin-1")] = number
    return words

"""How many bytes of its text a token holds, known from its id alone.

In the forms of the allow-list a token's bytes are a function of its id. Byte-level BPE spells every byte of a
text by one character of its alphabet. SentencePiece forms write a blank as U+2581 and what the vocabulary
lacks as ``<0xE4>``, a byte each; the blank that they put before a piece of text (all of the text, or what lies
between two added tokens) holds none. So the places of a batch's tokens are one cumulative sum; where it does
not end at the text's last byte (a text that holds U+2581 itself), the row is odd and left to the reference.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.tokenizers.allowlist import BYTE_LEVEL_ALPHABET, BYTE_TOKENS, objection
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.files import TokenizerFiles

if TYPE_CHECKING:
    import numpy.typing as npt

    Int32 = npt.NDArray[np.int32]
    Int64 = npt.NDArray[np.int64]

_MARK: Final = "\u2581"
_BLANK: Final = 0x20
# What no sum of real sizes reaches: an id that nothing makes.
_UNKNOWN: Final = 1 << 29
# Set in the size of an added token, which ends a piece of text.
_ADDED: Final = 1 << 30
# Pieces of a row that are followed one after the other ("always"); a row with more of them is odd.
_MOST_PIECES: Final = 64


@final
class TokenSizes:
    """The sizes of a tokenizer's ids, and where its made-up blanks are.

    Args:
        files: a tokenizer of the allow-list.
        literal: special tokens are never matched in a text.
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool) -> None:
        added = [token["content"] for token in files.added_tokens if not (literal and token.get("special"))]
        marked = bool(files.spec["model"].get("byte_fallback"))
        self._table = _table(files, added, marked=marked)
        self._has_added = bool(added)
        self._blanks = _blanks(files.spec) if marked else "never"
        self._composes = files.spec.get("normalizer") == {"type": "NFC"}

    @classmethod
    def of(cls, files: TokenizerFiles, *, literal: bool) -> TokenSizes | None:
        """Return the sizes of a tokenizer, or None where an id alone does not tell them."""
        if objection(files, literal=literal) is not None or any(_ambiguous(files, literal)):
            return None
        return cls(files, literal=literal)

    def edges(self, text: pa.LargeStringArray, offsets: Int64, ids: Int32) -> tuple[Int64, Int64]:
        """Return the tokens' borders in a batch.

        Args:
            text: the batch.
            offsets: int64[n + 1], row i has ids ``offsets[i]:offsets[i + 1]``.
            ids: int32[total].

        Returns:
            int64[total + 1]: token j of row i holds bytes ``edges[j]:edges[j + 1]`` of its text, counted from
            ``edges[offsets[i]]``; and int64[k], ascending, the odd rows, for which that is not so.
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
        elif self._blanks == "always":
            odd = np.union1d(odd, self._follow(text, offsets, held))
        if self._has_added:
            held &= _ADDED - 1
        edges = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(held, out=edges[1:])
        wrong = np.flatnonzero(np.diff(edges[offsets]) != np.diff(starts))
        return edges, np.union1d(odd, wrong) if odd.size else wrong

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
        if self._blanks == "always":
            return np.flatnonzero(np.asarray(pc.match_substring(text, _MARK)))
        if not self._composes:
            return np.empty(0, np.int64)
        # NFC changes a text's bytes; tables newer than the reference's concern guarded rows only.
        other = np.flatnonzero(~np.asarray(pc.string_is_ascii(text), np.bool_))
        texts = [value.as_py() for value in text.take(pa.array(other, pa.int64()))]
        return other[[not unicodedata.is_normalized("NFC", value) for value in texts]]


def _table(files: TokenizerFiles, added: list[str], *, marked: bool) -> Int32:
    """int32[vocabulary]: bytes of each id; :data:`_ADDED` set for added tokens."""
    table = np.full(files.vocab_size + 1, _UNKNOWN, np.int32)
    for token, i in files.spec["model"]["vocab"].items():
        if token in BYTE_TOKENS and marked:
            table[i] = 1
        elif marked and token:
            table[i] = len(token.encode()) - 2 * token.count(_MARK)
        elif token and BYTE_LEVEL_ALPHABET.issuperset(token):
            table[i] = len(token)
    for token in added:
        table[files.token_id(token)] = len(token.encode()) | _ADDED
    return table


def _ambiguous(files: TokenizerFiles, literal: bool) -> Iterator[bool]:
    """Yield whether the id of an added token is also one of text, of another size."""
    vocab = files.spec["model"]["vocab"]
    marked = files.spec["model"].get("byte_fallback")
    for token in files.added_tokens:
        content = token["content"]
        if content not in vocab or (literal and token.get("special")):
            continue
        if marked:
            yield content in BYTE_TOKENS or _MARK in content
        else:
            yield not content.isascii() and BYTE_LEVEL_ALPHABET.issuperset(content)


def _blanks(spec: dict[str, Any]) -> str:
    """Return which pieces of text get a blank: "never" any, "every" one, the "first", "always" (without one)."""
    if spec.get("pre_tokenizer") is not None:
        return spec["pre_tokenizer"]["prepend_scheme"]
    return "every" if spec["normalizer"]["type"] == "Sequence" else "never"

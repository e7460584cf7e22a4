"""Documents as words for comparison: what people would call the same text becomes the same words.

Lower case, without accents (NFD, nonspacing marks taken away), every number as ``0``; whatever is no letter, mark or
digit parts words; an ideograph is a word of its own. So do Hugging Face's datatrove and Meta's CCNet, whose idea this
is (Wenzek et al. 2020, https://arxiv.org/abs/1911.00359), and what GPT-3 calls ignoring "punctuation, casing, and
whitespace" (Brown et al. 2020, https://arxiv.org/abs/2005.14165, appendix C).

That appendix has the rule for evaluation sets, too: an n-gram of 13 words that a document shares with an evaluation
set. A document of a set that has fewer words cannot be found, and is counted as such.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenlake.arrays import Bools, Int64, UInt8, UInt64
from tokenlake.config.resolved import Normal
from tokenlake.errors import MissingExtraError

_NUMBERS: Final = re.compile(r"\d+(?:[.,\u060C\u066B]\d+)?")
_ASCII_NUMBERS: Final = re.compile(rb"[0-9]+(?:[.,][0-9]+)?")
_ASCII_LETTERS: Final = bytes(
    ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else 32 for byte in range(256)
)
_IDEOGRAPHS: Final = (
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


@final
class _Letters(dict[int, str | int | None]):
    """What becomes of each character; looked up once, kept then."""

    def __missing__(self, code: int) -> str | int | None:
        kind = unicodedata.category(chr(code))
        found: str | int | None = code
        if kind == "Mn":
            found = None
        elif any(first <= code <= last for first, last in _IDEOGRAPHS):
            found = f" {chr(code)} "
        elif kind[0] not in "LMN":
            found = " "
        self[code] = found
        return found


_LETTERS: Final = _Letters()


def words_of(text: str) -> bytes:
    """Return a document's words as UTF-8, one space between each two."""
    if text.isascii():
        plain = _ASCII_NUMBERS.sub(b"0", text.encode()).translate(_ASCII_LETTERS)
        return b" ".join(plain.split())
    numbered = _NUMBERS.sub("0", text.lower())
    parted = unicodedata.normalize("NFD", numbered).translate(_LETTERS)
    return " ".join(parted.split()).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class WordBuffer:
    """The words of several documents, one after the other.

    Attributes:
        data: uint8, UTF-8.
        ends: int64[docs + 1], where each document begins, and where the last one ends.
    """

    data: UInt8
    ends: Int64

    @classmethod
    def of(cls, texts: Iterable[str]) -> WordBuffer:
        """Return the words of some texts."""
        parts = [words_of(text) for text in texts]
        ends = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=ends[1:])
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends)


def exact_hashes(texts: Sequence[str], normal: Normal) -> UInt64:
    """Return what equal documents have in common: uint64[n, 2], the two halves of XXH3-128.

    Args:
        normal: ``text``: of the text as it is; ``folded``: of its case-folded words with single spaces.
    """
    found = np.empty((len(texts), 2), np.uint64)
    for row, text in enumerate(texts):
        same = text if normal == "text" else " ".join(text.casefold().split())
        whole = xxhash.xxh3_128_intdigest(same.encode())
        found[row] = whole >> 64, whole & 0xFFFFFFFFFFFFFFFF
    return found


def kernels() -> Any:
    """Return the compiled loops, see :mod:`tokenlake.clean.kernels`.

    Raises:
        MissingExtraError: numba is not installed, or has no folder for what it compiles.
    """
    try:
        from tokenlake.clean import kernels as found
    except ImportError as error:
        raise MissingExtraError("cleaning needs its packages: pip install 'tokenlake[etl]'") from error
    except RuntimeError as error:  # numba's own where it finds no folder to write to
        raise MissingExtraError(
            f"cleaning cannot keep what it compiles: {error}; set NUMBA_CACHE_DIR to a folder that can be written"
        ) from error
    return found


_ABOUT: Final = b"tokenlake.evaluation"
_SIEVE_PER_HASH: Final = (
    16  # of these bytes one is set, so that one look-up in 16 goes further than the sieve
)
_SMALLEST_SIEVE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SetCounts:
    """What was found in one evaluation set.

    Attributes:
        documents: texts in it.
        too_short: those with fewer words than an n-gram has.
        ngrams: different ones that no set before it has.
    """

    documents: int
    too_short: int
    ngrams: int


@final
@dataclass(frozen=True)
class EvaluationNgrams:
    """The n-grams of all sets, of which each belongs to the first set that has it.

    Attributes:
        ngram: words of an n-gram.
        hashes: uint64[k], ascending.
        groups: int64[k], index of the set.
        counts: of each set, in order.
    """

    ngram: int
    hashes: UInt64
    groups: Int64
    counts: Mapping[str, SetCounts]

    @property
    def names(self) -> tuple[str, ...]:
        """The sets, in the order of their indices."""
        return tuple(self.counts)

    @cached_property
    def _sieve(self) -> UInt8:
        size = max(_SMALLEST_SIEVE, 1 << (_SIEVE_PER_HASH * len(self.hashes)).bit_length())
        sieve = np.zeros(size, np.uint8)
        sieve[self.hashes & np.uint64(size - 1)] = 1
        return sieve

    @classmethod
    def of(cls, sets: Mapping[str, Iterable[Sequence[str]]], ngram: int) -> EvaluationNgrams:
        """Return the n-grams of sets.

        Args:
            sets: name to texts, some at a time.
            ngram: words of an n-gram.
        """
        hashes, groups = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        counts: dict[str, SetCounts] = {}
        for group, (name, texts) in enumerate(sets.items()):
            found, documents, short = _ngrams_of(texts, ngram)
            new = np.setdiff1d(found, hashes, assume_unique=True)
            hashes = np.concatenate([hashes, new])
            groups = np.concatenate([groups, np.full(len(new), group, np.int64)])
            counts[name] = SetCounts(documents, short, len(new))
        order = np.argsort(hashes, kind="stable")
        return cls(ngram, hashes[order], groups[order], counts)

    def find(self, words: WordBuffer, least: int, share: float) -> list[str | None]:
        """Return for each document the set that it holds too much of, None for most.

        Args:
            least: n-grams of a document that are in a set, from which it is too much...
            share: ...if they are at least this share of all its n-grams.
        """
        hashes, counts = ngram_hashes(words, self.ngram)
        hits, group = np.empty((2, len(counts)), np.int64)
        kernels().look_up(hashes, counts, self.hashes, self.groups, self._sieve, hits, group)
        found: Bools = (hits >= least) & (hits >= share * counts) & (hits > 0)
        names = self.names
        return [names[at] if held else None for at, held in zip(group.tolist(), found.tolist(), strict=True)]

    @cached_property
    def data(self) -> bytes:
        """The bytes of a Parquet file with all of it."""
        about = {name: [each.documents, each.too_short, each.ngrams] for name, each in self.counts.items()}
        schema = pa.schema(
            [pa.field("hash", pa.uint64(), False), pa.field("group", pa.int64(), False)],
            {_ABOUT: json.dumps({"ngram": self.ngram, "sets": about}).encode()},
        )
        arrays: list[Any] = [pa.array(self.hashes), pa.array(self.groups)]
        sink = io.BytesIO()
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd", write_page_checksum=True
        )
        return sink.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Hex, of :attr:`data`."""
        return hashlib.sha256(self.data).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> EvaluationNgrams:
        """Return what :attr:`data` holds."""
        table = pq.read_table(io.BytesIO(data))
        about = json.loads((table.schema.metadata or {})[_ABOUT])
        counts = {name: SetCounts(*numbers) for name, numbers in about["sets"].items()}
        return cls(about["ngram"], table["hash"].to_numpy(), table["group"].to_numpy(), counts)


def ngram_hashes(words: WordBuffer, ngram: int) -> tuple[UInt64, Int64]:
    """Return the hashes of all n-grams, document by document, and how many each document has (int64[docs])."""
    hashes = np.empty(len(words.data) // 2 + len(words.ends) + 1, np.uint64)
    counts = np.empty(len(words.ends) - 1, np.int64)
    total = kernels().ngrams_of_all(words.data, words.ends, ngram, hashes, counts)
    return hashes[:total], counts


def _ngrams_of(texts: Iterable[Sequence[str]], ngram: int) -> tuple[UInt64, int, int]:
    """Return the different n-grams of a set, its documents, and those of them that are too short."""
    parts, documents, short = [np.zeros(0, np.uint64)], 0, 0
    for some in texts:
        hashes, counts = ngram_hashes(WordBuffer.of(some), ngram)
        parts.append(np.unique(hashes))
        documents, short = documents + len(counts), short + int((counts == 0).sum())
    return np.unique(np.concatenate(parts)), documents, short

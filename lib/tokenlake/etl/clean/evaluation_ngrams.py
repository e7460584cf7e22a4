"""N-grams of evaluation sets, by which documents that contain test data are found.

An n-gram of 13 words that a document shares with an evaluation set is the rule of GPT-3
(Brown et al. 2020, https://arxiv.org/abs/2005.14165, appendix C). A document of a set
with fewer words cannot be found, and is counted as too short.

Example: with n-grams of 2 words, a set with the document ``a b c`` has the n-grams
``a b`` and ``b c``. The document ``x a b y`` has one of them among its three: it
contains too much of the set if one n-gram and a share of 0.3 are enough.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Bools, Int64, UInt8, UInt64
from tokenlake.etl.clean.compiled import compiled_loops
from tokenlake.etl.clean.words import WordBuffer

_METADATA_KEY: Final = b"tokenlake.evaluation"
_SIEVE_BYTES_PER_HASH: Final = 16
"""Size of the sieve. One byte of 16 is set, so that one look-up of 16 has to search
the hashes.
"""
_SMALLEST_SIEVE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SetCounts:
    """Numbers of one evaluation set.

    Attributes:
        documents: Number of texts.
        too_short: Number of texts with fewer words than an n-gram has.
        ngrams: Number of different n-grams that no set before it has.
    """

    documents: int
    too_short: int
    ngrams: int


@final
@dataclass(frozen=True)
class EvaluationNgrams:
    """The n-grams of all sets. An n-gram of several sets belongs to the first of them.

    Attributes:
        ngram: Number of words of an n-gram.
        hashes: Hashes of the n-grams, ascending, uint64[k].
        set_indices: Index of the set of each n-gram, int64[k].
        counts: Set -> its numbers, in order.
    """

    ngram: int
    hashes: UInt64
    set_indices: Int64
    counts: Mapping[str, SetCounts]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sets, in the order of their indices."""
        return tuple(self.counts)

    @cached_property
    def _sieve(self) -> UInt8:
        """Bytes that are 1 where the low bits of a hash point.

        It is a quick test that most other hashes fail.
        """
        # A power of two, so that the low bits of a hash are an index.
        wanted_bytes = _SIEVE_BYTES_PER_HASH * len(self.hashes)
        sieve_size = max(_SMALLEST_SIEVE, 1 << wanted_bytes.bit_length())
        sieve = np.zeros(sieve_size, np.uint8)
        sieve[self.hashes & np.uint64(sieve_size - 1)] = 1
        return sieve

    @classmethod
    def of(
        cls, sets: Mapping[str, Iterable[Sequence[str]]], ngram: int
    ) -> EvaluationNgrams:
        """Return the n-grams of sets.

        Args:
            sets: Name -> batches of texts.
            ngram: Number of words of an n-gram.
        """
        hashes = np.zeros(0, np.uint64)
        set_indices = np.zeros(0, np.int64)
        counts: dict[str, SetCounts] = {}
        for set_index, (set_name, batches) in enumerate(sets.items()):
            set_hashes, documents, too_short = _ngrams_of(batches, ngram)
            # An n-gram counts for the first set that has it.
            new_hashes = np.setdiff1d(set_hashes, hashes, assume_unique=True)
            new_indices = np.full(len(new_hashes), set_index, np.int64)
            hashes = np.concatenate([hashes, new_hashes])
            set_indices = np.concatenate([set_indices, new_indices])
            counts[set_name] = SetCounts(documents, too_short, len(new_hashes))
        # Sorted hashes are searched by halving.
        order = np.argsort(hashes, kind="stable")
        return cls(ngram, hashes[order], set_indices[order], counts)

    def find(self, words: WordBuffer, least: int, share: float) -> list[str | None]:
        """Return for each document the set of which it contains too much, or None.

        A document contains too much if it has at least `least` n-grams of the sets, and
        these are at least the share `share` of all its n-grams.

        Args:
            words: Words of the documents.
            least: Smallest number of n-grams.
            share: Smallest share of the document's n-grams, 0 to 1.
        """
        hashes, ngram_counts = ngram_hashes(words, self.ngram)
        hits = np.empty(len(ngram_counts), np.int64)
        first_sets = np.empty(len(ngram_counts), np.int64)
        compiled_loops().look_up(
            hashes,
            ngram_counts,
            self.hashes,
            self.set_indices,
            self._sieve,
            hits,
            first_sets,
        )
        # A share of 0 must not take documents without any hit.
        is_contaminated: Bools = (
            (hits >= least) & (hits >= share * ngram_counts) & (hits > 0)
        )

        set_names: list[str | None] = [None] * len(ngram_counts)
        for document in np.flatnonzero(is_contaminated).tolist():
            set_names[document] = self.names[first_sets[document]]
        return set_names

    @cached_property
    def data(self) -> bytes:
        """Bytes of a Parquet file that holds all n-grams and counts."""
        sets: dict[str, list[int]] = {}
        for set_name, counts in self.counts.items():
            sets[set_name] = [counts.documents, counts.too_short, counts.ngrams]
        schema = pa.schema(
            [
                pa.field("hash", pa.uint64(), False),
                pa.field("group", pa.int64(), False),
            ],
            {_METADATA_KEY: json.dumps({"ngram": self.ngram, "sets": sets}).encode()},
        )
        arrays: list[Any] = [pa.array(self.hashes), pa.array(self.set_indices)]
        table = pa.Table.from_arrays(arrays, schema=schema)
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return sink.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Hash of :attr:`data`, in hexadecimal digits."""
        return hashlib.sha256(self.data).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> EvaluationNgrams:
        """Return the n-grams that the bytes of :attr:`data` hold."""
        table = pq.read_table(io.BytesIO(data))
        metadata = json.loads((table.schema.metadata or {})[_METADATA_KEY])
        counts: dict[str, SetCounts] = {}
        for set_name, (documents, too_short, ngrams) in metadata["sets"].items():
            counts[set_name] = SetCounts(documents, too_short, ngrams)
        return cls(
            metadata["ngram"],
            table["hash"].to_numpy(),
            table["group"].to_numpy(),
            counts,
        )


def ngram_hashes(words: WordBuffer, ngram: int) -> tuple[UInt64, Int64]:
    """Return the hashes of all n-grams, document by document.

    Args:
        words: Words of the documents.
        ngram: Number of words of an n-gram.

    Returns:
        Hashes, uint64; and the number of each document's n-grams, int64[documents].
    """
    # A word and its space have two bytes at least, so this is room enough.
    hashes = np.empty(len(words.data) // 2 + len(words.ends) + 1, np.uint64)
    counts = np.empty(len(words.ends) - 1, np.int64)
    hash_count = compiled_loops().ngrams_of_all(
        words.data, words.ends, ngram, hashes, counts
    )
    return hashes[:hash_count], counts


def _ngrams_of(batches: Iterable[Sequence[str]], ngram: int) -> tuple[UInt64, int, int]:
    """Return the different n-grams of a set, and the numbers of its documents.

    The numbers are those of all documents, and of those that are too short.
    """
    parts = [np.zeros(0, np.uint64)]
    documents = 0
    too_short = 0
    for texts in batches:
        hashes, counts = ngram_hashes(WordBuffer.of(texts), ngram)
        # Each batch is made unique, so that the memory holds few of a repeated n-gram.
        parts.append(np.unique(hashes))
        documents += len(counts)
        too_short += int((counts == 0).sum())
    return np.unique(np.concatenate(parts)), documents, too_short

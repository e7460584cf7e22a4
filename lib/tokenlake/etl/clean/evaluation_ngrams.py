"""N-grams of evaluation sets, by which documents that contain test data are found.

An n-gram of 13 words that a document shares with an evaluation set is the rule of GPT-3 (Brown et al. 2020,
https://arxiv.org/abs/2005.14165, appendix C). A document of a set with fewer words cannot be found, and is counted as
too short.
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

_SETS_ABOUT: Final = b"tokenlake.evaluation"
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
        compiled_loops().look_up(hashes, counts, self.hashes, self.groups, self._sieve, hits, group)
        found: Bools = (hits >= least) & (hits >= share * counts) & (hits > 0)
        names = self.names
        return [names[at] if held else None for at, held in zip(group.tolist(), found.tolist(), strict=True)]

    @cached_property
    def data(self) -> bytes:
        """The bytes of a Parquet file with all of it."""
        about = {name: [each.documents, each.too_short, each.ngrams] for name, each in self.counts.items()}
        schema = pa.schema(
            [pa.field("hash", pa.uint64(), False), pa.field("group", pa.int64(), False)],
            {_SETS_ABOUT: json.dumps({"ngram": self.ngram, "sets": about}).encode()},
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
        about = json.loads((table.schema.metadata or {})[_SETS_ABOUT])
        counts = {name: SetCounts(*numbers) for name, numbers in about["sets"].items()}
        return cls(about["ngram"], table["hash"].to_numpy(), table["group"].to_numpy(), counts)


def ngram_hashes(words: WordBuffer, ngram: int) -> tuple[UInt64, Int64]:
    """Return the hashes of all n-grams, document by document, and how many each document has (int64[docs])."""
    hashes = np.empty(len(words.data) // 2 + len(words.ends) + 1, np.uint64)
    counts = np.empty(len(words.ends) - 1, np.int64)
    total = compiled_loops().ngrams_of_all(words.data, words.ends, ngram, hashes, counts)
    return hashes[:total], counts


def _ngrams_of(texts: Iterable[Sequence[str]], ngram: int) -> tuple[UInt64, int, int]:
    """Return the different n-grams of a set, its documents, and those of them that are too short."""
    parts, documents, short = [np.zeros(0, np.uint64)], 0, 0
    for some in texts:
        hashes, counts = ngram_hashes(WordBuffer.of(some), ngram)
        parts.append(np.unique(hashes))
        documents, short = documents + len(counts), short + int((counts == 0).sum())
    return np.unique(np.concatenate(parts)), documents, short

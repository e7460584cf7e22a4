"""Exact and near duplicates among the documents of all sources: which one stays, and
which are left out.

1. Every document has a number: the units of earlier lists first, then those of the
   sources, in order.
2. Documents with an equal key (the hash of the whole text, or the key of a band) join
   one set. A forest of parents holds the sets (union-find); the parent is always the
   lower number.
3. Of each set the document with the lowest number stays. A document of an earlier list
   always stays.

Keys are sorted a part at a time, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int64, UInt8, UInt64
from tokenlake.etl.clean.compiled import compiled_loops
from tokenlake.etl.clean.fate import REASONS, Fate, KeptPlaces, LeftOut
from tokenlake.etl.clean.left_out_list import EarlierList, places_hash
from tokenlake.etl.clean.signatures import SignatureFile, band_name, opened_signatures
from tokenlake.runtime.store.base import Store

_SORTED_BYTES: Final = (
    # Of memory for a key, its document, their order and copies of them, while they are
    # sorted.
    64
)
_ALL_KEYS: Final = 1 << 64


@final
class Documents:
    """All documents of a run, and the fate of each.

    Documents are numbered: first those of earlier lists, then those of the sources, in
    the order of their units.

    Args:
        store: Store that holds the signatures.
        earlier: Lists whose documents were processed before.
        units: Fingerprints of the units of the sources, in order.
        excluded: For each unit, file -> positions that are left out regardless of their
            text.
        memory: Number of bytes for sorting.

    Attributes:
        fate: Values of :class:`Fate`, uint8[n].
        parents: Number of the document for which each is left out; its own number for
            the others, int64[n].
    """

    def __init__(
        self,
        store: Store,
        earlier: Sequence[EarlierList],
        units: Sequence[str],
        excluded: Sequence[Mapping[int, Sequence[int]]],
        memory: int,
    ) -> None:
        self._store = store
        self._memory = memory
        self._names: list[str] = []
        for earlier_list in earlier:
            self._names += earlier_list.units
        self._first_unit = len(self._names)
        self._names += units

        # Document numbers of unit u: offsets[u] to offsets[u + 1] - 1.
        row_counts = [file.rows for file in self._files()]
        self._offsets = np.concatenate([[0], np.cumsum(row_counts, dtype=np.int64)])
        document_count = self._offsets[-1]
        self.fate: UInt8 = np.zeros(document_count, np.uint8)
        self.parents: Int64 = np.arange(document_count)
        self._has_ngrams: Bools = np.zeros(document_count, np.bool_)
        identities = self._mark_earlier(earlier)
        self._mark_present(excluded, np.sort(identities))

    def drop_duplicates(self) -> None:
        """Leave out every document whose hash an earlier document has."""
        for (high, low), items in self._keys(
            ("exact_high", "exact_low"), self.fate == Fate.KEPT
        ):
            order = np.lexsort((low, high))
            high, low = high[order], low[order]
            # Number the hashes: equal ones are neighbours and get the same number.
            is_new = np.ones(len(order), np.uint64)
            is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
            compiled_loops().unite(
                self.parents, np.cumsum(is_new, dtype=np.uint64), items[order]
            )
        self._settle(Fate.DUPLICATE)

    def drop_near_duplicates(self, bands: int) -> None:
        """Leave out every document that is linked to an earlier one, directly or
        through others, by equal bands.
        """
        candidates = (self.fate == Fate.KEPT) & self._has_ngrams
        for band in range(bands):
            for (keys,), items in self._keys((band_name(band),), candidates):
                order = np.argsort(keys, kind="stable")
                compiled_loops().unite(self.parents, keys[order], items[order])
        self._settle(Fate.NEAR_DUPLICATE)

    def of_unit(self, index: int) -> slice:
        """Return the numbers of the documents of a unit of the sources."""
        unit = self._first_unit + index
        return slice(int(self._offsets[unit]), int(self._offsets[unit + 1]))

    def kept_for_others(self) -> KeptPlaces:
        """Return the places of all documents for which others are left out, 24 bytes
        each.
        """
        is_duplicate = (self.fate == Fate.DUPLICATE) | (
            self.fate == Fate.NEAR_DUPLICATE
        )
        numbers = np.unique(self.parents[is_duplicate])
        file = np.empty(len(numbers), np.int64)
        position = np.empty(len(numbers), np.int64)
        bounds = np.searchsorted(numbers, self._offsets)
        for unit, signatures in enumerate(self._files()):
            in_unit = slice(bounds[unit], bounds[unit + 1])
            if in_unit.start < in_unit.stop:
                rows = numbers[in_unit] - self._offsets[unit]
                file[in_unit] = signatures.column("file")[rows]
                position[in_unit] = signatures.column("position")[rows]
        return KeptPlaces(numbers, file, position)

    def left_out(
        self, index: int, signatures: SignatureFile, kept: KeptPlaces
    ) -> LeftOut:
        """Return the documents that are left out of a unit of the sources.

        Args:
            index: Index of the unit.
            signatures: Signatures of the unit.
            kept: Places of the documents for which others are left out.
        """
        numbers = self.of_unit(index)
        fate = self.fate[numbers]
        # Rows count from the first document of the unit; parents are numbers of
        # documents of all units.
        rows = np.flatnonzero((fate != Fate.KEPT) & (fate != Fate.KEPT_BEFORE))

        # A fate has its reason; a document that is left out by itself has the reason of
        # its signature.
        reasons: list[str] = []
        own_reasons = signatures.column("reason").take(pa.array(rows)).to_pylist()
        for code, own_reason in zip(fate[rows].tolist(), own_reasons, strict=True):
            reasons.append(REASONS.get(Fate(code)) or str(own_reason))

        # A duplicate names the place of the document that is kept.
        is_duplicate = np.isin(fate[rows], (Fate.DUPLICATE, Fate.NEAR_DUPLICATE))
        parents = self.parents[numbers][rows[is_duplicate]]
        places = np.searchsorted(kept.numbers, parents)
        return LeftOut(
            signatures.column("file")[rows],
            signatures.column("position")[rows],
            reasons,
            is_duplicate,
            kept.file[places],
            kept.position[places],
        )

    def _files(self) -> Iterator[SignatureFile]:
        return opened_signatures(self._store, self._names)

    def _mark_earlier(self, earlier: Sequence[EarlierList]) -> UInt64:
        """Mark the documents that earlier lists left out; return the identities of
        the others.
        """
        unit = 0
        identities = [np.zeros(0, np.uint64)]
        for earlier_list in earlier:
            for file in opened_signatures(self._store, earlier_list.units):
                numbers = slice(self._offsets[unit], self._offsets[unit + 1])
                places = places_hash(file.column("file"), file.column("position"))
                is_left_out = np.isin(places, earlier_list.places)
                self.fate[numbers] = np.where(is_left_out, Fate.GONE_BEFORE, Fate.KEPT)
                self._has_ngrams[numbers] = file.column("ngrams") > 0
                identities.append(
                    places_hash(places, file.column("exact_high"))[~is_left_out]
                )
                unit += 1
        return np.concatenate(identities)

    def _mark_present(
        self,
        excluded: Sequence[Mapping[int, Sequence[int]]],
        earlier_identities: UInt64,
    ) -> None:
        """Mark the documents that an earlier list kept, and those left out
        regardless of the others.
        """
        files = opened_signatures(self._store, self._names[self._first_unit :])
        for index, signatures in enumerate(files):
            unit = self.of_unit(index)
            fate = self.fate[unit]  # a view: the lines below write into `self.fate`
            file = signatures.column("file")
            position = signatures.column("position")
            if len(earlier_identities):
                identities = places_hash(
                    places_hash(file, position), signatures.column("exact_high")
                )
                fate[np.isin(identities, earlier_identities)] = Fate.KEPT_BEFORE
            reason: Any = signatures.column("reason")
            fate[reason.is_valid().to_numpy()] = Fate.OWN_REASON
            for excluded_file, positions in excluded[index].items():
                is_excluded = np.isin(position, np.asarray(positions, np.int64))
                fate[(file == excluded_file) & is_excluded] = Fate.EXCLUDED
            self._has_ngrams[unit] = signatures.column("ngrams") > 0

    def _keys(
        self, columns: Sequence[str], is_wanted: Bools
    ) -> Iterator[tuple[list[UInt64], Int64]]:
        """Yield columns of documents, and the documents' numbers, ascending. Equal keys
        come in one part.

        Args:
            columns: Names of uint64 columns. The range of the first divides the
                documents into parts that fit into memory.
            is_wanted: True for each document to read, bool[n].
        """
        part_count = (
            1 + int(is_wanted.sum()) * _SORTED_BYTES * len(columns) // self._memory
        )
        for part in range(part_count):
            smallest = part * _ALL_KEYS // part_count
            largest = (part + 1) * _ALL_KEYS // part_count - 1
            keys: list[list[UInt64]] = [[] for _ in columns]
            numbers: list[Int64] = []
            for unit, file in enumerate(self._files()):
                offset = self._offsets[unit]
                unit_columns = [file.column(name) for name in columns]
                is_read = is_wanted[offset : self._offsets[unit + 1]]
                if part_count > 1:
                    first_column = unit_columns[0]
                    is_read = (
                        is_read
                        & (first_column >= np.uint64(smallest))
                        & (first_column <= np.uint64(largest))
                    )
                rows = np.flatnonzero(is_read)
                numbers.append(rows + offset)
                for column, values in zip(keys, unit_columns, strict=True):
                    column.append(values[rows])
            yield [np.concatenate(column) for column in keys], np.concatenate(numbers)

    def _settle(self, fate: Fate) -> None:
        """Mark every document of a set except the first; documents of earlier lists
        keep their fate.
        """
        compiled_loops().settle(self.parents)
        is_left_out = self.parents < np.arange(len(self.parents))
        is_left_out[: self._offsets[self._first_unit]] = False
        self.fate[is_left_out & (self.fate == Fate.KEPT)] = fate

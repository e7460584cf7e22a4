"""Exact and near duplicates among the documents of all sources.

One document of equal ones stays, and the others are left out.

1. Every document has a number: the units of earlier lists first, then those of the
   sources, in order.
2. Documents with an equal key (the hash of the whole text, or the key of a band) join
   one set. A forest of parents holds the sets (union-find); the parent is always the
   lower number.
3. Of each set the document with the lowest number stays. A document of an earlier list
   always stays.

Keys are sorted a part at a time, in bounded memory.

Example: documents 0 to 4, of which 1 and 3 share a key, and 3 and 4 another. The parents
become 0, 1, 2, 1, 1: documents 0, 1 and 2 stay, and 3 and 4 are left out for 1.
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

_SORTED_BYTES: Final = 64
"""Bytes of memory for a key, its document, their order and copies of them, while they
are sorted.
"""
_ALL_KEYS: Final = 1 << 64
"""Number of different keys, which are 64-bit hashes."""


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
        row_counts = [signatures.rows for signatures in self._files()]
        self._offsets = np.concatenate([[0], np.cumsum(row_counts, dtype=np.int64)])
        document_count = self._offsets[-1]
        self.fate: UInt8 = np.zeros(document_count, np.uint8)
        self.parents: Int64 = np.arange(document_count)
        self._has_ngrams: Bools = np.zeros(document_count, np.bool_)
        identities = self._mark_earlier(earlier)
        self._mark_present(excluded, np.sort(identities))

    def drop_duplicates(self) -> None:
        """Leave out every document whose hash an earlier document has."""
        for (high, low), numbers in self._keys(
            ("exact_high", "exact_low"), self.fate == Fate.KEPT
        ):
            # A hash of 128 bits is two columns, sorted by the first and then the second.
            order = np.lexsort((low, high))
            sorted_high = high[order]
            sorted_low = low[order]
            # Number the hashes: equal ones are neighbours and get the same number.
            differs_high = sorted_high[1:] != sorted_high[:-1]
            differs_low = sorted_low[1:] != sorted_low[:-1]
            is_new = np.ones(len(order), np.uint64)
            is_new[1:] = differs_high | differs_low
            hash_numbers = np.cumsum(is_new, dtype=np.uint64)
            compiled_loops().unite(self.parents, hash_numbers, numbers[order])
        self._settle(Fate.DUPLICATE)

    def drop_near_duplicates(self, bands: int) -> None:
        """Leave out every document that equal bands link to an earlier one.

        The link may be direct, or through other documents.
        """
        # A document without n-grams has bands that mean nothing.
        candidates = (self.fate == Fate.KEPT) & self._has_ngrams
        for band in range(bands):
            for (keys,), numbers in self._keys((band_name(band),), candidates):
                order = np.argsort(keys, kind="stable")
                compiled_loops().unite(self.parents, keys[order], numbers[order])
        self._settle(Fate.NEAR_DUPLICATE)

    def of_unit(self, index: int) -> slice:
        """Return the numbers of the documents of a unit of the sources."""
        unit = self._first_unit + index
        return slice(int(self._offsets[unit]), int(self._offsets[unit + 1]))

    def kept_for_others(self) -> KeptPlaces:
        """Return the places of all documents for which others are left out.

        They take 24 bytes each.
        """
        # 1. The numbers of these documents, ascending.
        is_exact_duplicate = self.fate == Fate.DUPLICATE
        is_near_duplicate = self.fate == Fate.NEAR_DUPLICATE
        numbers = np.unique(self.parents[is_exact_duplicate | is_near_duplicate])
        # 2. Their places, unit by unit. Of a unit without any no column is read.
        file_ids = np.empty(len(numbers), np.int64)
        positions = np.empty(len(numbers), np.int64)
        unit_bounds = np.searchsorted(numbers, self._offsets)
        for unit, signatures in enumerate(self._files()):
            in_unit = slice(unit_bounds[unit], unit_bounds[unit + 1])
            if in_unit.start < in_unit.stop:
                rows = numbers[in_unit] - self._offsets[unit]
                file_ids[in_unit] = signatures.column("file")[rows]
                positions[in_unit] = signatures.column("position")[rows]
        return KeptPlaces(numbers, file_ids, positions)

    def left_out(
        self, index: int, signatures: SignatureFile, kept_places: KeptPlaces
    ) -> LeftOut:
        """Return the documents that are left out of a unit of the sources.

        Args:
            index: Index of the unit.
            signatures: Signatures of the unit.
            kept_places: Places of the documents for which others are left out.
        """
        numbers = self.of_unit(index)
        fate = self.fate[numbers]
        # Rows count from the first document of the unit; parents are numbers of
        # documents of all units.
        rows = np.flatnonzero((fate != Fate.KEPT) & (fate != Fate.KEPT_BEFORE))

        # A fate has its reason; a document that is left out by itself has the reason of
        # its signature.
        reasons: list[str] = []
        fates = fate[rows].tolist()
        own_reasons = signatures.column("reason").take(pa.array(rows)).to_pylist()
        for fate_code, own_reason in zip(fates, own_reasons, strict=True):
            reasons.append(REASONS.get(Fate(fate_code)) or str(own_reason))

        # A duplicate names the place of the document that is kept.
        is_duplicate = np.isin(fate[rows], (Fate.DUPLICATE, Fate.NEAR_DUPLICATE))
        # `kept_places` has the places of all parents, so that the search finds each.
        parents = self.parents[numbers][rows[is_duplicate]]
        kept_indices = np.searchsorted(kept_places.numbers, parents)
        return LeftOut(
            signatures.column("file")[rows],
            signatures.column("position")[rows],
            reasons,
            is_duplicate,
            kept_places.file[kept_indices],
            kept_places.position[kept_indices],
        )

    def _files(self) -> Iterator[SignatureFile]:
        return opened_signatures(self._store, self._names)

    def _mark_earlier(self, earlier: Sequence[EarlierList]) -> UInt64:
        """Mark the documents that earlier lists left out.

        Returns:
            Identities of the other documents, uint64.
        """
        unit = 0
        identities = [np.zeros(0, np.uint64)]
        for earlier_list in earlier:
            for signatures in opened_signatures(self._store, earlier_list.units):
                numbers = slice(self._offsets[unit], self._offsets[unit + 1])
                file_ids = signatures.column("file")
                places = places_hash(file_ids, signatures.column("position"))
                is_left_out = np.isin(places, earlier_list.places)
                self.fate[numbers] = np.where(is_left_out, Fate.GONE_BEFORE, Fate.KEPT)
                self._has_ngrams[numbers] = signatures.column("ngrams") > 0
                # A document is the same if its place and its text are: a file may have
                # changed since.
                unit_identities = places_hash(places, signatures.column("exact_high"))
                identities.append(unit_identities[~is_left_out])
                unit += 1
        return np.concatenate(identities)

    def _mark_present(
        self,
        excluded: Sequence[Mapping[int, Sequence[int]]],
        earlier_identities: UInt64,
    ) -> None:
        """Mark the documents that an earlier list kept, and those left out by themselves.

        A later mark overrides an earlier one.
        """
        present_units = self._names[self._first_unit :]
        present_files = opened_signatures(self._store, present_units)
        for unit_index, signatures in enumerate(present_files):
            unit = self.of_unit(unit_index)
            fate = self.fate[unit]  # a view: the lines below write into `self.fate`
            file_ids = signatures.column("file")
            positions = signatures.column("position")
            # 1. The same document in an earlier list, which must not be left out for
            #    itself.
            if len(earlier_identities):
                places = places_hash(file_ids, positions)
                identities = places_hash(places, signatures.column("exact_high"))
                fate[np.isin(identities, earlier_identities)] = Fate.KEPT_BEFORE
            # 2. A reason of its own: quality, or contamination.
            reason: Any = signatures.column("reason")
            fate[reason.is_valid().to_numpy()] = Fate.OWN_REASON
            # 3. A list of the user's.
            for excluded_file, excluded_positions in excluded[unit_index].items():
                position_array = np.asarray(excluded_positions, np.int64)
                is_excluded = np.isin(positions, position_array)
                fate[(file_ids == excluded_file) & is_excluded] = Fate.EXCLUDED
            self._has_ngrams[unit] = signatures.column("ngrams") > 0

    def _keys(
        self, columns: Sequence[str], is_wanted: Bools
    ) -> Iterator[tuple[list[UInt64], Int64]]:
        """Yield columns of documents, and the documents' numbers, ascending.

        Equal keys come in one part.

        Args:
            columns: Names of uint64 columns. The range of the first divides the
                documents into parts that fit into memory.
            is_wanted: True for each document to read, bool[n].
        """
        sorted_bytes = int(is_wanted.sum()) * _SORTED_BYTES * len(columns)
        part_count = 1 + sorted_bytes // self._memory
        for part in range(part_count):
            # Keys are hashes, and so spread evenly: equal ranges hold equally many.
            smallest = part * _ALL_KEYS // part_count
            largest = (part + 1) * _ALL_KEYS // part_count - 1
            # Signatures are read once for each part; only the keys of the part are kept.
            keys: list[list[UInt64]] = [[] for _ in columns]
            numbers: list[Int64] = []
            # Documents are numbered across all units, from the offset of each.
            for unit, signatures in enumerate(self._files()):
                offset = self._offsets[unit]
                unit_columns = [signatures.column(name) for name in columns]
                is_read = is_wanted[offset : self._offsets[unit + 1]]
                if part_count > 1:
                    first_column = unit_columns[0]
                    is_large_enough = first_column >= np.uint64(smallest)
                    is_small_enough = first_column <= np.uint64(largest)
                    is_read = is_read & is_large_enough & is_small_enough
                rows = np.flatnonzero(is_read)
                numbers.append(rows + offset)
                for column_keys, values in zip(keys, unit_columns, strict=True):
                    column_keys.append(values[rows])
            key_columns = [np.concatenate(column_keys) for column_keys in keys]
            yield key_columns, np.concatenate(numbers)

    def _settle(self, fate: Fate) -> None:
        """Mark every document of a set except the first.

        Documents of earlier lists keep their fate.
        """
        # The parent is the lowest number of the set, which belongs to the document that
        # stays.
        compiled_loops().settle(self.parents)
        is_left_out = self.parents < np.arange(len(self.parents))
        is_left_out[: self._offsets[self._first_unit]] = False
        self.fate[is_left_out & (self.fate == Fate.KEPT)] = fate

"""Exact and near duplicates among the documents of all sources: which one stays, and which are left out.

1. Every document has a number: the units of earlier lists first, then those of the sources, in order.
2. Documents with an equal key (the hash of the whole text, or the key of a band) join one set. A forest of parents
   holds the sets (union-find); the parent is always the lower number.
3. Of each set the document with the lowest number stays. A document of an earlier list always stays.

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
    64  # of memory for a key, its document, their order and copies of them, while they are sorted
)
_ALL_KEYS: Final = 1 << 64


@final
class Documents:
    """All documents of a run, and what becomes of each.

    Args:
        store: where signatures are.
        earlier: lists whose documents are there already.
        units: fingerprints of the units of the sources, in order.
        excluded: for each unit, file to the positions that are left out whatever they hold.
        memory: bytes for sorting.

    Attributes:
        fate: uint8[n], of :class:`Fate`.
        parents: int64[n], the number of the document for which each is left out; its own where there is none.
    """

    def __init__(
        self,
        store: Store,
        earlier: Sequence[EarlierList],
        units: Sequence[str],
        excluded: Sequence[Mapping[int, Sequence[int]]],
        memory: int,
    ) -> None:
        self._store, self._memory = store, memory
        self._names = [name for each in earlier for name in each.units] + list(units)
        self._first = len(self._names) - len(units)
        rows = [file.rows for file in self._files()]
        self._offsets = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self.fate: UInt8 = np.zeros(self._offsets[-1], np.uint8)
        self._signed: Bools = np.zeros(self._offsets[-1], np.bool_)
        self.parents: Int64 = np.arange(self._offsets[-1])
        kept = self._take_earlier(earlier)
        self._take_present(excluded, np.sort(kept))

    def drop_duplicates(self) -> None:
        """Leave out documents with the hash of another one."""
        for (high, low), items in self._keys(("exact_high", "exact_low"), self.fate == Fate.KEPT):
            order = np.lexsort((low, high))
            high, low = high[order], low[order]
            new = np.ones(len(order), np.uint64)
            new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
            compiled_loops().unite(self.parents, np.cumsum(new, dtype=np.uint64), items[order])
        self._settle(Fate.DUPLICATE)

    def drop_near_duplicates(self, bands: int) -> None:
        """Leave out documents that have a band in common with another one, or with one that has one in common, ..."""
        wanted = (self.fate == Fate.KEPT) & self._signed
        for band in range(bands):
            for (keys,), items in self._keys((band_name(band),), wanted):
                order = np.argsort(keys, kind="stable")
                compiled_loops().unite(self.parents, keys[order], items[order])
        self._settle(Fate.NEAR_DUPLICATE)

    def of_unit(self, index: int) -> slice:
        """Return the numbers of the documents of a unit of the sources."""
        return slice(*map(int, self._offsets[self._first + index : self._first + index + 2]))

    def kept_for_others(self) -> KeptPlaces:
        """Return the places of all documents that others are left out for; 24 bytes for each are held."""
        twice = (self.fate == Fate.DUPLICATE) | (self.fate == Fate.NEAR_DUPLICATE)
        numbers = np.unique(self.parents[twice])
        file, position = np.empty((2, len(numbers)), np.int64)
        ends = np.searchsorted(numbers, self._offsets)
        for index, each in enumerate(self._files()):
            mine = slice(ends[index], ends[index + 1])
            if mine.start < mine.stop:
                rows = numbers[mine] - self._offsets[index]
                file[mine], position[mine] = each.column("file")[rows], each.column("position")[rows]
        return KeptPlaces(numbers, file, position)

    def left_out(self, index: int, signatures: SignatureFile, kept: KeptPlaces) -> LeftOut:
        """Return what is left out of a unit of the sources."""
        mine = self.of_unit(index)
        fate = self.fate[mine]
        rows = np.flatnonzero((fate != Fate.KEPT) & (fate != Fate.KEPT_BEFORE))
        own = signatures.column("reason").take(pa.array(rows)).to_pylist()
        fates = [Fate(code) for code in fate[rows].tolist()]
        reason = [REASONS.get(each) or str(why) for each, why in zip(fates, own, strict=True)]
        twice = np.isin(fate[rows], (Fate.DUPLICATE, Fate.NEAR_DUPLICATE))
        at = np.searchsorted(kept.numbers, self.parents[mine][rows[twice]])
        file, position = signatures.column("file")[rows], signatures.column("position")[rows]
        return LeftOut(file, position, reason, twice, kept.file[at], kept.position[at])

    def _files(self) -> Iterator[SignatureFile]:
        return opened_signatures(self._store, self._names)

    def _take_earlier(self, earlier: Sequence[EarlierList]) -> UInt64:
        """Say what is gone since an earlier list; return the identities of what is not."""
        index, identities = 0, [np.zeros(0, np.uint64)]
        for each in earlier:
            for file in opened_signatures(self._store, each.units):
                mine = slice(self._offsets[index], self._offsets[index + 1])
                places = places_hash(file.column("file"), file.column("position"))
                gone = np.isin(places, each.places)
                self.fate[mine] = np.where(gone, Fate.GONE_BEFORE, Fate.KEPT)
                self._signed[mine] = file.column("ngrams") > 0
                identities.append(places_hash(places, file.column("exact_high"))[~gone])
                index += 1
        return np.concatenate(identities)

    def _take_present(self, excluded: Sequence[Mapping[int, Sequence[int]]], before: UInt64) -> None:
        """Say what is left out for its own sake, and what an earlier list kept."""
        files = opened_signatures(self._store, self._names[self._first :])
        for index, file in enumerate(files):
            fate, name, position = (
                self.fate[self.of_unit(index)],
                file.column("file"),
                file.column("position"),
            )
            if len(before):
                same = places_hash(places_hash(name, position), file.column("exact_high"))
                fate[np.isin(same, before)] = Fate.KEPT_BEFORE
            reason: Any = file.column("reason")
            fate[reason.is_valid().to_numpy()] = Fate.OWN_REASON
            for each, positions in excluded[index].items():
                fate[(name == each) & np.isin(position, np.asarray(positions, np.int64))] = Fate.EXCLUDED
            self._signed[self.of_unit(index)] = file.column("ngrams") > 0

    def _keys(self, columns: Sequence[str], wanted: Bools) -> Iterator[tuple[list[UInt64], Int64]]:
        """Yield columns of the wanted documents, and their numbers, ascending; equal keys come together.

        Args:
            columns: uint64; the first one divides documents into parts.
        """
        parts = 1 + int(wanted.sum()) * _SORTED_BYTES * len(columns) // self._memory
        for part in range(parts):
            keys: list[list[UInt64]] = [[] for _ in columns]
            items: list[Int64] = []
            least, most = part * _ALL_KEYS // parts, (part + 1) * _ALL_KEYS // parts - 1
            for index, file in enumerate(self._files()):
                offset = self._offsets[index]
                found = [file.column(name) for name in columns]
                mine = wanted[offset : self._offsets[index + 1]]
                if parts > 1:
                    mine = mine & (found[0] >= np.uint64(least)) & (found[0] <= np.uint64(most))
                rows = np.flatnonzero(mine)
                items.append(rows + offset)
                for column, values in zip(keys, found, strict=True):
                    column.append(values[rows])
            yield [np.concatenate(column) for column in keys], np.concatenate(items)

    def _settle(self, fate: Fate) -> None:
        """Give what is not the first of its set its fate; what an earlier list holds is no one's to leave out."""
        compiled_loops().settle(self.parents)
        left_out = self.parents < np.arange(len(self.parents))
        left_out[: self._offsets[self._first]] = False
        self.fate[left_out & (self.fate == Fate.KEPT)] = fate

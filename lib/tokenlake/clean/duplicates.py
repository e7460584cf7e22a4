"""Which documents are left out: for what they are, and for what other documents are.

All documents of a run have a number: first those that earlier lists kept, then those of the sources, in the order of
the configuration, of paths and of positions. Of equal or near documents the one with the least number stays. Whatever
an earlier list kept stays as well, so that a version never loses what it had.

For each document 25 bytes are held. Keys are sorted band by band, and as large a part of a band at a time as the
memory for sorting allows; what is left out does not depend on it.

The list of what is left out is a Parquet file that `exclude` of a build takes, and that says how it was made. Its
footer names the signatures of all documents that were looked at. So the list is an index, too: a later run reads there
what this one kept. No clock, host or path of the machine is in it: equal inputs give equal bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.arrays import Bools, Int64, UInt8, UInt64
from tokenlake.clean.signatures import EvenRowGroups, SignatureFile, band_name, kernels, opened_signatures
from tokenlake.config.resolved import Signing
from tokenlake.errors import ConfigError
from tokenlake.mixing.random import splitmix64
from tokenlake.store.base import Store
from tokenlake.store.ledger import Account

_SORTED_BYTES: Final = (
    64  # of memory for a key, its document, their order and copies of them, while they are sorted
)
_ALL_KEYS: Final = 1 << 64
_KEPT: Final = ("kept_file", "kept_position")


class Fate(IntEnum):
    """What becomes of a document."""

    KEPT = 0
    OWN_REASON = 1
    EXCLUDED = 2
    DUPLICATE = 3
    NEAR_DUPLICATE = 4
    KEPT_BEFORE = 5
    GONE_BEFORE = 6


REASONS: Final[Mapping[Fate, str]] = {
    Fate.EXCLUDED: "excluded",
    Fate.DUPLICATE: "duplicate",
    Fate.NEAR_DUPLICATE: "near_duplicate",
}
"""Why a document is left out that has no reason of its own in its signature."""


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """Documents that others are left out for.

    Attributes:
        numbers: int64[k], ascending.
        file, position: int64[k].
    """

    numbers: Int64
    file: Int64
    position: Int64


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Documents of a unit that are left out.

    Attributes:
        file, position: int64[m].
        reason: of each.
        twice: bool[m], whether it is for another document, which stays.
        kept_file, kept_position: int64, of these.
    """

    file: Int64
    position: Int64
    reason: list[str]
    twice: Bools
    kept_file: Int64
    kept_position: Int64

    def __len__(self) -> int:
        return len(self.reason)

    def to_columns(self) -> dict[str, Any]:
        """Return the columns of a list; null where no other document stays for this one."""
        kept = np.zeros((2, len(self)), np.int64)
        kept[:, self.twice] = self.kept_file, self.kept_position
        found = {name: pa.array(values, mask=~self.twice) for name, values in zip(_KEPT, kept, strict=True)}
        return {"file": self.file, "position": self.position, "reason": self.reason, **found}


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
            kernels().unite(self.parents, np.cumsum(new, dtype=np.uint64), items[order])
        self._settle(Fate.DUPLICATE)

    def drop_near_duplicates(self, bands: int) -> None:
        """Leave out documents that have a band in common with another one, or with one that has one in common, ..."""
        wanted = (self.fate == Fate.KEPT) & self._signed
        for band in range(bands):
            for (keys,), items in self._keys((band_name(band),), wanted):
                order = np.argsort(keys, kind="stable")
                kernels().unite(self.parents, keys[order], items[order])
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
        kernels().settle(self.parents)
        left_out = self.parents < np.arange(len(self.parents))
        left_out[: self._offsets[self._first]] = False
        self.fate[left_out & (self.fate == Fate.KEPT)] = fate


FORMAT: Final = 1
_ABOUT: Final = "tokenlake.clean"
SCHEMA: Final = pa.schema(
    [
        pa.field("file", pa.int64(), False),
        pa.field("position", pa.int64(), False),
        pa.field("source", pa.string(), False),
        pa.field("path", pa.string(), False),
        pa.field("reason", pa.string(), False),
        pa.field("kept_file", pa.int64()),
        pa.field("kept_position", pa.int64()),
    ]
)
"""``file``, ``position``: the document. ``kept_file``, ``kept_position``: of a duplicate, the document that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanAbout:
    """How a list was made.

    Attributes:
        signing: what was made of every document.
        units: fingerprints of the signatures, in order.
        accounts: by source; what is left out is `filtered` by its reason.
        sets: evaluation set to its documents, those too short to be found, and n-grams.
    """

    signing: Mapping[str, Any]
    units: tuple[str, ...]
    accounts: Mapping[str, Account]
    sets: Mapping[str, Mapping[str, int]]

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        data = asdict(self) | {"format": FORMAT}
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what the bytes say; ValueError or KeyError where they are of another format."""
        found = json.loads(data)
        if found.pop("format") != FORMAT:
            raise ValueError("it is of another format")
        accounts = {name: Account(**each) for name, each in found.pop("accounts").items()}
        return cls(accounts=accounts, units=tuple(found.pop("units")), **found)


def places_hash(file: Any, position: Any) -> UInt64:
    """Return a hash of documents' identities (int64[n] each), uint64[n]."""
    return splitmix64(splitmix64(position.view("uint64")) ^ file.view("uint64"))


@final
class EarlierList:
    """A list that an earlier run wrote.

    Attributes:
        units: fingerprints of the signatures of its documents.
        places: uint64[m], hashes of the places that it leaves out.

    Raises:
        ConfigError: it is none, or was made with signatures that cannot be compared with these.
    """

    def __init__(self, path: str, signing: Signing) -> None:
        about = read_about(path)
        if about is None:
            raise ConfigError(
                f"clean.against: {path}: expected a list that `tokenlake clean` wrote; this file says nothing of how "
                "it was made",
                file=path,
            )
        for name, value in signing.comparable.items():
            if about.signing[name] != value:
                raise ConfigError(
                    f"clean.against: {path} was made with {name} {about.signing[name]!r}, and this run has {value!r}; "
                    "only signatures of one kind are compared. Give both runs the same clean.exact and clean.minhash",
                    file=path,
                )
        table = pq.read_table(path, columns=["file", "position"])
        self.units = about.units
        self.places = places_hash(table["file"].to_numpy(), table["position"].to_numpy())


def read_about(path: str) -> CleanAbout | None:
    """Return how a list was made; None of a Parquet file of another kind.

    Raises:
        ConfigError: there is no such file, or it is no Parquet file, or of another release.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
        return CleanAbout.from_bytes(metadata[key]) if (key := _ABOUT.encode()) in metadata else None
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", file=path) from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: not a list of documents to leave out: {error}", file=path) from error


def require_ours(path: str) -> None:
    """Raise ConfigError where a file lies at `path` that no run of `clean` wrote: a list made by hand stays."""
    if Path(path).exists() and read_about(path) is None:
        raise ConfigError(
            f"clean.output: {path} is there, and `tokenlake clean` did not write it; name another file. A list of your "
            "own goes to `exclude`: `clean` takes what it leaves out over",
            file=path,
        )


@final
class ListWriter:
    """Writes a list to a temporary file, which takes its place at the end, whole."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temp = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._rows = EvenRowGroups(self._temp, SCHEMA, ["source", "path", "reason"])

    def write(self, rows: pa.RecordBatch) -> None:
        """Add documents."""
        self._rows.write(rows)

    def finish(self, about: CleanAbout) -> None:
        """Put the file in its place."""
        self._rows.finish({_ABOUT: about.to_bytes().decode()})
        with self._temp.open("rb") as file:
            os.fsync(file.fileno())
        self._temp.replace(self._path)

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        self._rows.discard()
        self._temp.unlink(missing_ok=True)

"""A new version for what cannot be repaired in place: the same rows, in the bytes of another release of a writer.

Committed bytes are what their manifest says or damaged, never anything else. So what came out with other bytes and the
same rows becomes the next version, of the same fingerprint, beside the damaged one: files that are well are linked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

from tokenlake.errors import VersionConflictError
from tokenlake.etl.commit import publish_manifest
from tokenlake.etl.produced_by import produced_by
from tokenlake.integrity.findings import listed_files
from tokenlake.integrity.repair_sources import rendered, units_of
from tokenlake.integrity.verify import verify
from tokenlake.store.base import ReadStore, Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import Claim
from tokenlake.store.entries import FileEntry, QuarantineEntry, ShardEntry
from tokenlake.store.layout import CARD, Layout, ledger_path, quarantine_path, version_number
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest

_TRIES: Final = 100


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """What goes into the new version.

    Attributes:
        old: the damaged version's manifest.
        damaged: paths in it that stay damaged.
        built: unit -> its record as it came out, of the units that hold one of these.
        records: unit -> record of all other units.
        workshop: where what came out lies, under the old version's keys; None where no unit was built.
    """

    old: Manifest
    damaged: Collection[str]
    built: Mapping[int, UnitRecord]
    records: Mapping[int, UnitRecord]
    workshop: ReadStore | None

    def commit(self, store: Store) -> int:
        """Make the version and return its number; of one that an equal repair made before, that one.

        Raises:
            VersionConflictError: other repairs and builds take all numbers.
        """
        for _ in range(_TRIES):
            version, there = self._number(store)
            if there:
                return version
            claim = Claim(
                dataset=self.old.dataset, version=version, fingerprint=self.old.fingerprint, meta={}
            )
            layout = Layout(self.old.dataset, version)
            try:
                store.put_new(layout.claim, claim.to_bytes())
            except VersionConflictError:
                if _is_ours(store, claim):
                    _Writing(self, store, layout).run()
                    return version
                continue
            _Writing(self, store, layout).run()
            return version
        raise VersionConflictError(
            f"{self.old.dataset}: lost {_TRIES} races for a version number in {store.url}. Repair again when the other "
            "builds are done"
        )

    def _number(self, store: Store) -> tuple[int, bool]:
        """Return the number to take, and whether an equal version is committed there and well."""
        catalog, dataset = Catalog(store), self.old.dataset
        newer = [info for info in catalog.versions(dataset, swept=True) if info.version > self.old.version]
        for info in newer:
            if info.committed:
                well = verify(store, dataset, info.version).ok
                if well and catalog.manifest(dataset, info.version).fingerprint == self.old.fingerprint:
                    return info.version, True
            elif not info.swept:
                claim = catalog.read_claim(dataset, info.version)
                if claim is not None and claim.fingerprint == self.old.fingerprint:
                    return info.version, False
        taken = [number for number in map(version_number, store.list_dirs(dataset)) if number is not None]
        return max(taken) + 1, False


@final
@dataclass(slots=True)
class _Writing:
    """The new version while it is being written; whatever is done already is found equal."""

    successor: Successor
    store: Store
    layout: Layout
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    other: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])

    def run(self) -> None:
        old = self.successor.old
        self.hashes = {path: entry.sha256 for path, entry in listed_files(old).items()}
        records = [self._record(unit) for unit in units_of(old)]
        for path, entry in old.other_files.items():
            if path not in self.other and path != CARD and not path.startswith(("ledger/", "quarantine/")):
                self._other(path, entry)
        draft = replace(
            old,
            version=self.layout.version,
            files=tuple(part for record in records for part in record.parts),
            other_files=dict(sorted(self.other.items())),
            produced_by=produced_by(),
        )
        draft.check(self.layout.manifest)
        self._put(CARD, rendered(draft, CARD) or b"")
        manifest = replace(draft, other_files=dict(sorted(self.other.items())))
        self.store.sweep_temp(self.layout.prefix)
        publish_manifest(self.store, self.layout, manifest)

    def _record(self, unit: int) -> UnitRecord:
        """Publish a unit's files and its record."""
        built = self.successor.built.get(unit)
        record = self.successor.records[unit] if built is None else self._chosen(built)
        for part in record.parts:
            self._file(part.path, part.sha256)
        if (held := record.quarantine) is not None:
            self._file(held.path, held.sha256)
            self.other[held.path] = FileEntry(bytes=held.bytes, sha256=held.sha256)
        self._put(ledger_path(unit), record.to_bytes())
        return record

    def _chosen(self, built: UnitRecord) -> UnitRecord:
        """Return a record of what came out where the old file is damaged, and of the old file where it is well."""
        old, damaged = {part.path: part for part in self.successor.old.files}, self.successor.damaged
        parts = tuple(_either(old.get(part.path), part, damaged) for part in built.parts)
        path = quarantine_path(built.unit)
        entry, held = self.successor.old.other_files.get(path), built.quarantine
        if held is not None and entry is not None and path not in damaged:
            held = QuarantineEntry(path=path, bytes=entry.bytes, sha256=entry.sha256, rows=held.rows)
        return replace(built, parts=parts, quarantine=held)

    def _other(self, path: str, entry: FileEntry) -> None:
        if path in self.successor.damaged:
            self._put(path, rendered(self.successor.old, path) or b"")
            return
        self._file(path, entry.sha256)
        self.other[path] = entry

    def _file(self, path: str, sha256: str) -> None:
        """Publish a file that lies in the old version, or came out of the workshop."""
        old, key = (
            Layout(self.successor.old.dataset, self.successor.old.version).key(path),
            self.layout.key(path),
        )
        if path not in self.successor.damaged and self.hashes.get(path) == sha256:
            self.store.link(old, key, sha256, replace_orphan=self._is_open)
            return
        assert self.successor.workshop is not None
        temp = self.store.temp(self.layout.prefix)
        try:
            temp.unlink()
            self.successor.workshop.download(old, temp)
            self.store.publish(temp, key, sha256, replace_orphan=self._is_open)
        finally:
            temp.unlink(missing_ok=True)

    def _put(self, path: str, data: bytes) -> None:
        self.store.put_new(self.layout.key(path), data, replace_orphan=self._is_open)
        self.other[path] = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _is_open(self) -> bool:
        return not self.store.exists(self.layout.manifest)


def _either(old: ShardEntry | None, new: ShardEntry, damaged: Collection[str]) -> ShardEntry:
    if old is None or old.path in damaged or (old.rows, old.logical) != (new.rows, new.logical):
        return new
    return old


def _is_ours(store: Store, claim: Claim) -> bool:
    """Whether a claim that is there is that of an equal repair, which goes on or was cut short."""
    found = Catalog(store).read_claim(claim.dataset, claim.version)
    return found is not None and found.fingerprint == claim.fingerprint and found.state != "swept"

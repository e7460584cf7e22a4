"""Units that need not be built again: of this claim, or equal ones of other versions.

A unit of another version is taken over by links to its files, or copies of them. For
example, version 2 has the files of version 1 and one more. All units of version 1 have
the same fingerprints in version 2, so only the units of the new file are built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from tokenlake.base.threads import in_order
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.etl.plan.plan import PlannedUnit
from tokenlake.runtime.store.base import Link, ObjectInfo, Store, caught, require_digest
from tokenlake.runtime.store.catalog import Catalog, read_record
from tokenlake.runtime.store.layout import (
    DATA,
    LEDGER,
    QUARANTINE,
    Layout,
    ledger_path,
    ledger_unit,
    quarantine_path,
    shard_path,
)
from tokenlake.runtime.store.ledger import QuarantineEntry, ShardEntry, UnitRecord

MOST_VERSIONS: Final = 20
"""Number of versions that are searched for reusable units, newest first."""

_UNITS_PER_STEP: Final = 256
"""Number of units that are linked before they are recorded: a crash may leave this
many unrecorded.
"""


def finished_records(
    catalog: Catalog, units: Sequence[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Yield the records of this claim that belong to the plan and have intact files.

    A damaged record, or one with damaged files, is deleted: its unit will be built
    again.

    Args:
        catalog: Catalog of the store.
        units: Units of the plan.
        dataset: Name of the dataset.
        version: Number of the claimed version.
    """
    store = catalog.writable
    layout = Layout(dataset, version)
    fingerprints = {unit.index: unit.fingerprint for unit in units}
    listed_version = ListedVersion(store, layout)

    def intact_record(index: int) -> UnitRecord | None:
        try:
            record = read_record(store, layout, index)
            if fingerprints.get(index) != record.fingerprint:
                raise IntegrityError(
                    f"{layout.ledger(index)}: not a unit of this build"
                )
            # Files are read only if the listing does not prove their bytes.
            for file in _files_of(record):
                if listed_version.proof(file, index) is None:
                    require_digest(store, layout.key(file.path), file)
        except (IntegrityError, NotFoundError):
            store.delete(layout.ledger(index))
            return None
        return record

    # Records are read in parallel, in the order of the units.
    for record in in_order(intact_record, listed_version.units, store.at_once):
        if record is not None:
            yield record


def adopted_records(
    catalog: Catalog, pending: Iterable[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Take over pending units that other versions have built, and yield their records.

    The records are in the ledger of this version then. Older versions are searched,
    newest first. A unit whose record or files are damaged or gone is passed over.

    Args:
        catalog: Catalog of the store.
        pending: Units that are still to build.
        dataset: Name of the dataset.
        version: Number of the claimed version.
    """
    wanted_units = {unit.fingerprint: unit.index for unit in pending}
    target = Layout(dataset, version)
    other_versions = {info.version for info in catalog.versions(dataset)} - {version}
    for other_version in sorted(other_versions, reverse=True)[:MOST_VERSIONS]:
        if not wanted_units:
            return
        source = ListedVersion(catalog.writable, Layout(dataset, other_version))
        for start in range(0, len(source.units), _UNITS_PER_STEP):
            if not wanted_units:
                return
            units = source.units[start : start + _UNITS_PER_STEP]
            for record in _adopt(source, units, wanted_units, target):
                del wanted_units[record.fingerprint]
                yield record


def _adopt(
    source: ListedVersion,
    units: Sequence[int],
    wanted_units: Mapping[str, int],
    target: Layout,
) -> list[UnitRecord]:
    """Take over units of another version.

    All their files are linked. When these are durable, all their records are written.

    Args:
        source: Other version.
        units: Units of the other version that are looked at.
        wanted_units: Index here of each wanted unit, by its fingerprint.
        target: Layout of this version.
    """
    # 1. The records of units that are wanted here.
    store = source.store
    old_records: dict[str, UnitRecord] = {}
    for record in in_order(source.read, units, store.at_once):
        if isinstance(record, UnitRecord) and record.fingerprint in wanted_units:
            old_records[record.fingerprint] = record

    # 2. The files of all units in one call: a bucket copies them in parallel, a folder
    #    is synced once.
    new_records: list[UnitRecord] = []
    unit_of_link: dict[Link, int] = {}
    for fingerprint, old in old_records.items():
        new = renamed_record(old, wanted_units[fingerprint])
        new_records.append(new)
        for link in source.links(old, new, target):
            unit_of_link[link] = new.unit

    results = store.link_all(list(unit_of_link))

    # 3. The records of units whose files were all linked.
    failed_units: set[int] = set()
    for unit, result in zip(unit_of_link.values(), results, strict=True):
        if isinstance(result, Exception):
            failed_units.add(unit)
    adopted: list[UnitRecord] = []
    ledger_files: dict[str, bytes] = {}
    for record in new_records:
        if record.unit not in failed_units:
            adopted.append(record)
            ledger_files[target.ledger(record.unit)] = record.to_bytes()
    store.put_all(ledger_files)
    return adopted


@final
class ListedVersion:
    """Version as listings of its files describe it.

    A listing is one request for a thousand objects.

    Attributes:
        store: Store of the version.
        layout: Layout of the version.
        units: Units that have a record, ascending.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self._infos: dict[str, ObjectInfo] = {}
        for folder in (LEDGER, DATA, QUARANTINE):
            for info in store.list(layout.key(folder)):
                self._infos[layout.path(info.key)] = info
        self.units: list[int] = []
        for path in self._infos:
            unit = ledger_unit(path)
            if unit is not None:
                self.units.append(unit)
        self.units.sort()

    def read(self, unit: int) -> UnitRecord | Exception:
        """Return the record of a unit, or the error of a damaged one."""
        return caught(lambda: read_record(self.store, self.layout, unit))

    def has_files(self, record: UnitRecord) -> bool:
        """Return whether all files of a record are listed, with the recorded sizes."""
        for file in _files_of(record):
            info = self._infos.get(file.path)
            if info is None or info.size != file.bytes:
                return False
        return True

    def proof(self, file: ShardEntry | QuarantineEntry, unit: int) -> ObjectInfo | None:
        """Return the storage's entry of a file if it proves the file's bytes.

        The result is None if they must be read.

        A record is written after its files, and a bucket changes no object in place. So
        an object of the recorded size that is not younger than the record is the one
        that was checked when it was put. A folder proves nothing: its files have no
        token.

        Args:
            file: File as the record describes it.
            unit: Unit of the record.
        """
        info = self._infos.get(file.path)
        record_info = self._infos.get(ledger_path(unit))
        if info is None or record_info is None:
            return None
        if not info.token or info.size != file.bytes:
            return None
        # Some storage gives no times.
        if info.modified is None or record_info.modified is None:
            return None
        if info.modified > record_info.modified:
            return None
        return info

    def links(self, old: UnitRecord, new: UnitRecord, target: Layout) -> list[Link]:
        """Return the links from the files of a unit here to those of another version.

        Args:
            old: Record of the unit here.
            new: Record of the unit in the other version.
            target: Layout of the other version.
        """

        def has_no_record() -> bool:
            return not self.store.exists(target.ledger(new.unit))

        # A file that is there already may be replaced while its unit has no record.
        links: list[Link] = []
        for old_file, new_file in zip(_files_of(old), _files_of(new), strict=True):
            link = Link(
                source=self.layout.key(old_file.path),
                target=target.key(new_file.path),
                size=old_file.bytes,
                sha256=old_file.sha256,
                seen=self.proof(old_file, old.unit),
                orphan=has_no_record,
            )
            links.append(link)
        return links


def _files_of(record: UnitRecord) -> list[ShardEntry | QuarantineEntry]:
    """Return the files of a unit, shards and quarantine."""
    files: list[ShardEntry | QuarantineEntry] = list(record.parts)
    if record.quarantine is not None:
        files.append(record.quarantine)
    return files


def renamed_record(record: UnitRecord, unit: int) -> UnitRecord:
    """Return a record as another version has it, with another index of the unit."""
    # Paths have the index of the unit; the bytes of the files do not.
    parts: list[ShardEntry] = []
    for part in record.parts:
        path = shard_path(part.split, unit, part.part)
        parts.append(replace(part, unit=unit, path=path))
    quarantine = record.quarantine
    if quarantine is not None:
        quarantine = replace(quarantine, path=quarantine_path(unit))
    return replace(record, unit=unit, parts=tuple(parts), quarantine=quarantine)


def remove_record(store: Store, layout: Layout, unit: int) -> None:
    """Remove the record of a unit, which may be gone already."""
    # A request whose answer was lost may have deleted it.
    try:
        store.delete(layout.ledger(unit))
    except (NotFoundError, StoreError):
        if store.exists(layout.ledger(unit)):
            raise

"""Work that need not be done again: finished units of this claim, equal units of other versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tokenlake.build.project import PlannedUnit
from tokenlake.catalog import Catalog, read_record
from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.manifest import UnitRecord
from tokenlake.storage.base import Digest, ReadStore, Store
from tokenlake.storage.layout import LEDGER, Layout, ledger_unit, quarantine_path, shard_path
from tokenlake.storage.looking import require_digest

#: Versions looked through for reusable units, newest first.
_VERSIONS_BACK: Final = 20


def finished_records(
    catalog: Catalog, units: Sequence[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Yield the records of this claim whose unit is the plan's and whose files are intact.

    A record that is damaged, or whose files are, is deleted: its unit will be built again.
    """
    layout = Layout(dataset, version)
    wanted = {unit.index: unit.fingerprint for unit in units}
    for index in _units(catalog.store, layout):
        try:
            record = read_record(catalog.store, layout, index)
            if wanted.get(index) != record.fingerprint:
                raise IntegrityError(f"{layout.ledger(index)}: not a unit of this build")
            _require_intact(catalog.writable, layout, record)
        except (IntegrityError, NotFoundError):
            catalog.writable.delete(layout.ledger(index))
        else:
            yield record


def reusable_records(
    catalog: Catalog, pending: Iterable[PlannedUnit], dataset: str, version: int
) -> Iterator[tuple[Layout, UnitRecord, int]]:
    """Yield (where, record, our unit) for pending units that another version of the dataset has built.

    Older versions are looked at newest first; a damaged record is passed over.
    """
    by_fingerprint = {unit.fingerprint: unit.index for unit in pending}
    others = [info.version for info in catalog.versions(dataset) if info.version != version]
    for other in sorted(others, reverse=True)[:_VERSIONS_BACK]:
        layout = Layout(dataset, other)
        for index in _units(catalog.store, layout):
            if not by_fingerprint:
                return
            try:
                record = read_record(catalog.store, layout, index)
            except (IntegrityError, NotFoundError):
                continue
            ours = by_fingerprint.pop(record.fingerprint, None)
            if ours is not None:
                yield layout, record, ours


def adopt_record(
    store: Store, source: Layout, record: UnitRecord, target: Layout, unit: int
) -> UnitRecord | None:
    """Link another version's files under this version's names, re-hashing them first, and file the record.

    Returns:
        The record as this version's ledger holds it, or None when a file turned out damaged or gone.
    """

    def orphan() -> bool:
        return not store.exists(target.ledger(unit))

    adopted = renamed_record(record, unit)
    try:
        for old, new in zip(record.parts, adopted.parts, strict=True):
            store.link(source.key(old.path), target.key(new.path), old.sha256, replace_orphan=orphan)
        if record.quarantine is not None and adopted.quarantine is not None:
            old, new = record.quarantine, adopted.quarantine
            store.link(source.key(old.path), target.key(new.path), old.sha256, replace_orphan=orphan)
    except (IntegrityError, NotFoundError):
        return None
    store.put_new(target.ledger(unit), adopted.to_bytes())
    return adopted


def _units(store: ReadStore, layout: Layout) -> list[int]:
    found = [ledger_unit(layout.path(info.key)) for info in store.list(layout.key(LEDGER))]
    return sorted(index for index in found if index is not None)


def renamed_record(record: UnitRecord, unit: int) -> UnitRecord:
    """Return a record as it stands in another version, where the unit has another place."""
    parts = tuple(
        replace(part, unit=unit, path=shard_path(part.split, unit, part.part)) for part in record.parts
    )
    held = record.quarantine
    quarantine = None if held is None else replace(held, path=quarantine_path(unit))
    return replace(record, unit=unit, parts=parts, quarantine=quarantine)


def _require_intact(store: Store, layout: Layout, record: UnitRecord) -> None:
    files = [(part.path, part.bytes, part.sha256) for part in record.parts]
    if record.quarantine is not None:
        files.append((record.quarantine.path, record.quarantine.bytes, record.quarantine.sha256))
    for path, size, sha256 in files:
        key = layout.key(path)
        require_digest(store, key, Digest(size, sha256))


def publish_record(store: Store, layout: Layout, record: UnitRecord) -> None:
    """File a finished unit's record.

    Raises:
        VersionConflictError: a record of other content is there.
    """
    store.put_new(layout.ledger(record.unit), record.to_bytes())


def remove_record(store: Store, layout: Layout, unit: int) -> None:
    """Forget a unit, whose record may be gone already."""
    try:
        store.delete(layout.ledger(unit))
    except (NotFoundError, StoreError):
        if store.exists(layout.ledger(unit)):
            raise

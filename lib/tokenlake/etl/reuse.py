"""Work that need not be done again: finished units of this claim, equal units of other versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.etl.plan.plan import PlannedUnit
from tokenlake.store.base import Link, ObjectInfo, Store, caught, require_digest
from tokenlake.store.catalog import Catalog, read_record
from tokenlake.store.layout import (
    DATA,
    LEDGER,
    QUARANTINE,
    Layout,
    ledger_path,
    ledger_unit,
    quarantine_path,
    shard_path,
)
from tokenlake.store.ledger import QuarantineEntry, ShardEntry, UnitRecord
from tokenlake.threads import in_order

#: Versions looked through for reusable units, newest first.
_VERSIONS_BACK: Final = 20

#: Units taken over together: so much is linked before it is recorded, and that much a crash may leave unrecorded.
_TOGETHER: Final = 256


def finished_records(
    catalog: Catalog, units: Sequence[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Yield the records of this claim whose unit is the plan's and whose files are intact.

    A record that is damaged, or whose files are, is deleted: its unit will be built again.
    """
    store, layout = catalog.writable, Layout(dataset, version)
    wanted = {unit.index: unit.fingerprint for unit in units}
    listed = _Listed(store, layout)

    def intact(index: int) -> UnitRecord | None:
        try:
            record = read_record(store, layout, index)
            if wanted.get(index) != record.fingerprint:
                raise IntegrityError(f"{layout.ledger(index)}: not a unit of this build")
            for file in _files(record):
                if listed.proof(file, index) is None:
                    require_digest(store, layout.key(file.path), file)
        except (IntegrityError, NotFoundError):
            store.delete(layout.ledger(index))
            return None
        return record

    found = in_order(intact, listed.units, store.at_once)
    return (record for record in found if record is not None)


def adopted_records(
    catalog: Catalog, pending: Iterable[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Take over pending units that other versions have built; yield their records as our ledger holds them.

    Older versions are looked at newest first. A unit whose record or files are damaged or gone is passed over.
    """
    wanted = {unit.fingerprint: unit.index for unit in pending}
    others = [info.version for info in catalog.versions(dataset) if info.version != version]
    for other in sorted(others, reverse=True)[:_VERSIONS_BACK]:
        if not wanted:
            return
        source = _Listed(catalog.writable, Layout(dataset, other))
        for start in range(0, len(source.units), _TOGETHER):
            if not wanted:
                return
            units = source.units[start : start + _TOGETHER]
            for record in _adopted(source, units, wanted, Layout(dataset, version)):
                del wanted[record.fingerprint]
                yield record


def _adopted(
    source: _Listed, units: Sequence[int], wanted: Mapping[str, int], target: Layout
) -> list[UnitRecord]:
    """Take over those of some units that are wanted: all their files, and when these are durable all records."""
    store = source.store
    read = in_order(
        lambda unit: caught(lambda: read_record(store, source.layout, unit)), units, store.at_once
    )
    found = {record.fingerprint: record for record in read if isinstance(record, UnitRecord)}
    records = [
        (record, renamed_record(record, wanted[key])) for key, record in found.items() if key in wanted
    ]
    links = {link: new.unit for old, new in records for link in source.links(old, new, target)}
    done = store.link_all(list(links))
    spoilt = {unit for unit, each in zip(links.values(), done, strict=True) if isinstance(each, Exception)}
    taken = [new for _, new in records if new.unit not in spoilt]
    store.put_all({target.ledger(record.unit): record.to_bytes() for record in taken})
    return taken


@final
class _Listed:
    """A version by what listings say of its files: a request for a thousand objects, and none for each."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store, self.layout = store, layout
        found = (info for folder in (LEDGER, DATA, QUARANTINE) for info in store.list(layout.key(folder)))
        self._infos = {layout.path(info.key): info for info in found}
        self.units = sorted(unit for unit in map(ledger_unit, self._infos) if unit is not None)

    def proof(self, file: ShardEntry | QuarantineEntry, unit: int) -> ObjectInfo | None:
        """Return what the storage says of a file of a unit where that proves its bytes; None: they must be read.

        A record is written after its files, and a bucket changes no object in place. So an object of the recorded size
        that is not younger than the record is the one that was checked when it was put. A folder tells nothing.
        """
        info, record = self._infos.get(file.path), self._infos.get(ledger_path(unit))
        if info is None or not info.token or info.size != file.bytes or record is None:
            return None
        old = info.modified is not None and record.modified is not None and info.modified <= record.modified
        return info if old else None

    def links(self, old: UnitRecord, new: UnitRecord, target: Layout) -> list[Link]:
        """Return what makes the files of a unit those of another version."""
        return [
            Link(
                source=self.layout.key(there.path),
                target=target.key(here.path),
                size=there.bytes,
                sha256=there.sha256,
                seen=self.proof(there, old.unit),
                orphan=lambda: not self.store.exists(target.ledger(new.unit)),
            )
            for there, here in zip(_files(old), _files(new), strict=True)
        ]


def _files(record: UnitRecord) -> list[ShardEntry | QuarantineEntry]:
    return [*record.parts, *([] if record.quarantine is None else [record.quarantine])]


def renamed_record(record: UnitRecord, unit: int) -> UnitRecord:
    """Return a record as it stands in another version, where the unit has another place."""
    parts = tuple(
        replace(part, unit=unit, path=shard_path(part.split, unit, part.part)) for part in record.parts
    )
    held = record.quarantine
    quarantine = None if held is None else replace(held, path=quarantine_path(unit))
    return replace(record, unit=unit, parts=parts, quarantine=quarantine)


def remove_record(store: Store, layout: Layout, unit: int) -> None:
    """Forget a unit, whose record may be gone already."""
    try:
        store.delete(layout.ledger(unit))
    except (NotFoundError, StoreError):
        if store.exists(layout.ledger(unit)):
            raise

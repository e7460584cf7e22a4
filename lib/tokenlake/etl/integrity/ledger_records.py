"""Ledger records that are read, or made again as they were.

A record holds facts that follow from the unit's work, and two that do not: the backend
that encoded it, and the versions of the packages that wrote it. Both are the same in
the other records of the version, or few values are possible; the manifest's hash of the
record decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tokenlake.errors import IntegrityError, StoreError
from tokenlake.etl.job import REFERENCE, produced_by
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import read_record
from tokenlake.runtime.store.layout import Layout, ledger_unit
from tokenlake.runtime.store.ledger import FileEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

_OWN_ENGINES: Final = ("words", "segments")
"""Engines of this library."""

_PACKAGED_ENGINES: Final = ("gigatoken", REFERENCE)
"""Engines of other packages."""


def exact(
    built: UnitRecord, intact_records: Iterable[UnitRecord], sha256: str
) -> UnitRecord | None:
    """Return a rebuilt record as it was, with the backend and the writer of that time;
    None if none fits.

    Args:
        built: Record of the unit as it was rebuilt.
        intact_records: Records of the version that are intact.
        sha256: Hash of the record's file, as the manifest lists it.
    """
    for engine, writer in _possible_writers(built, intact_records):
        record = replace(built, engine=engine, produced_by=writer)
        if FileEntry.of(record.to_bytes()).sha256 == sha256:
            return record
    return None


def _possible_writers(
    built: UnitRecord, intact_records: Iterable[UnitRecord]
) -> list[tuple[str, Mapping[str, str]]]:
    """Return backends and the packages that write with them: those of records, and
    those that are installed.
    """
    installed_engines: list[str] = list(_OWN_ENGINES)
    for engine in _PACKAGED_ENGINES:
        with contextlib.suppress(PackageNotFoundError):
            version(engine)
            installed_engines.append(engine)
    recorded = [
        (record.engine, record.produced_by) for record in (built, *intact_records)
    ]
    installed = [(engine, produced_by(engine)) for engine in installed_engines]
    return [*recorded, *installed]


def readable_records(
    store: ReadStore,
    layout: Layout,
    units: Iterable[int],
    manifest: Manifest | None = None,
) -> dict[int, UnitRecord]:
    """Return unit -> record of the records that can be read and that the manifest,
    if given, lists.
    """
    records: dict[int, UnitRecord] = {}
    for unit in units:
        with contextlib.suppress(IntegrityError, StoreError):
            records[unit] = read_record(store, layout, unit, manifest)
    return records


def units_of(manifest: Manifest) -> list[int]:
    """Return the units that a manifest knows, ascending. A unit without rows has a
    record alone.
    """
    units = {shard.unit for shard in manifest.files}
    for path in manifest.other_files:
        unit = ledger_unit(path)
        if unit is not None:
            units.add(unit)
    return sorted(units)

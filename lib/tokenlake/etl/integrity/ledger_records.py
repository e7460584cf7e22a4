"""Ledger records that are read, or made again as they were.

A record holds facts that follow from the unit's work, and two that do not: the backend
that encoded it, and the versions of the packages that wrote it. Both are the same in
the other records of the version, or few values are possible; the manifest's hash of the
record decides.

Example: a unit was encoded by `gigatoken` 0.10 and is built again by `tokenizers`. The
ids are the same, and the record differs in two fields. With those fields of a record
beside it, it has the listed hash.
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

_OWN_BACKENDS: Final = ("words", "segments")
"""Engines of this library."""

_PACKAGED_BACKENDS: Final = ("gigatoken", REFERENCE)
"""Engines of other packages."""


def exact(
    built: UnitRecord, intact_records: Iterable[UnitRecord], sha256: str
) -> UnitRecord | None:
    """Return a rebuilt record with the backend and the writer of its time.

    None if no known pair of them gives the listed hash.

    Args:
        built: Record of the unit as it was rebuilt.
        intact_records: Records of the version that are intact.
        sha256: Hash of the record's file, as the manifest lists it.
    """
    # A try costs one hash of a few KB.
    for engine, writer in _possible_writers(built, intact_records):
        record = replace(built, engine=engine, produced_by=writer)
        if FileEntry.of(record.to_bytes()).sha256 == sha256:
            return record
    return None


def _possible_writers(
    built: UnitRecord, intact_records: Iterable[UnitRecord]
) -> list[tuple[str, Mapping[str, str]]]:
    """Return pairs of a backend and the packages that write with it.

    They are those of the version's records, and those that are installed.
    """
    # 1. Installed backends.
    installed_backends: list[str] = list(_OWN_BACKENDS)
    for engine in _PACKAGED_BACKENDS:
        with contextlib.suppress(PackageNotFoundError):
            version(engine)
            installed_backends.append(engine)
    # 2. The pairs. Those of the version's records are the most probable ones.
    writers: list[tuple[str, Mapping[str, str]]] = []
    for record in (built, *intact_records):
        writers.append((record.engine, record.produced_by))
    for engine in installed_backends:
        writers.append((engine, produced_by(engine)))
    return writers


def readable_records(
    store: ReadStore,
    layout: Layout,
    units: Iterable[int],
    manifest: Manifest | None = None,
) -> dict[int, UnitRecord]:
    """Return unit -> record of the units whose records can be read.

    With a manifest, only records that it lists are returned.
    """
    records: dict[int, UnitRecord] = {}
    for unit in units:
        # A damaged record is no error here: it is one of the files to repair.
        with contextlib.suppress(IntegrityError, StoreError):
            records[unit] = read_record(store, layout, unit, manifest)
    return records


def units_of(manifest: Manifest) -> list[int]:
    """Return the units that a manifest knows, ascending.

    A unit without rows has no shard, and only a record.
    """
    units = {shard.unit for shard in manifest.files}
    for path in manifest.other_files:
        unit = ledger_unit(path)
        if unit is not None:
            units.add(unit)
    return sorted(units)

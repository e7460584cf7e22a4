"""A damaged ledger record, made again byte for byte.

A record holds what follows from the unit's work, and two things that do not: which engine encoded it, and the versions
of what wrote it. Both are the same in the other records of the version, or there are few to try; the manifest's hash
says which it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from tokenlake.build.engines import REFERENCE
from tokenlake.build.produced import produced_by
from tokenlake.build.reuse import renamed_record
from tokenlake.catalog import read_record
from tokenlake.errors import IntegrityError, StoreError
from tokenlake.manifest import Manifest, UnitRecord
from tokenlake.mending.copies import manifests
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout, ledger_path, ledger_unit

_ENGINES = ("gigatoken", REFERENCE)


def adopted(store: ReadStore, manifest: Manifest, unit: int, sha256: str) -> UnitRecord | None:
    """Return a unit's record made of the record of another version that holds the same files; None if there is none."""
    ours = {shard.sha256 for shard in manifest.files if shard.unit == unit}
    if not ours:
        return None
    for layout, other in manifests(store):
        for index in dict.fromkeys(shard.unit for shard in other.files if shard.sha256 in ours):
            try:
                found = renamed_record(read_record(store, layout, index), unit)
            except (IntegrityError, StoreError):
                continue
            if is_bytes_of(found, sha256):
                return found
    return None


def exact(built: UnitRecord, others: Iterable[UnitRecord], sha256: str) -> UnitRecord | None:
    """Return a record that was built again as it was, with the engine and the writer of then; None if none fits.

    Args:
        built: as the unit came out now.
        others: records of the version that are well.
        sha256: of the record's file, as the manifest has it.
    """
    for engine, writer in _writers(built, list(others)):
        found = replace(built, engine=engine, produced_by=writer)
        if is_bytes_of(found, sha256):
            return found
    return None


def is_bytes_of(record: UnitRecord, sha256: str) -> bool:
    """Say whether a record's file has this hash."""
    return hashlib.sha256(record.to_bytes()).hexdigest() == sha256


def readable_records(store: ReadStore, layout: Layout, manifest: Manifest) -> dict[int, UnitRecord]:
    """Return the records of a version that are the manifest's, by unit."""
    found: dict[int, UnitRecord] = {}
    for unit in units_of(manifest):
        entry = manifest.other_files.get(ledger_path(unit))
        try:
            record = read_record(store, layout, unit)
        except (IntegrityError, StoreError):
            continue
        if entry is None or is_bytes_of(record, entry.sha256):
            found[unit] = record
    return found


def units_of(manifest: Manifest) -> list[int]:
    """Return the units that a manifest knows of, ascending; one that wrote nothing has a record alone."""
    listed = {unit for unit in map(ledger_unit, manifest.other_files) if unit is not None}
    return sorted(listed | {shard.unit for shard in manifest.files})


def _writers(built: UnitRecord, others: Sequence[UnitRecord]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield engines and writers to try: as it came out, as the others have it, and as another engine would be."""
    yield built.engine, built.produced_by
    for record in others:
        yield record.engine, record.produced_by
    for engine in _ENGINES:
        try:
            version(engine)
        except PackageNotFoundError:
            continue
        yield engine, produced_by(engine)

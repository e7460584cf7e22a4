"""Packing again without a mixture: parents one after the other, a unit for each of their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenlake.build.mixing.job import RowsOut
from tokenlake.build.mixing.planning.identity import rows_identity, unit_content
from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.build.mixing.planning.planned import RepackedUnit
from tokenlake.catalog import Catalog
from tokenlake.errors import ConfigError
from tokenlake.fingerprint import fingerprint
from tokenlake.manifest import MIXED, ShardEntry, UnitRecord
from tokenlake.schema import FORMAT_VERSION


def require_packing(parents: Sequence[FoundParent], out: RowsOut) -> None:
    """Raise ConfigError where a build would write its parents' rows as they are."""
    if out.pack is None:
        names = ", ".join(parent.reference for parent in parents)
        raise ConfigError(
            f"pack.enabled: false, and there is no section mix: the rows of {names} would only be copied; write "
            "pack.enabled: true to pack them, or a section mix to mix them"
        )


def repacked_units(
    catalog: Catalog, parents: Sequence[FoundParent], out: RowsOut
) -> tuple[RepackedUnit, ...]:
    """Return the units: those of each parent, in its order; units without rows are left out."""
    found: list[RepackedUnit] = []
    for parent in parents:
        records = _records(catalog, parent, out)
        for number, parts in sorted(_parts(parent).items()):
            source = _source(parent, records.get(number))
            found.append(
                RepackedUnit(
                    index=len(found),
                    source=source,
                    bytes=sum(part.bytes for part in parts),
                    fingerprint=_fingerprint(parent, parts, source, out, records.get(number)),
                    parent=parent.version,
                    parent_unit=number,
                )
            )
    return tuple(found)


def _parts(parent: FoundParent) -> dict[int, list[ShardEntry]]:
    parts: dict[int, list[ShardEntry]] = {}
    for shard in parent.manifest.files:
        parts.setdefault(shard.unit, []).append(shard)
    return parts


def _records(catalog: Catalog, parent: FoundParent, out: RowsOut) -> Mapping[int, UnitRecord]:
    """The ledger, where the manifest alone does not say whose a unit is, or by which key its rows are shuffled."""
    shuffled = out.pack is not None and out.pack.shuffle_seed is not None
    if len(parent.manifest.accounts) == 1 and not shuffled:
        return {}
    manifest = parent.manifest
    return catalog.ledger(manifest.dataset, manifest.version, manifest=manifest)


def _source(parent: FoundParent, record: UnitRecord | None) -> str:
    """The source whose rows a unit has; of a mixture, which has those of several, it is the mixture as a whole."""
    if parent.manifest.mixture is not None:
        return parent.name
    if record is not None and record.source != MIXED:
        return record.source
    return next(iter(parent.manifest.accounts))


def _fingerprint(
    parent: FoundParent,
    parts: Sequence[ShardEntry],
    source: str,
    out: RowsOut,
    record: UnitRecord | None,
) -> str:
    shuffled = out.pack is not None and out.pack.shuffle_seed is not None
    return fingerprint(
        {
            "format_version": FORMAT_VERSION,
            "repack": unit_content(parent, parts),
            "source": source,
            "whole": parent.name in out.whole,
            "out": {key: value for key, value in rows_identity(out).items() if key != "whole"},
            **({"began": _began(record)} if shuffled else {}),
        }
    )


def _began(record: UnitRecord | None) -> list[Any]:
    """Where in its inputs the parent's unit began, of which the key of its shuffle is made."""
    first = record.inputs[:1] if record is not None else ()
    return [[entry.file_id, entry.start] for entry in first]

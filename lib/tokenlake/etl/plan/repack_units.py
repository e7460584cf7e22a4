"""Units of a build that packs the documents of stored versions again.

Each unit of each parent becomes a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenlake.base.fingerprint import fingerprint
from tokenlake.etl.job.messages import RowsOut
from tokenlake.etl.plan.mix_units import (
    rows_identity,
    rows_of_shard,
    tokenizers_identity,
)
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.plan import RepackUnit
from tokenlake.etl.unit.repack import repacked_shards
from tokenlake.runtime.schema import FORMAT_VERSION
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.ledger import MIXED, ShardEntry, UnitRecord


def repack_units(
    catalog: Catalog, parents: Sequence[FoundParent], out: RowsOut, *, shuffled: bool
) -> list[RepackUnit]:
    """Return the units of each parent, in its order; units without rows are left out.

    Args:
        catalog: Catalog of the parents' store.
        parents: Versions whose documents are packed.
        out: Format of the new rows.
        shuffled: Whether packed rows are shuffled, by a key that depends on the inputs
            of the parent's unit.
    """
    units: list[RepackUnit] = []
    for parent in parents:
        manifest = parent.manifest
        # The manifest does not say the source of a unit where it has several, nor the
        # inputs of a unit.
        records: Mapping[int, UnitRecord] = {}
        if shuffled or len(manifest.accounts) > 1:
            records = catalog.ledger(
                manifest.dataset, manifest.version, manifest=manifest
            )

        # The manifest lists shards; units follow from these.
        shards_of_units: dict[int, list[ShardEntry]] = {}
        for shard in repacked_shards(manifest, parent.split):
            shards_of_units.setdefault(shard.unit, []).append(shard)
        for parent_unit, shards in sorted(shards_of_units.items()):
            record = records.get(parent_unit)
            source = _source_of(parent, record)
            unit = RepackUnit(
                index=len(units),
                source=source,
                bytes=sum(shard.bytes for shard in shards),
                fingerprint=_fingerprint(
                    parent, shards, source, record, out, shuffled=shuffled
                ),
                parent=parent.version,
                parent_unit=parent_unit,
            )
            units.append(unit)
    return units


def _source_of(parent: FoundParent, record: UnitRecord | None) -> str:
    """Return the name of the source of a parent's unit."""
    if parent.manifest.mixture is not None:
        # A unit of a mixture has rows of several sources, and counts as one of the
        # whole.
        return parent.name
    if record is not None and record.source != MIXED:
        return record.source
    # A manifest of one source needs no record.
    return next(iter(parent.manifest.accounts))


def _fingerprint(
    parent: FoundParent,
    shards: Sequence[ShardEntry],
    source: str,
    record: UnitRecord | None,
    out: RowsOut,
    *,
    shuffled: bool,
) -> str:
    """Return the identity of a unit; see :func:`repack_units` for the arguments."""
    # 1. The rows that are packed, whatever version they are in.
    shard_identities: list[list[Any]] = []
    for shard in shards:
        shard_identities.append([shard.split, shard.part, *rows_of_shard(shard)])
    content = {
        "shards": shard_identities,
        "tokenizers": tokenizers_identity(parent),
    }

    # 2. The format of the new rows.
    format_of_rows = rows_identity(out)
    # Only whether the documents of this parent are rendered matters to the unit.
    del format_of_rows["whole"]
    identity: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "repack": fingerprint(content),
        "source": source,
        "whole": parent.name in out.whole,
        "out": format_of_rows,
    }
    if shuffled:
        # The key of the shuffle is made of the place in its inputs at which the
        # parent's unit began.
        first_inputs = ()
        if record is not None:
            first_inputs = record.inputs[:1]
        identity["began"] = [[entry.file_id, entry.start] for entry in first_inputs]
    return fingerprint(identity)

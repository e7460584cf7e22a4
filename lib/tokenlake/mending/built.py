"""What came out of units that were built again: the very bytes, the same rows in other bytes, or neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tokenlake.errors import TokenlakeError
from tokenlake.manifest import Manifest, QuarantineEntry, UnitRecord
from tokenlake.mending.damage import Damage
from tokenlake.mending.ledger import exact
from tokenlake.mending.putting import Good
from tokenlake.mending.same_rows import other_rows
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout, ledger_path, quarantine_path

OTHER_BYTES = Good("new version", "the same rows, in the bytes of another release of a writer")


def judged(
    workshop: ReadStore,
    layout: Layout,
    manifest: Manifest,
    built: UnitRecord | TokenlakeError,
    others: Mapping[int, UnitRecord],
    damaged: Iterable[Damage],
) -> dict[str, Good | str]:
    """Return for each damaged file of one unit where its good bytes are, or why there are none.

    Args:
        workshop: where the unit was built.
        layout: of the version, there as well.
        built: what came out.
        others: unit -> ledger record, of those that are well.
    """
    files = list(damaged)
    if isinstance(built, TokenlakeError):
        return {damage.path: f"it could not be built again: {built}" for damage in files}
    unlike = _unlike(workshop, layout, manifest, built, others.get(built.unit))
    if unlike:
        text = "it came out with other rows, so that nothing was changed: " + "; ".join(unlike[:3])
        return {damage.path: text for damage in files}
    came = {part.path: part.sha256 for part in built.parts}
    if built.quarantine is not None:
        came[built.quarantine.path] = built.quarantine.sha256
    found: dict[str, Good | str] = {}
    for damage in files:
        if damage.path == ledger_path(built.unit):
            record = exact(_as_listed(built, manifest), others.values(), damage.sha256)
            found[damage.path] = (
                OTHER_BYTES if record is None else Good("rebuilt", "from its inputs", data=record.to_bytes())
            )
        elif came.get(damage.path) == damage.sha256:
            found[damage.path] = Good("rebuilt", "from its inputs", key=damage.key, workshop=workshop)
        else:
            found[damage.path] = OTHER_BYTES
    return found


def _unlike(
    workshop: ReadStore, layout: Layout, manifest: Manifest, built: UnitRecord, before: UnitRecord | None
) -> list[str]:
    """Return a clause for everything that came out otherwise, bytes aside."""
    wanted = [shard for shard in manifest.files if shard.unit == built.unit]
    if {part.path: part.sha256 for part in wanted} == {part.path: part.sha256 for part in built.parts}:
        found = list[str]()
    else:
        found = other_rows(workshop, layout, wanted, built.parts)
    listed = quarantine_path(built.unit) in manifest.other_files
    if listed != (built.quarantine is not None):
        found.append(
            f"{'no' if listed else 'some'} bad records came out; expected {'some' if listed else 'none'}"
        )
    if before is not None and before.account != built.account:
        found.append(f"its account is {built.account}; expected {before.account}")
    return found


def _as_listed(built: UnitRecord, manifest: Manifest) -> UnitRecord:
    """Return a record with the files as the manifest has them, which hold the same rows."""
    parts = tuple(shard for shard in manifest.files if shard.unit == built.unit)
    held, entry = built.quarantine, manifest.other_files.get(quarantine_path(built.unit))
    if held is not None and entry is not None:
        held = QuarantineEntry(path=held.path, bytes=entry.bytes, sha256=entry.sha256, rows=held.rows)
    return replace(built, parts=parts, quarantine=held)

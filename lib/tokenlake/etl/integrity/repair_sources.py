"""Sources of good bytes for damaged files, cheapest first.

1. Versions share files: a unit that an older version built is linked, not built again.
   The same bytes in another version are the quickest source, and damage to one version
   may be damage to all of them.
2. Some files follow from the manifest (card, configuration), or from the ledger record
   of another version.
3. Some follow from the configuration (tokenizer), for which the version is planned
   again.
4. The remaining ones are built again from their inputs
   (:mod:`~tokenlake.etl.integrity.rebuild`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError, TokenlakeError
from tokenlake.etl.commit import renamed_record
from tokenlake.etl.integrity.findings import Damage, How, listed_files, look, unit_of
from tokenlake.etl.plan.parents import lineage
from tokenlake.etl.plan.plan import Plan, config_yaml
from tokenlake.etl.planner import input_changes
from tokenlake.etl.reports.card import render_card
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.catalog import Catalog, read_record
from tokenlake.runtime.store.claims import Claim
from tokenlake.runtime.store.diff import changes_between
from tokenlake.runtime.store.layout import CARD, CONFIG, TOKENIZER, Layout, ledger_unit
from tokenlake.runtime.store.ledger import FileEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

MakePlan: TypeAlias = Callable[[], Plan]
"""Function that plans the version again."""

_SHOWN_DIFFERENCES: Final = 5  # that a message names


@final
@dataclass(frozen=True, slots=True)
class Good:
    """Good bytes of a damaged file.

    Attributes:
        how: As of :class:`tokenlake.etl.integrity.findings.RepairedFile`.
        note: As of :class:`tokenlake.etl.integrity.findings.RepairedFile`.
        key: Key of a file with the bytes, in the store itself or in the workshop.
        workshop: Store of that key; None: the store itself.
        data: The bytes, if there is no key.
    """

    how: How
    note: str
    key: str = ""
    workshop: ReadStore | None = None
    data: bytes = b""

    def put(self, store: Store, damage: Damage) -> None:
        """Replace a damaged file by the bytes, as a whole and at once.

        Raises:
            VersionConflictError: The file is now neither the damaged one that was seen
                nor the good one.
            StoreError: The bytes cannot be read, or cannot be written.
            IntegrityError: The bytes are not good.
        """
        # Bytes of a workshop are in another store, so that they are copied; those of
        # this store are linked, without a copy.
        if self.workshop is not None:
            self._put_from_workshop(self.workshop, store, damage)
        elif self.key:
            # The damage is compared with what was seen at the last moment, with other
            # writers locked out.
            store.link(
                self.key,
                damage.key,
                damage.sha256,
                replace_orphan=lambda: _is_as_seen(store, damage),
            )
        else:
            sha256 = damage.sha256 or FileEntry.of(self.data).sha256
            store.replace(self.data, damage.key, sha256, damage.found)

    def _put_from_workshop(
        self, workshop: ReadStore, store: Store, damage: Damage
    ) -> None:
        """Fetch the bytes into a temporary file of the store, and swap it in."""
        temp = store.temp(damage.layout.prefix)
        # The store makes an empty file, and a download does not overwrite.
        try:
            temp.unlink()
            workshop.download(self.key, temp)
            store.replace(temp, damage.key, damage.sha256, damage.found)
        finally:
            temp.unlink(missing_ok=True)


def _is_as_seen(store: Store, damage: Damage) -> bool:
    """Return True if a damaged file still has the bytes that were seen."""
    with contextlib.suppress(NotFoundError, StoreError):
        return store.digest(damage.key).sha256 == damage.found
    return False


@final
@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """A unit of a version in a plan.

    Attributes:
        index: Index of the unit in the plan.
        engine: Backend that encoded it; None: not known.
    """

    index: int
    engine: str | None


@final
@dataclass(slots=True)
class DamagedFile:
    """A damaged file, and what is known about its good bytes so far.

    Attributes:
        damage: Damage.
        unit: Unit that wrote the file; None for a file of the whole version.
        good: Good bytes; None: none are found yet.
        lost: Reason why there are none; empty: it is not known.
        planned: Unit that has to be built for it.
        shared: The same file of other versions, damaged as well.
    """

    damage: Damage
    unit: int | None
    good: Good | None = None
    lost: str = ""
    planned: PlannedUnit | None = None
    shared: list[Damage] = field(default_factory=list[Damage])

    @property
    def path(self) -> str:
        """Path of the file, relative to its version."""
        return self.damage.path

    def is_data(self, data: bytes | None) -> bool:
        """Return True if `data` is the content that the file should have."""
        if data is None:
            return False
        return hashlib.sha256(data).hexdigest() == self.damage.sha256


def find(
    store: ReadStore,
    manifest: Manifest,
    records: Mapping[int, UnitRecord],
    damages: Sequence[Damage],
    make_plan: MakePlan,
) -> tuple[list[DamagedFile], list[str]]:
    """Find the good bytes of damaged files, or the units that must be built for them.

    Args:
        store: Store of the version.
        manifest: Manifest of the version.
        records: Unit -> ledger record, of those that are intact.
        damages: Damaged files.
        make_plan: Function that plans the version again; called at most once, if
            nothing else helps. Its error is the reason that is given for the files that
            would have needed the plan.

    Returns:
        The files, and the places in other versions that hold the same bytes undamaged.
    """
    # The manifests of all versions are read once, for all damaged files together.
    files = [DamagedFile(damage, unit_of(manifest, damage.path)) for damage in damages]
    places_by_hash = _places_by_hash(store, {damage.sha256 for damage in damages})
    intact: list[str] = []
    remaining: list[DamagedFile] = []
    for file in files:
        intact += _look_elsewhere(store, file, places_by_hash[file.damage.sha256])
        # A file that cannot be replaced needs no source.
        if file.damage.obstacle:
            file.lost = file.damage.obstacle
            file.good = None
            continue
        if file.good is None:
            file.good = _derived(store, manifest, file)
        if file.good is None:
            remaining.append(file)
    if remaining:
        _plan(manifest, records, remaining, make_plan)
    return files, intact


def _places_by_hash(
    store: ReadStore, hashes: set[str]
) -> dict[str, list[tuple[Layout, str]]]:
    """Return sha256 -> version and path of every file that should have it.

    The manifests of all versions say which these are.
    """
    places: dict[str, list[tuple[Layout, str]]] = {sha256: [] for sha256 in hashes}
    for layout, manifest in manifests(store):
        for path, entry in listed_files(manifest).items():
            if entry.sha256 in places:
                places[entry.sha256].append((layout, path))
    return places


def _look_elsewhere(
    store: ReadStore, file: DamagedFile, places: Sequence[tuple[Layout, str]]
) -> list[str]:
    """Look at the files that should have the same bytes.

    Returns:
        Places in other versions that are intact.
    """
    intact: list[str] = []
    for layout, path in places:
        # The damaged file itself is one of the places.
        if (layout, path) == (file.damage.layout, file.path):
            continue
        is_other_version = layout != file.damage.layout
        damage = look(store, layout, path, file.damage.sha256)
        # A file of another version that is damaged, too, is repaired with this one.
        if damage is not None:
            if is_other_version:
                file.shared.append(damage)
            continue
        place_name = f"{layout.dataset}@v{layout.version}: {path}"
        if file.good is None:
            file.good = Good("copied", f"from {place_name}", key=layout.key(path))
        if is_other_version:
            intact.append(place_name)
    return intact


def manifests(store: ReadStore) -> Iterator[tuple[Layout, Manifest]]:
    """Yield the manifest of every committed version of a store, except damaged ones."""
    catalog = Catalog(store)
    for layout in catalog.committed_versions():
        with contextlib.suppress(IntegrityError, StoreError):
            yield layout, catalog.manifest(layout.dataset, layout.version)


def _derived(store: ReadStore, manifest: Manifest, file: DamagedFile) -> Good | None:
    """Return bytes that follow from the manifest, or from another version's ledger."""
    data = rendered(manifest, file.path)
    if data is not None and file.is_data(data):
        return Good("rendered", "from the manifest", data=data)
    unit = ledger_unit(file.path)
    if unit is None:
        return None
    return _derived_record(store, manifest, file, unit)


def _derived_record(
    store: ReadStore, manifest: Manifest, file: DamagedFile, unit: int
) -> Good | None:
    """Return the ledger record of another version's unit that has the same files.

    It gets the number of this unit.
    """
    # A unit without shards leaves no trace by which it could be found.
    shard_hashes = {shard.sha256 for shard in manifest.files if shard.unit == unit}
    if not shard_hashes:
        return None
    for layout, other in manifests(store):
        candidates: dict[int, None] = {}
        for shard in other.files:
            if shard.sha256 in shard_hashes:
                candidates[shard.unit] = None
        for candidate in candidates:
            # A damaged record, or one that differs in its account, is passed over.
            with contextlib.suppress(IntegrityError, StoreError):
                record = renamed_record(read_record(store, layout, candidate), unit)
                data = record.to_bytes()
                if file.is_data(data):
                    return Good(
                        "rendered", "from the record of another version", data=data
                    )
    return None


def _plan(
    manifest: Manifest,
    records: Mapping[int, UnitRecord],
    files: Sequence[DamagedFile],
    make_plan: MakePlan,
) -> None:
    """Plan the version again, and note the result for each file.

    The result is its bytes, its unit in the plan, or the reason why it is lost.
    """
    try:
        plan = make_plan()
        preamble = plan.preamble()
    except TokenlakeError as error:
        for file in files:
            file.lost = str(error)
        return
    # A file of a unit is built again; a file of the version follows from the plan.
    for file in files:
        if file.unit is not None:
            record = records.get(file.unit)
            file.planned = _planned_unit(plan, manifest, file.unit, record)
            if file.planned is None:
                reason = _why_not(plan, manifest, record)
                file.lost = f"unit {file.unit} cannot be built again: {reason}"
            continue
        data = preamble.get(file.path)
        if data is not None and file.is_data(data):
            file.good = Good("rendered", "from the configuration", data=data)
        elif file.path.startswith(f"{TOKENIZER}/"):
            file.lost = "the tokenizer that the configuration names has changed"
        # Otherwise another release of this library writes the file in other bytes: it
        # is for a new version.


def _planned_unit(
    plan: Plan, manifest: Manifest, unit: int, record: UnitRecord | None
) -> PlannedUnit | None:
    """Return a unit of the version in a plan; None if the plan does not have it.

    Units are found by their fingerprints, not by their numbers: a file that was added
    since moves other units.
    """
    if record is not None:
        for planned in plan.units:
            if planned.fingerprint == record.fingerprint:
                return PlannedUnit(planned.index, record.engine)
        return None
    # Without a record only the numbers are left, which are right if the plan is the
    # same.
    if plan.fingerprint == manifest.fingerprint and unit < len(plan.units):
        return PlannedUnit(unit, None)
    return None


def _why_not(plan: Plan, manifest: Manifest, record: UnitRecord | None) -> str:
    """Return the reason why a plan does not have a unit.

    Args:
        plan: Plan made today.
        manifest: Manifest of the version.
        record: Record of the unit; None if it is damaged too.
    """
    # 1. Inputs that have changed or are gone. Of a known unit, only its own inputs
    # matter.
    wanted_inputs = manifest.inputs
    if record is not None:
        wanted_inputs = tuple(entry.file for entry in record.inputs)
    changed_inputs = input_changes(wanted_inputs, plan.inputs)
    if changed_inputs:
        return "its inputs have changed: " + "; ".join(changed_inputs)
    # 2. Inputs that were added move the units, whose fingerprints only the record has.
    if record is None:
        added_inputs = input_changes(manifest.inputs, plan.inputs, added=True)
        if added_inputs:
            return (
                "the list of inputs has changed, and its ledger record is damaged as well: "
                + "; ".join(added_inputs)
            )
    known_parents = lineage(plan.parents)
    differences: list[str] = []
    for parent in manifest.parents:
        if parent not in known_parents:
            name = f"{parent.dataset}@v{parent.version}"
            differences.append(f"its parent {name} is another one")
    for change in changes_between("", manifest.config, dict(plan.config)):
        differences.append(f"{change.key} is {change.b!r}; expected {change.a!r}")
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    # The identity has more than the configuration: tokenizers, lists of files and the
    # code of functions.
    if not shown:
        shown = (
            "other units, another tokenizer, other files to exclude or other functions"
        )
    return f"the configuration differs from the one it was built with: {shown}; give that configuration with --config"


def rendered(manifest: Manifest, path: str) -> bytes | None:
    """Return the bytes of a file that follows from the manifest; None for other files.

    They are those of this release, which may differ from the recorded ones.
    """
    if path == CARD:
        # The card was written when the manifest did not list it yet.
        other_files = dict(manifest.other_files)
        other_files.pop(CARD, None)
        return render_card(replace(manifest, other_files=other_files)).encode()
    if path == CONFIG:
        return config_yaml(manifest.config)
    return None


def claim_bytes(manifest: Manifest, damaged: bytes) -> bytes:
    """Return the claim of a version, in the state that its damaged bytes indicate.

    A version of an older release has a claim in its first state; others were committed
    from the second one. If the damage leaves no trace of either, the second is as good.
    """
    claim = Claim(
        dataset=manifest.dataset,
        version=manifest.version,
        fingerprint=manifest.fingerprint,
        meta={},
    )
    committing = claim.turned("committing").to_bytes()
    building = claim.to_bytes()
    if common(building, damaged) > common(committing, damaged):
        return building
    return committing


def common(form: bytes, damaged: bytes) -> int:
    """Return the number of equal bytes at the beginnings and at the ends of two texts.

    Example: ``abcXef`` and ``abcYYef`` have 3 + 2 = 5 in common.
    """
    return _common_prefix(form, damaged) + _common_prefix(form[::-1], damaged[::-1])


def _common_prefix(first: bytes, second: bytes) -> int:
    """Return the number of equal bytes at the beginnings of two texts."""
    for index, (byte, other_byte) in enumerate(zip(first, second, strict=False)):
        if byte != other_byte:
            return index
    return min(len(first), len(second))

"""Where the good bytes of damaged files come from, cheapest first, and how they get into their place.

Versions share files (a unit that an older version built is linked, not built again), so the same bytes elsewhere are
the quickest source, and damage to one version may be damage to all. Then there are files that follow from the manifest
or from the configuration, and ledger records that follow from others; what is left is built again from its inputs.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Final, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError, TokenlakeError
from tokenlake.etl.commit import renamed_record
from tokenlake.etl.integrity.findings import Damage, How, listed_files, look, unit_of
from tokenlake.etl.job import REFERENCE, produced_by
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

MakePlan = Callable[[], Plan]

_OWN_ENGINES: Final = ("words", "segments")
_PACKAGED_ENGINES: Final = ("gigatoken", REFERENCE)
_SHOWN: Final = 5  # inputs that a message names


@final
@dataclass(frozen=True, slots=True)
class Good:
    """Where the bytes of a damaged file are to be had.

    Attributes:
        how, note: as of :class:`tokenlake.etl.integrity.findings.RepairedFile`.
        key: in the store itself, or in the workshop's where one is given,
        workshop: or None,
        data: or the bytes themselves.
    """

    how: How
    note: str
    key: str = ""
    workshop: ReadStore | None = None
    data: bytes = b""

    def put(self, store: Store, damage: Damage) -> None:
        """Put the bytes in the place of a damaged file, whole and at once.

        Raises:
            VersionConflictError: what is there now is neither what was seen nor what is to be there.
            StoreError: the bytes cannot be had, or cannot be written.
            IntegrityError: the bytes are not good.
        """
        if self.key and self.workshop is None:
            # Linked where nothing is there, else copied.

            def is_seen() -> bool:
                with contextlib.suppress(NotFoundError, StoreError):
                    return store.digest(damage.key).sha256 == damage.found
                return False

            # Whether the damage still is what was seen is asked at the last moment, with other writers locked out.
            store.link(self.key, damage.key, damage.sha256, replace_orphan=is_seen)
            return
        if self.workshop is None:
            sha256 = damage.sha256 or FileEntry.of(self.data).sha256
            store.replace(self.data, damage.key, sha256, damage.found)
            return
        temp = store.temp(damage.layout.prefix)
        try:
            temp.unlink()
            self.workshop.download(self.key, temp)
            store.replace(temp, damage.key, damage.sha256, damage.found)
        finally:
            temp.unlink(missing_ok=True)


@final
@dataclass(slots=True)
class DamagedFile:
    """A damaged file of the version that is repaired, and what is known of its good bytes so far.

    Attributes:
        unit: whose work it is; None for a file of the whole version.
        good: where its bytes are.
        lost: why there are none.
        planned: (index in the plan of its unit, engine that encoded it; None: not known), where it has to be built.
        shared: the same file of other versions, damaged as well.
    """

    damage: Damage
    unit: int | None
    good: Good | None = None
    lost: str = ""
    planned: tuple[int, str | None] | None = None
    shared: list[Damage] = field(default_factory=list[Damage])

    @property
    def path(self) -> str:
        return self.damage.path

    def is_data(self, data: bytes | None) -> bool:
        """Say whether bytes are what the file should hold."""
        return data is not None and hashlib.sha256(data).hexdigest() == self.damage.sha256


def find(
    store: ReadStore,
    manifest: Manifest,
    records: Mapping[int, UnitRecord],
    damages: Sequence[Damage],
    make_plan: MakePlan,
) -> tuple[list[DamagedFile], list[str]]:
    """Find the good bytes of damaged files, or what has to be built to have them.

    Args:
        records: unit -> ledger record, of those that are intact.
        make_plan: plans again what the version was built from; called at most once, where nothing else helps. Its
            errors are what is said of the files that would have needed it.

    Returns:
        The files, and the places in other versions that hold the same bytes undamaged.
    """
    files = [DamagedFile(damage, unit_of(manifest, damage.path)) for damage in damages]
    intact = list[str]()
    # Every file of every committed version that should hold the same bytes, by what manifests say.
    everywhere: dict[str, list[tuple[Layout, str]]] = {damage.sha256: [] for damage in damages}
    for layout, other in manifests(store):
        for path, entry in listed_files(other).items():
            if entry.sha256 in everywhere:
                everywhere[entry.sha256].append((layout, path))
    for file in files:
        intact += _look_elsewhere(store, file, everywhere[file.damage.sha256])
        if file.damage.obstacle:
            file.lost, file.good = file.damage.obstacle, None
        elif file.good is None:
            file.good = _derived(store, manifest, file)
    left = [file for file in files if file.good is None and not file.lost]
    if left:
        _plan(manifest, records, left, make_plan)
    return files, intact


def _look_elsewhere(store: ReadStore, file: DamagedFile, places: Sequence[tuple[Layout, str]]) -> list[str]:
    intact = list[str]()
    for layout, path in places:
        if (layout, path) == (file.damage.layout, file.path):
            continue
        there = look(store, layout, path, file.damage.sha256)
        if there is None:
            name = f"{layout.dataset}@v{layout.version}: {path}"
            file.good = file.good or Good("copied", f"from {name}", key=layout.key(path))
            intact += [name] if layout != file.damage.layout else []
        elif layout != file.damage.layout:
            file.shared.append(there)
    return intact


def manifests(store: ReadStore) -> Iterator[tuple[Layout, Manifest]]:
    """Yield the manifest of every committed version of a store; a damaged one tells nothing, and is left out."""
    catalog = Catalog(store)
    for layout in catalog.committed_versions():
        with contextlib.suppress(IntegrityError, StoreError):
            yield layout, catalog.manifest(layout.dataset, layout.version)


def _derived(store: ReadStore, manifest: Manifest, file: DamagedFile) -> Good | None:
    """Return what follows from the manifest, or from the ledger of another version."""
    data = rendered(manifest, file.path)
    if file.is_data(data):
        return Good("rendered", "from the manifest", data=data or b"")
    if (unit := ledger_unit(file.path)) is None:
        return None
    # The record of another version that holds the same files, made that of this unit.
    ours = {shard.sha256 for shard in manifest.files if shard.unit == unit}
    for layout, other in manifests(store) if ours else ():
        for index in dict.fromkeys(shard.unit for shard in other.files if shard.sha256 in ours):
            with contextlib.suppress(IntegrityError, StoreError):
                found = renamed_record(read_record(store, layout, index), unit).to_bytes()
                if file.is_data(found):
                    return Good("rendered", "from the record of another version", data=found)
    return None


def _plan(
    manifest: Manifest, records: Mapping[int, UnitRecord], left: Sequence[DamagedFile], make_plan: MakePlan
) -> None:
    try:
        plan = make_plan()
        preamble = plan.preamble()
    except TokenlakeError as error:
        for file in left:
            file.lost = str(error)
        return
    for file in left:
        if (unit := file.unit) is not None:
            record = records.get(unit)
            # Units are found by what they are, not by where they stand: a file that was added since moves others.
            index = unit if plan.fingerprint == manifest.fingerprint and unit < len(plan.units) else None
            if record is not None:
                same = (planned.index for planned in plan.units if planned.fingerprint == record.fingerprint)
                index = next(same, None)
            if index is None:
                file.lost = f"unit {unit} cannot be built again: {_why_not(plan, manifest, record)}"
            else:
                file.planned = index, None if record is None else record.engine
        elif file.is_data(data := preamble.get(file.path)):
            file.good = Good("rendered", "from the configuration", data=data or b"")
        elif file.path.startswith(f"{TOKENIZER}/"):
            file.lost = "the tokenizer that the configuration names has changed"
        # Else another release of this library writes it otherwise: for a new version.


def _why_not(plan: Plan, manifest: Manifest, record: UnitRecord | None) -> str:
    """Say what of a plan is not what a version, or one unit of which there is a record, was built from."""
    wanted = manifest.inputs if record is None else tuple(entry.file for entry in record.inputs)
    inputs = input_changes(wanted, plan.inputs)
    if inputs:
        return "its inputs are not what they were: " + "; ".join(inputs)
    if record is None and (added := input_changes(manifest.inputs, plan.inputs, added=True)):
        why = "the list of inputs is not what it was, and its ledger record is damaged as well"
        return f"{why}: {'; '.join(added)}"
    gone = [one for one in manifest.parents if one not in lineage(plan.parents)]
    wrong = [f"its parent {one.dataset}@v{one.version} is another one" for one in gone]
    changes = changes_between("", manifest.config, dict(plan.config))
    wrong += [f"{one.key} is {one.b!r}; expected {one.a!r}" for one in changes]
    others = "other units, another tokenizer, other files to exclude or other functions"
    shown = "; ".join(wrong[:_SHOWN]) or others
    return f"the configuration is not what it was built with: {shown}; give the one of then with --config"


# Files that follow from a manifest alone


def rendered(manifest: Manifest, path: str) -> bytes | None:
    """Return what this release makes of a file that follows from the manifest; None for any other file."""
    if path == CARD:
        # It was written when the manifest did not list it yet.
        others = {name: entry for name, entry in manifest.other_files.items() if name != CARD}
        return render_card(replace(manifest, other_files=others)).encode()
    return config_yaml(manifest.config) if path == CONFIG else None


def claim_bytes(manifest: Manifest, damaged: bytes) -> bytes:
    """Return the claim of a version, in the state that its damaged bytes speak for.

    A version of an older release has a claim in its first state, others were committed from the second; where the
    damage leaves no trace of either, the second is as good.
    """
    base = Claim(
        dataset=manifest.dataset, version=manifest.version, fingerprint=manifest.fingerprint, meta={}
    )
    forms = [base.turned("committing").to_bytes(), base.to_bytes()]
    return max(forms, key=lambda form: common(form, damaged))


def common(form: bytes, damaged: bytes) -> int:
    """Return how many bytes two texts begin with in common, and end with."""
    found = 0
    for one, other in ((form, damaged), (form[::-1], damaged[::-1])):
        unlike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        found += next(unlike, min(len(one), len(other)))
    return found


# Ledger records. A record holds what follows from the unit's work, and two things that do not: which engine encoded it,
# and the versions of what wrote it. Both are the same in the other records of the version, or there are few to try; the
# manifest's hash says which it was.


def exact(built: UnitRecord, others: Iterable[UnitRecord], sha256: str) -> UnitRecord | None:
    """Return a record that was built again as it was, with the engine and the writer of then; None if none fits.

    Args:
        built: as the unit came out now.
        others: records of the version that are intact.
        sha256: of the record's file, as the manifest has it.
    """
    # As it came out, as the others have it, and as another engine would be.
    writers = [(record.engine, record.produced_by) for record in (built, *others)]
    writers.extend((engine, produced_by(engine)) for engine in _OWN_ENGINES)
    for engine in _PACKAGED_ENGINES:
        with contextlib.suppress(PackageNotFoundError):
            version(engine)
            writers.append((engine, produced_by(engine)))
    made = (replace(built, engine=engine, produced_by=writer) for engine, writer in writers)
    return next((each for each in made if FileEntry.of(each.to_bytes()).sha256 == sha256), None)


def readable_records(
    store: ReadStore, layout: Layout, units: Iterable[int], manifest: Manifest | None = None
) -> dict[int, UnitRecord]:
    """Return the records of units that can be read and, where there is a manifest, are those that it lists."""
    found: dict[int, UnitRecord] = {}
    for unit in units:
        with contextlib.suppress(IntegrityError, StoreError):
            found[unit] = read_record(store, layout, unit, manifest)
    return found


def units_of(manifest: Manifest) -> list[int]:
    """Return the units that a manifest knows of, ascending; one that wrote nothing has a record alone."""
    listed = {unit for unit in map(ledger_unit, manifest.other_files) if unit is not None}
    return sorted(listed | {shard.unit for shard in manifest.files})

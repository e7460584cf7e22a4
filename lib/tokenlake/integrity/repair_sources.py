"""Where good bytes come from, cheapest first: other versions, the manifest, the configuration, the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from tokenlake.errors import TokenlakeError
from tokenlake.etl.plan.plan import Plan
from tokenlake.integrity.findings import Damage, look, unit_of
from tokenlake.integrity.repair_copies import Good, Place, is_good, places, rendered
from tokenlake.integrity.repair_plan import planned_unit, why_not
from tokenlake.integrity.repair_units import adopted
from tokenlake.store.base import ReadStore
from tokenlake.store.layout import TOKENIZER, ledger_unit
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest

MakePlan = Callable[[], Plan]


@final
@dataclass(slots=True)
class Found:
    """What is known of the damaged files of a version before anything is built.

    Attributes:
        good: path -> where its bytes are.
        units: unit -> (index in the plan, engine that encoded it; None: not known), of those to build again.
        lost: path -> why there are no good bytes.
        shared: path -> the same file of other versions, damaged as well.
        well: other versions that hold a damaged file well.
    """

    good: dict[str, Good] = field(default_factory=dict[str, Good])
    units: dict[int, tuple[int, str | None]] = field(default_factory=dict[int, "tuple[int, str | None]"])
    lost: dict[str, str] = field(default_factory=dict[str, str])
    shared: dict[str, list[Damage]] = field(default_factory=dict[str, "list[Damage]"])
    well: list[str] = field(default_factory=list[str])


def find(
    store: ReadStore,
    manifest: Manifest,
    records: Mapping[int, UnitRecord],
    damaged: Sequence[Damage],
    make_plan: MakePlan,
) -> Found:
    """Find the good bytes of damaged files, or what has to be built to have them.

    Args:
        records: unit -> ledger record, of those that are well.
        plan: plans again what the version was built from; called at most once, where nothing else helps. Its errors are
            what is said of the files that would have needed it.
    """
    found = Found()
    everywhere = places(store, {damage.sha256 for damage in damaged})
    for damage in damaged:
        _elsewhere(store, damage, everywhere[damage.sha256], found)
        if damage.obstacle:
            found.lost[damage.path] = damage.obstacle
            found.good.pop(damage.path, None)
        elif damage.path not in found.good:
            _derived(store, manifest, damage, found)
    left = [damage for damage in damaged if damage.path not in found.good and damage.path not in found.lost]
    if left:
        _from_plan(manifest, records, left, make_plan, found)
    return found


def _elsewhere(store: ReadStore, damage: Damage, others: Sequence[Place], found: Found) -> None:
    for place in others:
        if (place.layout, place.path) == (damage.layout, damage.path):
            continue
        there = look(store, place.layout, place.path, damage.sha256)
        if there is not None:
            if place.layout != damage.layout:
                found.shared.setdefault(damage.path, []).append(there)
            continue
        found.good.setdefault(damage.path, Good("copied", f"from {place}", key=place.key))
        if place.layout != damage.layout:
            found.well.append(str(place))


def _derived(store: ReadStore, manifest: Manifest, damage: Damage, found: Found) -> None:
    """Take what follows from the manifest, or from the ledger of another version."""
    data = rendered(manifest, damage.path)
    if is_good(data, damage):
        found.good[damage.path] = Good("rendered", "from the manifest", data=data or b"")
        return
    unit = ledger_unit(damage.path)
    record = None if unit is None else adopted(store, manifest, unit, damage.sha256)
    if record is not None:
        found.good[damage.path] = Good(
            "rendered", "from the record of another version", data=record.to_bytes()
        )


def _from_plan(
    manifest: Manifest,
    records: Mapping[int, UnitRecord],
    left: Sequence[Damage],
    make_plan: MakePlan,
    found: Found,
) -> None:
    try:
        plan = make_plan()
        preamble = plan.preamble()
    except TokenlakeError as error:
        found.lost |= {damage.path: str(error) for damage in left}
        return
    for damage in left:
        unit = unit_of(manifest, damage.path)
        if unit is not None:
            _unit(manifest, records.get(unit), plan, damage, unit, found)
        elif is_good(data := preamble.get(damage.path), damage):
            found.good[damage.path] = Good("rendered", "from the configuration", data=data or b"")
        elif damage.path.startswith(f"{TOKENIZER}/"):
            found.lost[damage.path] = "the tokenizer that the configuration names is another one by now"
        # Else another release of this library writes it otherwise: for a new version.


def _unit(
    manifest: Manifest, record: UnitRecord | None, plan: Plan, damage: Damage, unit: int, found: Found
) -> None:
    index = planned_unit(plan, manifest, unit, record)
    if index is None:
        found.lost[damage.path] = f"unit {unit} cannot be built again: {why_not(plan, manifest, record)}"
    else:
        found.units[unit] = index, None if record is None else record.engine

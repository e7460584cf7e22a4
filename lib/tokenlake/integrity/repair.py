"""Repairing a version: what is damaged is found, made again, compared, and swapped in whole.

One repair, from what is damaged to what is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from tokenlake.config.load import load_config
from tokenlake.errors import IntegrityError, NotFoundError, StoreError, TokenlakeError
from tokenlake.etl.events import Event, Planning
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.planner import Configuration
from tokenlake.etl.runner import available_cpus
from tokenlake.integrity.findings import (
    UNLISTED,
    Damage,
    How,
    Mended,
    Problem,
    RepairProgress,
    RepairReport,
    VerifyProgress,
    damages,
    expected_hashes,
    look,
    unit_of,
)
from tokenlake.integrity.repair_copies import Good, claim_bytes, mended, put
from tokenlake.integrity.repair_manifest import LostManifest
from tokenlake.integrity.repair_plan import Planned, Question
from tokenlake.integrity.repair_sources import Found, find
from tokenlake.integrity.repair_successor import Successor
from tokenlake.integrity.repair_units import OTHER_BYTES, Workshop, judged, readable_records
from tokenlake.integrity.verify import verify
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.base import ReadStore, Store
from tokenlake.store.catalog import Catalog, Reference
from tokenlake.store.layout import CLAIM, MANIFEST, Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest


@final
@dataclass(slots=True)
class Repair:
    """A repair while it goes on; arguments as of :func:`tokenlake.integrity.repair`.

    Attributes:
        address: of the store, for the workers.
        files, well: of the report, so far.
    """

    store: Store
    address: StoreAddress
    layout: Layout
    config: Configuration | None
    overrides: Sequence[str]
    dry_run: bool
    workers: int
    on_progress: Callable[[RepairProgress], None] | None
    files: list[Mended] = field(default_factory=list[Mended])
    well: list[str] = field(default_factory=list[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _planned: Planned | None = None

    def run(self) -> RepairReport:
        if not self.dry_run:
            self.store.sweep_temp(self.layout.prefix)
        manifest = self._manifest()
        problems = self._verify() if not (self.dry_run and self.files) else ()
        expected = expected_hashes(manifest)
        if self.dry_run and self.files:  # the manifest is damaged still, and nothing can be verified
            problems_of = [Problem(path, "", "", "") for path in expected]
            damaged = damages(self.store, self.layout, expected, problems_of)
        else:
            damaged = damages(self.store, self.layout, expected, problems)
        self._claim(manifest, problems)
        new_version = self._mend(manifest, damaged) if damaged else None
        if self.files and not self.dry_run:
            problems = self._verify()
        return RepairReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            dry_run=self.dry_run,
            files=tuple(self.files),
            well=tuple(self.well),
            new_version=new_version,
            unlisted=tuple(problem.path for problem in problems if problem.problem == UNLISTED),
            problems=tuple(problem for problem in problems if problem.problem != UNLISTED),
        )

    # The manifest and the claim, which no manifest names

    def _manifest(self) -> Manifest:
        """Return the manifest, and mend it first where it is damaged."""
        catalog = Catalog(self.store)
        try:
            return catalog.manifest(self.layout.dataset, self.layout.version)
        except IntegrityError:
            lost = LostManifest.look(self.store, self.layout)
        planned, fewer = self._plan_of(lost)
        made = lost.again(self.store, planned.plan, planned.names, fewer=fewer)
        data = made.to_bytes()
        damage = look(self.store, self.layout, MANIFEST, hashlib.sha256(data).hexdigest(), "damaged")
        if damage is not None:
            self._do(damage, Good("rendered", "from claim, ledger and configuration", data=data))
        return made

    def _plan_of(self, lost: LostManifest) -> tuple[Planned, bool]:
        """Return the plan of a lost manifest, and whether it leaves out files that have been added since."""
        question = Question(
            self.address, self.layout, lost.fingerprint, (), None, self.config, self.overrides
        )
        planned = self._plan(question)
        if planned.plan.fingerprint == lost.fingerprint:
            return planned, False
        fewer = replace(question, inputs=lost.inputs).plan(self.store, self._on_event)
        if fewer.plan.fingerprint != lost.fingerprint:
            return planned, False
        self._planned = fewer
        return fewer, True

    def _claim(self, manifest: Manifest, problems: Sequence[Problem]) -> None:
        for problem in problems:
            if problem.path != CLAIM:
                continue
            data = b""
            with contextlib.suppress(NotFoundError, StoreError):
                data = self.store.read(self.layout.claim)
            damage = look(self.store, self.layout, CLAIM, "", problem.problem)
            if damage is not None and damage.obstacle:
                self.files.append(mended(damage, "not mended", damage.obstacle))
            elif damage is not None:
                self._do(damage, Good("rendered", "from the manifest", data=claim_bytes(manifest, data)))

    # Everything else

    def _mend(self, manifest: Manifest, damaged: Sequence[Damage]) -> int | None:
        """Mend what can be mended; return the number of a new version, where one had to be."""
        records = readable_records(self.store, self.layout, manifest)
        question = Question.of(self.address, manifest, self.config, self.overrides)
        self._say("looking for copies")
        found = find(self.store, manifest, records, damaged, lambda: self._plan(question).plan)
        self.well += found.well
        self._put_all(damaged, found)
        rest = [damage for damage in damaged if damage.path not in found.good]
        if not found.units or self.dry_run or self._planned is None:
            return self._settle(manifest, rest, found, {}, None)
        with Workshop(self._planned.plan, self.layout, self._on_event) as workshop:
            done = self._build(workshop, self._planned.plan, found)
            for unit, built in done.items():
                of_unit = [damage for damage in rest if unit_of(manifest, damage.path) == unit]
                for path, what in judged(
                    workshop.store, self.layout, manifest, built, records, of_unit
                ).items():
                    if isinstance(what, str):
                        found.lost[path] = what
                    else:
                        found.good[path] = what
            self._put_all(rest, found)
            came = {unit: built for unit, built in done.items() if isinstance(built, UnitRecord)}
            return self._settle(manifest, rest, found, came, workshop.store)

    def _put_all(self, damaged: Sequence[Damage], found: Found) -> None:
        """Mend what has the very bytes, here and in the versions that share the file."""
        self._say("writing")
        for damage in damaged:
            good = found.good.get(damage.path)
            if good is None or good.how == "new version":
                continue
            self._do(damage, good)
            here = Good("copied", f"from {damage.version}: {damage.path}", key=damage.key)
            for other in found.shared.get(damage.path, ()):
                if other.obstacle:
                    self.files.append(mended(other, "not mended", other.obstacle))
                else:
                    self._do(other, here)

    def _settle(
        self,
        manifest: Manifest,
        rest: Sequence[Damage],
        found: Found,
        came: Mapping[int, UnitRecord],
        workshop: ReadStore | None,
    ) -> int | None:
        """Say what became of the files that are not mended in place; make a new version where that helps."""
        left = [
            damage for damage in rest if damage.path not in found.good or _is_new(found.good[damage.path])
        ]
        if self.dry_run:
            planned = [damage for damage in left if unit_of(manifest, damage.path) in found.units]
            for damage in planned:
                unit = unit_of(manifest, damage.path)
                self._report(damage, "rebuilt", f"from the inputs of unit {unit}", found)
            left = [damage for damage in left if damage not in planned]
        anew = [damage for damage in left if damage.path not in found.lost]
        for damage in left:
            if damage.path in found.lost:
                self._report(damage, "not mended", found.lost[damage.path], found)
        if not anew:
            return None
        if len(anew) < len(left):
            why = "it came out in other bytes, and a new version needs all the others to be mended"
            for damage in anew:
                self._report(damage, "not mended", why, found)
            return None
        version = None if self.dry_run else self._anew(manifest, anew, came, workshop)
        for damage in anew:
            self._report(damage, "new version", f"{OTHER_BYTES.note}: v{version or 'N'}", found)
        return version

    def _anew(
        self,
        manifest: Manifest,
        anew: Sequence[Damage],
        came: Mapping[int, UnitRecord],
        workshop: ReadStore | None,
    ) -> int:
        units = {unit_of(manifest, damage.path) for damage in anew}
        records = readable_records(self.store, self.layout, manifest)
        return Successor(
            old=manifest,
            damaged={damage.path for damage in anew},
            built={unit: record for unit, record in came.items() if unit in units},
            records=records,
            workshop=workshop,
        ).commit(self.store)

    def _build(self, workshop: Workshop, plan: Plan, found: Found) -> dict[int, UnitRecord | TokenlakeError]:
        total = sum(plan.units[index].bytes for index, _ in found.units.values())
        done = 0

        def on_bytes(more: int) -> None:
            nonlocal done
            with self._lock:
                done += more
                self._say("rebuilding", done, total)

        self._say("rebuilding", 0, total)
        return workshop.build(found.units, self.workers, on_bytes)

    # Small things

    def _plan(self, question: Question) -> Planned:
        if self._planned is None:
            self._say("planning")
            self._planned = question.plan(self.store, self._on_event)
        return self._planned

    def _do(self, damage: Damage, good: Good) -> None:
        if not self.dry_run:
            put(self.store, damage, good)
        self.files.append(mended(damage, good.how, good.note))

    def _report(self, damage: Damage, how: How, note: str, found: Found) -> None:
        self.files.append(mended(damage, how, note))
        for other in found.shared.get(damage.path, ()):
            said: How = "rebuilt" if how == "rebuilt" else "not mended"
            text = (
                f"with {damage.version}"
                if how == "rebuilt"
                else f"as {damage.version}: {damage.path}; repair it, too"
            )
            self.files.append(mended(other, said, text))

    def _verify(self) -> tuple[Problem, ...]:
        def told(progress: VerifyProgress) -> None:
            self._say("verifying", progress.bytes, progress.bytes_total)

        dataset, version = self.layout.dataset, self.layout.version
        return verify(self.store, dataset, version, workers=self.workers, on_progress=told).problems

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Planning):
            self._say("planning", event.bytes, event.all_bytes)

    def _say(self, doing: str, done: int = 0, total: int = 0) -> None:
        if self.on_progress is not None:
            self.on_progress(RepairProgress(doing, done, total))


def _is_new(good: Good) -> bool:
    return good.how == "new version"


def repair(
    store: Store | StoreAddress | str | os.PathLike[str],
    reference: str,
    *,
    config: Configuration | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    workers: int | None = None,
    on_progress: Callable[[RepairProgress], None] | None = None,
) -> RepairReport:
    """Mend the damaged files of a committed version, and of versions that share them.

    Good bytes come from another version that holds them, from the manifest, or from building the damaged units again
    from the recorded inputs, which must be what they were. Nothing is put in a place that has not the manifest's
    sha256. Where a unit comes out with the same rows in other bytes, as by another release of a writer, its files stay
    as they are and a new version is committed. May be killed at any moment, and be run again.

    Args:
        store: a store, its path or its URL.
        reference: ``NAME`` (its newest version), ``NAME@v3`` or ``NAME@TAG``.
        config: what the version was built with; None: as its newest run was asked. Needed where inputs have moved.
        overrides: ``key=value`` texts on top of it.
        dry_run: only say what would be done.
        workers: processes that build; default: the processors this process may use.
        on_progress: called from several threads, one call at a time.

    Raises:
        ConfigError: ``config`` is no configuration.
        NotFoundError: there is no such committed version.
        IntegrityError: its manifest is damaged and cannot be made again.
        VersionConflictError: somebody else changed a damaged file meanwhile; run it again.
    """
    if config is not None:
        load_config(config, overrides)  # a wrong one is told at once, not when it is needed, or never
    place = store if isinstance(store, Store) else open_store(store)
    address = StoreAddress(store.url) if isinstance(store, Store) else StoreAddress.of(store)
    layout = named(Catalog(place), reference)
    work = Repair(
        place, address, layout, config, tuple(overrides), dry_run, workers or available_cpus(), on_progress
    )
    return work.run()


def named(catalog: Catalog, reference: str) -> Layout:
    """Return the version that a reference means; unlike elsewhere a tag may mean one whose manifest is damaged.

    Raises:
        NotFoundError: there is no such committed version.
    """
    found = Reference.parse(reference)
    if found.tag is not None:
        return Layout(found.dataset, catalog.tag(found.dataset, found.tag).version)
    if found.version is None:
        return Layout(found.dataset, catalog.latest(found.dataset))
    return Layout(*catalog.resolve(reference))

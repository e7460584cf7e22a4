"""Repairing a version: what is damaged is found, made again, compared, and swapped in whole.

To build again what a version was built from, it is planned once more. The configuration is that of the version's newest
run, or the user's. ``runs/`` lies in the store, and whoever writes a store may write there that a function is to run,
or that a variable of this machine is a password to be sent to a server. Inputs are compared with the manifest's
fingerprints; for the rest the user gives the configuration, and with it the word that it may be done.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, is_tokens_of, last_step, resolve_source
from tokenlake.config.stages import RayConfig
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError, TokenlakeError
from tokenlake.etl import planner
from tokenlake.etl.engines import EngineName, open_pool
from tokenlake.etl.events import Event, Planning
from tokenlake.etl.integrity import findings, repair_sources
from tokenlake.etl.integrity.manifest_copy import copy_state, restored_manifest
from tokenlake.etl.integrity.rebuild import Workshop, judge
from tokenlake.etl.integrity.verify import verify
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.precedent import Precedent
from tokenlake.etl.planner import Configuration
from tokenlake.etl.pool import Pool
from tokenlake.etl.run_log import recorded
from tokenlake.etl.runner import run_pending
from tokenlake.etl.session import BuildSession
from tokenlake.etl.sources.allowed import require_allowed_inputs
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.allowed import INPUTS, AllowedPlaces
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog, Reference, parted
from tokenlake.runtime.store.layout import CLAIM, MANIFEST, MANIFEST_COPY, Layout
from tokenlake.runtime.store.ledger import Parent, UnitRecord
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.schemes import is_local

_UNLISTED: Final = "unlisted"


def repair(
    where: Store | StoreAddress | str | os.PathLike[str],
    name: str | None = None,
    *,
    config: Configuration | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    workers: int | None = None,
    engine: EngineName | None = None,
    on_progress: Callable[[findings.RepairProgress], None] | None = None,
) -> findings.RepairReport:
    """Repair the damaged files of a committed version, and of versions that share them.

    Good bytes come from another version that holds them, from the manifest, or from building the damaged units again
    from the recorded inputs, which must be what they were. Nothing is put in a place that has not the manifest's
    sha256. Where a unit comes out with the same rows in other bytes, as by another release of a writer, its files stay
    as they are and a new version is committed. May be killed at any moment, and be run again.

    Args:
        where: the dataset, or one version of it, as :func:`tokenlake.open` takes it; or its store.
        name: of the dataset in the store `where`: ``NAME``, which is the newest version, ``NAME@v3`` or ``NAME@TAG``.
        config: what the version was built with; None: the configuration of its newest run. Needed where inputs have
            moved.
        overrides: ``key=value`` texts on top of it.
        dry_run: only say what would be done.
        workers: processes that build; default: the processors this process may use, or as the engine has it.
        engine: where units are built again, one of :data:`tokenlake.etl.engines.ENGINES`; default: on this machine.
            With ``store`` whoever runs ``tokenlake work STORE/NAME/v3/runs/repair NAME@v3`` builds.
        on_progress: called from several threads, one call at a time.

    Raises:
        ConfigError: ``config`` is no configuration.
        NotFoundError: there is no such committed version.
        IntegrityError: its manifest is damaged and cannot be restored from its second copy.
        VersionConflictError: somebody else changed a damaged file meanwhile; run it again.
    """
    if config is not None:
        load_config(config, overrides)  # a wrong one is told at once, not when it is needed, or never
    place, name = parted(where, name)
    store = place if isinstance(place, Store) else open_store(place)
    address = StoreAddress(place.url) if isinstance(place, Store) else StoreAddress.of(place)
    catalog, asked = Catalog(store), Reference.parse(name)
    # Unlike elsewhere a tag may mean a version whose manifest is damaged.
    version = catalog.tag(asked.dataset, asked.tag).version if asked.tag else catalog.resolve(name)[1]
    work = _Repair(
        store=store,
        address=address,
        layout=Layout(asked.dataset, version),
        config=config,
        overrides=tuple(overrides),
        dry_run=dry_run,
        workers=workers,
        engine=engine or "local",
        on_progress=on_progress,
    )
    try:
        return work.run()
    finally:
        if work.pool is not None:
            work.pool.close()


@final
@dataclass(slots=True, kw_only=True)
class _Repair:
    """A repair while it goes on; arguments as of :func:`repair`.

    Attributes:
        address: of the store, for the workers.
        files: of the report, so far.
        pool: who builds, once something is to be built.
    """

    store: Store
    address: StoreAddress
    layout: Layout
    config: Configuration | None
    overrides: Sequence[str]
    dry_run: bool
    workers: int | None
    engine: EngineName
    on_progress: Callable[[findings.RepairProgress], None] | None
    files: list[findings.RepairedFile] = field(default_factory=list[findings.RepairedFile])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _replanned: Replanned | None = None
    pool: Pool | None = None

    def run(self) -> findings.RepairReport:
        if not self.dry_run:
            self.store.sweep_temp(self.layout.prefix)
        manifest = self._manifest()
        # Of a manifest that is damaged still nothing can be verified.
        unverified = self.dry_run and bool(self.files)
        problems = () if unverified else self._verify()
        self._repair_copy()
        listed = findings.listed_files(manifest)
        words = dict.fromkeys(listed, "") if unverified else {one.path: one.problem for one in problems}
        damaged = findings.damages(self.store, self.layout, listed, words)
        for problem in problems:  # the claim, which no manifest lists
            if problem.path != CLAIM:
                continue
            data = b""
            with contextlib.suppress(NotFoundError, StoreError):
                data = self.store.read(self.layout.claim)
            damage = findings.look(self.store, self.layout, CLAIM, "", problem.problem)
            if damage is not None:
                self._put(
                    damage,
                    repair_sources.Good(
                        "rendered", "from the manifest", data=repair_sources.claim_bytes(manifest, data)
                    ),
                )
        intact, new_version = self._repair(manifest, damaged) if damaged else ([], None)
        if self.files and not self.dry_run:
            problems = self._verify()
        return findings.RepairReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            dry_run=self.dry_run,
            files=tuple(self.files),
            intact=tuple(intact),
            new_version=new_version,
            unlisted=tuple(problem.path for problem in problems if problem.problem == _UNLISTED),
            problems=tuple(problem for problem in problems if problem.problem != _UNLISTED),
        )

    def _manifest(self) -> Manifest:
        """Return the manifest, and repair it first where it is damaged."""
        catalog = Catalog(self.store)
        try:
            return catalog.manifest(self.layout.dataset, self.layout.version)
        except IntegrityError:
            manifest, data = restored_manifest(self.store, self.layout)
        damage = findings.look(self.store, self.layout, MANIFEST, hashlib.sha256(data).hexdigest(), "damaged")
        if damage is not None:
            self._put(damage, repair_sources.Good("copied", f"from {MANIFEST_COPY}", data=data))
        return manifest

    def _repair_copy(self) -> None:
        """Write the second copy of the manifest where it is missing or damaged.

        A version that was copied from elsewhere has neither a claim nor a copy, and needs none. A copy that is another
        sealed manifest stays: verification says so.
        """
        if any(file.path == MANIFEST for file in self.files) or not self.store.exists(self.layout.claim):
            return  # the manifest was restored from the copy just now, or would be
        if copy_state(self.store, self.layout) not in ("missing", "damaged"):
            return
        data = self.store.read(self.layout.manifest)
        damage = findings.look(self.store, self.layout, MANIFEST_COPY, hashlib.sha256(data).hexdigest())
        if damage is not None:
            self._put(damage, repair_sources.Good("copied", f"from {MANIFEST}", data=data))

    def _repair(self, manifest: Manifest, damaged: Sequence[findings.Damage]) -> tuple[list[str], int | None]:
        """Repair what can be repaired; return where the same bytes are intact, and the number of a new version."""
        records = repair_sources.readable_records(
            self.store, self.layout, repair_sources.units_of(manifest), manifest
        )

        def make_plan() -> Plan:
            if self._replanned is None:
                again = Precedent.of(manifest)
                self._replanned = self._plan(manifest.fingerprint, manifest.parents, again)
            return self._replanned.plan

        self._say("looking for copies")
        files, intact = repair_sources.find(self.store, manifest, records, damaged, make_plan)
        self._put_all(files)
        left = [file for file in files if file.good is None]
        units = {file.unit: file.planned for file in left if file.unit is not None and file.planned}
        if units and not self.dry_run and self._replanned is not None:
            beside = None if self.engine == "local" else StoreAddress(self.store.url, self.address.options)
            with Workshop.opened(self._replanned.plan, self.layout, beside) as workshop:
                for unit, came in self._build(workshop, units).items():
                    of_unit = [file for file in left if file.unit == unit]
                    judge(workshop.store, self.layout, manifest, came, records, of_unit)
                self._put_all(left)
            left = [file for file in left if file.good is None]
        return intact, self._finish(manifest, left)

    def _put_all(self, files: Sequence[repair_sources.DamagedFile]) -> None:
        """Repair what has good bytes, here and in the versions that share the file."""
        self._say("writing")
        for file in files:
            if file.good is None:
                continue
            self._put(file.damage, file.good)
            here = repair_sources.Good(
                "copied", f"from {file.damage.version}: {file.path}", key=file.damage.key
            )
            for other in file.shared:
                self._put(other, here)

    def _finish(self, manifest: Manifest, left: Sequence[repair_sources.DamagedFile]) -> int | None:
        """Say what became of files without good bytes; make a new version where that helps, and return its number."""
        if self.dry_run:
            for file in left:
                if file.planned:
                    self._report(file, "rebuilt", f"from the inputs of unit {file.unit}")
            left = [file for file in left if not file.planned]
        lost, anew = [file for file in left if file.lost], [file for file in left if not file.lost]
        for file in lost:
            self._report(file, "not repaired", file.lost)
        if not anew:
            return None
        whole = self._replanned is not None and self._replanned.plan.fingerprint == manifest.fingerprint
        if lost or not whole:
            needs = "all other files to be repaired" if lost else "all inputs to be what they were"
            for file in anew:
                self._report(
                    file, "not repaired", f"its bytes came out different, and a new version needs {needs}"
                )
            return None
        version = None if self.dry_run else self._successor(manifest)
        note = f"the same rows, in the bytes of another release of a writer: v{version or 'N'}"
        for file in anew:
            self._report(file, "new version", note)
        return version

    def _successor(self, manifest: Manifest) -> int:
        """Commit the same build once more, beside the damaged version, and return its number.

        Committed bytes are what their manifest says or damaged, never anything else. So what came out with other bytes
        and the same rows is a version of its own; units that are whole are taken over.
        """
        assert self._replanned is not None
        catalog, dataset, after = Catalog(self.store), self.layout.dataset, self.layout.version
        for info in catalog.versions(dataset):
            if info.version > after and info.committed:
                same = catalog.manifest(dataset, info.version).fingerprint == manifest.fingerprint
                if same and verify(self.store, dataset, info.version).ok:
                    return info.version
                after = info.version if same else after
        session = BuildSession.open(
            self._replanned.config, on_event=self._on_event, plan=self._replanned.plan, after=after
        )
        run_pending(session, self._workers(), on_event=self._on_event)
        session.commit()
        return session.version

    def _build(
        self, workshop: Workshop, units: Mapping[int, tuple[int, str | None]]
    ) -> dict[int, UnitRecord | TokenlakeError]:
        total = sum(workshop.plan.units[index].bytes for index, _ in units.values())
        done = 0

        def on_bytes(more: int) -> None:
            nonlocal done
            with self._lock:
                done += more
                self._say("rebuilding", done, total)

        self._say("rebuilding", 0, total)
        if self.engine == "store":
            name = f"{self.layout.dataset}@v{self.layout.version}"
            self._say(f"waiting for workers: tokenlake work {workshop.store.url} {name}")
        return workshop.build(units, self._workers(), on_bytes)

    def _workers(self) -> Pool:
        """Return whoever builds; nobody starts before something is to be built."""
        if self.pool is None:
            ray = RayConfig() if self._replanned is None else self._replanned.config.ray
            self.pool = open_pool(self.engine, self.workers, ray)
        return self.pool

    def _plan(self, fingerprint: str, parents: tuple[Parent, ...], again: Precedent) -> Replanned:
        """Plan what the version was built from, as its inputs are now.

        Args:
            parents: that it was made of: a configuration may have said "the newest", which is another by now.
            again: as the version was planned, whatever was added since.

        Raises:
            ConfigError: there is no configuration of it.
            SourceError, TokenizerError: an input or a tokenizer cannot be read.
        """
        self._say("planning")
        if self.config is not None:
            loaded = load_config(self.config, self.overrides)
        else:
            how = "give the configuration with --config FILE (in Python config=...)"
            found = recorded(self.store, self.layout, fingerprint, how)
            loaded = load_config(found, self.overrides)
            # The store names these inputs, and not the person who runs the command.
            places = AllowedPlaces.of(os.environ, INPUTS)
            for dataset in loaded.datasets:
                if dataset.data_files:
                    require_allowed_inputs(resolve_source(loaded, dataset), places)
        whole, address = _step(loaded, self.layout.dataset, parents), self.address
        # Not those of a record: they could lead this machine's credentials to another server.
        own = {} if self.config is None or is_local(address.url) else whole.save.storage_options
        options = address.options or own or None
        save = whole.save.model_copy(update={"output_dir": address.url, "storage_options": options})
        # Versions of stored datasets that were the newest ones then are named.
        named = {dataset.dataset for dataset in whole.datasets}
        made_of = [(parent.dataset, f"{parent.dataset}@v{parent.version}") for parent in parents]
        newest = {dataset: name for dataset, name in made_of if name not in named}
        datasets = tuple(
            each.model_copy(update={"dataset": newest[each.dataset]}) if each.dataset in newest else each
            for each in whole.datasets
        )
        changes = {"name": self.layout.dataset, "save": save, "datasets": datasets}
        config = whole.model_copy(update=changes)
        return Replanned(planner.plan(config, self._on_event, again=again), config)

    def _put(self, damage: findings.Damage, good: repair_sources.Good) -> None:
        if damage.obstacle:
            self._note(damage, "not repaired", damage.obstacle)
            return
        if not self.dry_run:
            good.put(self.store, damage)
        self._note(damage, good.how, good.note)

    def _report(self, file: repair_sources.DamagedFile, how: findings.How, note: str) -> None:
        self._note(file.damage, how, note)
        version = file.damage.version
        why = f"damaged as {version}: {file.path} is; repair this version, too"
        for other in file.shared:
            of_other: tuple[findings.How, str] = (
                ("rebuilt", f"with {version}") if how == "rebuilt" else ("not repaired", why)
            )
            self._note(other, *of_other)

    def _note(self, damage: findings.Damage, how: findings.How, note: str) -> None:
        self.files.append(findings.RepairedFile(damage.version, damage.path, damage.word, how, note))

    def _verify(self) -> tuple[findings.Problem, ...]:
        def on_progress(progress: findings.VerifyProgress) -> None:
            self._say("verifying", progress.bytes, progress.bytes_total)

        dataset, version = self.layout.dataset, self.layout.version
        return verify(self.store, dataset, version, workers=self.workers, on_progress=on_progress).problems

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Planning):
            self._say("planning", event.bytes, event.all_bytes)

    def _say(self, doing: str, done: int = 0, total: int = 0) -> None:
        if self.on_progress is not None:
            self.on_progress(findings.RepairProgress(doing, done, total))


@final
@dataclass(frozen=True, slots=True)
class Replanned:
    """A plan and its configuration."""

    plan: Plan
    config: PipelineConfig


def _step(whole: PipelineConfig, dataset: str, parents: Sequence[Parent]) -> PipelineConfig:
    """Return the one build of a configuration that made a dataset: a mixture of text is several."""
    steps = first_steps(whole)
    if not steps:
        return whole
    for step in steps.values():
        if step.name == dataset:
            return step
    stored = dict[str, str]()
    for source, step in steps.items():
        parent = _tokens_of(source, step.name or "", parents)
        if parent is not None:
            stored[source] = f"{parent.dataset}@v{parent.version}"
    if len(stored) < len(steps):
        made = ", ".join([*(step.name or "" for step in steps.values()), whole.name or ""])
        raise ConfigError(
            f"the configuration makes {made}, and {dataset} was made from none of these. Give its own with --config"
        )
    return last_step(whole, stored)


def _tokens_of(source: str, name: str, parents: Sequence[Parent]) -> Parent | None:
    """Return the parent that holds the tokens of a source: under the configuration's own name, or under another's."""
    for parent in parents:
        if parent.dataset == name:
            return parent
    return next((parent for parent in parents if is_tokens_of(parent.dataset, source)), None)

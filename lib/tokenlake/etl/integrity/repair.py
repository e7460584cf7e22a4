"""Repair of a version: damaged files are made again, compared, and replaced as a whole.

1. The manifest is restored from its second copy if it is damaged, and the version is
   verified.
2. Good bytes of each damaged file are looked for: in other versions, in the manifest,
   in the configuration (:mod:`~tokenlake.etl.integrity.repair_sources`).
3. Units that remain are built again from their inputs
   (:mod:`~tokenlake.etl.integrity.rebuild`), for which the version is planned once more
   (:mod:`~tokenlake.etl.integrity.replan`).
4. Units with the same rows in other bytes are committed as a new version, if all else
   is whole.

The configuration for planning is that of the version's newest run, or the user's. A
recorded one lies in the store, and whoever writes to the store could ask there for a
function to run, or for a variable of this machine to be sent to a server as a password.
Inputs are compared with the manifest's fingerprints; for the rest, the user has to give
the configuration, and with it the permission.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from tokenlake.config.load import load_config
from tokenlake.config.stages import RayConfig
from tokenlake.errors import IntegrityError, NotFoundError, StoreError, TokenlakeError
from tokenlake.etl.events import Event, Planning
from tokenlake.etl.executors import ExecutorName, open_pool, present_executor
from tokenlake.etl.integrity.findings import (
    Damage,
    How,
    RepairedFile,
    RepairProgress,
    RepairReport,
    damages,
    listed_files,
    look,
)
from tokenlake.etl.integrity.ledger_records import readable_records, units_of
from tokenlake.etl.integrity.manifest_copy import copy_state, restored_manifest
from tokenlake.etl.integrity.rebuild import Workshop, judge
from tokenlake.etl.integrity.repair_sources import (
    DamagedFile,
    Good,
    PlannedUnit,
    claim_bytes,
    find,
)
from tokenlake.etl.integrity.replan import Replanned, replan
from tokenlake.etl.integrity.verify import verify
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.planner import Configuration
from tokenlake.etl.pool import Pool
from tokenlake.etl.runner import run_pending
from tokenlake.etl.session import BuildSession
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog, Reference, parted
from tokenlake.runtime.store.file_check import Problem, VerifyProgress
from tokenlake.runtime.store.layout import CLAIM, MANIFEST, MANIFEST_COPY, Layout
from tokenlake.runtime.store.ledger import UnitRecord
from tokenlake.runtime.store.manifest import Manifest

_UNLISTED: Final = "unlisted"  # a problem that repair leaves to garbage collection

OnProgress: TypeAlias = Callable[[RepairProgress], None]
"""Function that receives the progress of a repair."""


def repair(
    where: Store | StoreAddress | str | os.PathLike[str],
    name: str | None = None,
    *,
    config: Configuration | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    workers: int | None = None,
    executor: ExecutorName | None = None,
    on_progress: OnProgress | None = None,
    engine: ExecutorName | None = None,
) -> RepairReport:
    """Repair the damaged files of a committed version, and of versions that share them.

    Good bytes come from another version that holds them, from the manifest, or from
    building the damaged units again from the recorded inputs, which must be unchanged.
    A file is replaced only by bytes that have the manifest's sha256. If a unit is built
    with the same rows in other bytes, for example by another release of a writer, its
    files stay as they are and a new version is committed. A repair may be killed at any
    moment, and be run again.

    Args:
        where: Dataset, or one version of it, as :func:`tokenlake.open` takes it; or its
            store.
        name: Dataset in the store `where`: ``NAME``, which is the newest version,
            ``NAME@v3`` or ``NAME@TAG``.
        config: Configuration of the version; None: that of its newest run. Needed if
            inputs have moved.
        overrides: Texts ``key=value`` that change the configuration.
        dry_run: True to report repairs without making them.
        workers: Number of processes that build; default: the processors this process
            may use, or as many as the executor has.
        executor: Place where units are built again: ``local``, ``store``, ``ray`` or
            ``dask``; default: this machine. With ``store``, the workers of ``tokenlake
            work NAME@v3 --store STORE/NAME/v3/runs/repair`` build.
        on_progress: Function that receives progress, called from several threads, one
            call at a time.
        engine: Former name of `executor`, for one release.

    Returns:
        Damaged files, and the result of each.

    Raises:
        ConfigError: `config` is no configuration.
        NotFoundError: The version does not exist, or is not committed.
        IntegrityError: Its manifest is damaged and cannot be restored from its second
            copy.
        VersionConflictError: Another program changed a damaged file meanwhile; run the
            repair again.

    Example:
        >>> from pathlib import Path
        >>> import tokenlake as tl
        >>> shard = tl.open("artifacts/books@v3").manifest.files[0].path
        >>> Path("artifacts/books/v3", shard).unlink()
        >>> report = tl.repair("artifacts/books@v3", workers=1)
        >>> report.ok, report.repaired
        (True, 1)
    """
    executor = present_executor(executor, engine)
    if config is not None:
        # A wrong one is reported at once, and not only when it is needed.
        load_config(config, overrides)
    # The store may be given as an object, which knows its address, or as an address,
    # whose options the workers need to open it.
    place, name = parted(where, name)
    if isinstance(place, Store):
        store = place
        address = StoreAddress(place.url)
    else:
        store = open_store(place)
        address = StoreAddress.of(place)
    work = _Repair(
        store=store,
        address=address,
        layout=_layout_of(Catalog(store), name),
        config=config,
        overrides=tuple(overrides),
        dry_run=dry_run,
        workers=workers,
        executor=executor or "local",
        on_progress=on_progress,
    )
    try:
        return work.run()
    finally:
        if work.pool is not None:
            work.pool.close()


def _layout_of(catalog: Catalog, name: str) -> Layout:
    """Return the layout of the version that a name means.

    The manifest may be damaged. A tag is therefore read without the version that it
    names, which is checked on any other way.
    """
    reference = Reference.parse(name)
    if reference.tag:
        tag = catalog.tag(reference.dataset, reference.tag)
        return Layout(reference.dataset, tag.version)
    dataset, version = catalog.resolve(name)
    return Layout(dataset, version)


@final
@dataclass(slots=True, kw_only=True)
class _Repair:
    """A repair in progress; arguments as of :func:`repair`.

    Attributes:
        store: Store of the version.
        address: Address of the store, for the workers.
        layout: Keys of the version.
        config: Configuration given by the user.
        overrides: Texts that change the configuration.
        dry_run: True if nothing is written.
        workers: Number of processes that build.
        executor: Place where units are built.
        on_progress: Function that receives progress.
        files: Files of the report, so far.
        pool: Pool of workers, once something is built.
        _lock: Lock of the progress, which several threads report.
        _replanned: The version, planned again, once that is needed.
    """

    store: Store
    address: StoreAddress
    layout: Layout
    config: Configuration | None
    overrides: Sequence[str]
    dry_run: bool
    workers: int | None
    executor: ExecutorName
    on_progress: OnProgress | None
    files: list[RepairedFile] = field(default_factory=list[RepairedFile])
    pool: Pool | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _replanned: Replanned | None = None

    def run(self) -> RepairReport:
        """Repair everything that can be repaired, and return the report."""
        # Temporary files of a repair that was killed.
        if not self.dry_run:
            self.store.sweep_temp(self.layout.prefix)
        # 1. The manifest, and what verification finds.
        manifest = self._manifest()
        entries = listed_files(manifest)
        is_manifest_damaged = self.dry_run and bool(self.files)
        problems: tuple[Problem, ...] = ()
        if is_manifest_damaged:
            # Nothing can be verified before the manifest is restored: all files are
            # looked at.
            words = dict.fromkeys(entries, "")
        else:
            problems = self._verify()
            words = {problem.path: problem.problem for problem in problems}
        self._repair_copy()
        damaged = damages(self.store, self.layout, entries, words)
        # 2. The claim, which no manifest lists, and the files.
        for problem in problems:
            if problem.path == CLAIM:
                self._repair_claim(manifest, problem)
        intact: list[str] = []
        new_version: int | None = None
        if damaged:
            intact, new_version = self._repair_files(manifest, damaged)
        # 3. The problems that remain.
        if self.files and not self.dry_run:
            problems = self._verify()
        return RepairReport(
            dataset=self.layout.dataset,
            version=self.layout.version,
            dry_run=self.dry_run,
            files=tuple(self.files),
            intact=tuple(intact),
            new_version=new_version,
            unlisted=tuple(_unlisted_paths(problems)),
            problems=tuple(_listed_problems(problems)),
        )

    # The small files

    def _manifest(self) -> Manifest:
        """Return the manifest; one that is damaged is repaired first."""
        try:
            return Catalog(self.store).manifest(
                self.layout.dataset, self.layout.version
            )
        except IntegrityError:
            manifest, data = restored_manifest(self.store, self.layout)
        # The manifest is a sealed file, so that its damage is known already; here its
        # bytes are looked at once more, for the replacement.
        damage = look(
            self.store,
            self.layout,
            MANIFEST,
            hashlib.sha256(data).hexdigest(),
            "damaged",
        )
        if damage is not None:
            self._put(damage, Good("copied", f"from {MANIFEST_COPY}", data=data))
        return manifest

    def _repair_copy(self) -> None:
        """Write the second copy of the manifest if it is missing or damaged.

        A version that was copied from elsewhere has neither a claim nor a copy, and
        needs none. A copy that is another sealed manifest stays: verification reports
        it.
        """
        if any(file.path == MANIFEST for file in self.files):
            return  # the manifest was restored from the copy, or would be
        if not self.store.exists(self.layout.claim):
            return
        if copy_state(self.store, self.layout) not in ("missing", "damaged"):
            return
        data = self.store.read(self.layout.manifest)
        damage = look(
            self.store, self.layout, MANIFEST_COPY, hashlib.sha256(data).hexdigest()
        )
        if damage is not None:
            self._put(damage, Good("copied", f"from {MANIFEST}", data=data))

    def _repair_claim(self, manifest: Manifest, problem: Problem) -> None:
        """Write the claim anew."""
        # The damaged bytes tell the state of the claim, if they can be read.
        damaged_bytes = b""
        with contextlib.suppress(NotFoundError, StoreError):
            damaged_bytes = self.store.read(self.layout.claim)
        damage = look(self.store, self.layout, CLAIM, "", problem.problem)
        if damage is not None:
            data = claim_bytes(manifest, damaged_bytes)
            self._put(damage, Good("rendered", "from the manifest", data=data))

    # Listed files

    def _repair_files(
        self, manifest: Manifest, damaged: Sequence[Damage]
    ) -> tuple[list[str], int | None]:
        """Repair listed files.

        Returns:
            Places where the same bytes are intact, and the number of a new version.
        """
        records = readable_records(
            self.store, self.layout, units_of(manifest), manifest
        )
        # 1. Copies, and files that follow from others.
        self._say("looking for copies")
        files, intact = find(
            self.store, manifest, records, damaged, lambda: self._plan(manifest)
        )
        self._put_all(files)
        # 2. Units that have to be built, which a dry run only plans.
        remaining = [file for file in files if file.good is None]
        if not self.dry_run:
            self._rebuild(manifest, records, remaining)
            remaining = [file for file in remaining if file.good is None]
        # 3. The files that cannot be repaired in place.
        return intact, self._finish(manifest, remaining)

    def _rebuild(
        self,
        manifest: Manifest,
        records: Mapping[int, UnitRecord],
        files: Sequence[DamagedFile],
    ) -> None:
        """Build the units of damaged files again, and put the files that are right."""
        # Several files may be of one unit, which is built once.
        units: dict[int, PlannedUnit] = {}
        for file in files:
            if file.unit is not None and file.planned is not None:
                units[file.unit] = file.planned
        if not units or self._replanned is None:
            return
        # Other machines can only build in a store that they reach.
        version_store: StoreAddress | None = None
        if self.executor != "local":
            version_store = StoreAddress(self.store.url, self.address.options)
        plan = self._replanned.plan
        with Workshop.opened(plan, self.layout, version_store) as workshop:
            results = self._build(workshop, units)
            for unit, result in results.items():
                unit_files = [file for file in files if file.unit == unit]
                judge(
                    workshop.store, self.layout, manifest, result, records, unit_files
                )
            # The good bytes lie in the workshop, which is cleared at its end.
            self._put_all(files)

    def _put_all(self, files: Sequence[DamagedFile]) -> None:
        """Repair the files that have good bytes, also in versions that share them."""
        self._say("writing")
        for file in files:
            if file.good is None:
                continue
            self._put(file.damage, file.good)
            note = f"from {file.damage.version}: {file.path}"
            # The file is right now, and the source for the other versions.
            for other in file.shared:
                self._put(other, Good("copied", note, key=file.damage.key))

    def _finish(
        self, manifest: Manifest, remaining: Sequence[DamagedFile]
    ) -> int | None:
        """Report on files without good bytes, and make a new version if that helps.

        Returns:
            Number of the new version.
        """
        # Files in three groups: planned by a dry run, lost, and right but for their
        # bytes.
        lost: list[DamagedFile] = []
        changed: list[DamagedFile] = []  # the same rows, in other bytes
        for file in remaining:
            if self.dry_run and file.planned:
                self._report(file, "rebuilt", f"from the inputs of unit {file.unit}")
            elif file.lost:
                lost.append(file)
            else:
                changed.append(file)
        for file in lost:
            self._report(file, "not repaired", file.lost)
        if not changed:
            return None

        # A new version has all units, so that no file may be lost, and it is the same
        # build only if no input has changed.
        if lost:
            self._report_without_new_version(changed, "all other files to be repaired")
            return None
        replanned = self._replanned
        if replanned is None or replanned.plan.fingerprint != manifest.fingerprint:
            self._report_without_new_version(changed, "all inputs to be unchanged")
            return None
        version: int | None = None
        if not self.dry_run:
            version = self._commit_new_version(manifest, replanned)
        # A dry run does not know the number of the version.
        version_number = version or "N"
        note = f"the same rows in other bytes, written by another release: v{version_number}"
        for file in changed:
            self._report(file, "new version", note)
        return version

    def _report_without_new_version(
        self, files: Sequence[DamagedFile], condition: str
    ) -> None:
        """Report files whose rows are right, and that no new version can have."""
        note = f"its bytes differ, and a new version requires {condition}"
        for file in files:
            self._report(file, "not repaired", note)

    def _commit_new_version(self, manifest: Manifest, replanned: Replanned) -> int:
        """Commit the same build beside the damaged version, and return its number.

        Committed bytes are those of their manifest, or damaged; they never change.
        Units with other bytes and the same rows therefore become a version of their
        own, which takes over the intact units. A repair that was killed may have
        committed this version already.
        """
        # A later version of the same build that is intact is the result of an earlier
        # repair. One that is damaged is passed over: its number is taken.
        catalog = Catalog(self.store)
        dataset = self.layout.dataset
        last_version = self.layout.version
        for info in catalog.versions(dataset):
            if info.version <= last_version or not info.committed:
                continue
            later_manifest = catalog.manifest(dataset, info.version)
            if later_manifest.fingerprint != manifest.fingerprint:
                continue
            if verify(self.store, dataset, info.version).ok:
                return info.version
            last_version = info.version

        session = BuildSession.open(
            replanned.config,
            on_event=self._on_event,
            plan=replanned.plan,
            after=last_version,
        )
        run_pending(session, self._workers(), on_event=self._on_event)
        session.commit()
        return session.version

    # Building

    def _plan(self, manifest: Manifest) -> Plan:
        """Plan the version again, once."""
        if self._replanned is None:
            self._say("planning")
            self._replanned = replan(
                self.store,
                self.address,
                manifest,
                config=self.config,
                overrides=self.overrides,
                on_event=self._on_event,
            )
        return self._replanned.plan

    def _build(
        self, workshop: Workshop, units: Mapping[int, PlannedUnit]
    ) -> dict[int, UnitRecord | TokenlakeError]:
        """Build units and report progress."""
        # Progress counts the input bytes of all units, whose workers report from
        # several threads.
        total = sum(workshop.plan.units[unit.index].bytes for unit in units.values())
        done = 0

        def on_bytes(byte_count: int) -> None:
            nonlocal done
            with self._lock:
                done += byte_count
                self._say("rebuilding", done, total)

        self._say("rebuilding", 0, total)
        if self.executor == "store":
            name = f"{self.layout.dataset}@v{self.layout.version}"
            self._say(
                f"waiting for workers: tokenlake work {name} --store {workshop.store.url}"
            )
        return workshop.build(units, self._workers(), on_bytes)

    def _workers(self) -> Pool:
        """Return the pool of workers, which starts when something is to be built."""
        if self.pool is None:
            ray = RayConfig()
            if self._replanned is not None:
                ray = self._replanned.config.ray
            self.pool = open_pool(self.executor, self.workers, ray)
        return self.pool

    # Writing and reporting

    def _put(self, damage: Damage, good: Good) -> None:
        """Replace a damaged file, and report it.

        In a dry run it is only reported. An obstacle, such as a folder in the place of
        a file, is for a person to remove.
        """
        if damage.obstacle:
            self._note(damage, "not repaired", damage.obstacle)
            return
        if not self.dry_run:
            good.put(self.store, damage)
        self._note(damage, good.how, good.note)

    def _report(self, file: DamagedFile, outcome: How, note: str) -> None:
        """Report on a file, and on the versions that share it."""
        self._note(file.damage, outcome, note)
        # A shared file is repaired with this one only by the same bytes.
        version = file.damage.version
        for other in file.shared:
            if outcome == "rebuilt":
                self._note(other, "rebuilt", f"with {version}")
            else:
                self._note(
                    other,
                    "not repaired",
                    f"damaged as {version}: {file.path} is; repair this version, too",
                )

    def _note(self, damage: Damage, outcome: How, note: str) -> None:
        """Add a file to the report."""
        self.files.append(
            RepairedFile(damage.version, damage.path, damage.word, outcome, note)
        )

    def _verify(self) -> tuple[Problem, ...]:
        """Verify the version, and return its problems."""

        def on_progress(progress: VerifyProgress) -> None:
            self._say("verifying", progress.bytes, progress.bytes_total)

        report = verify(
            self.store,
            self.layout.dataset,
            self.layout.version,
            workers=self.workers,
            on_progress=on_progress,
        )
        return report.problems

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Planning):
            self._say("planning", event.bytes, event.all_bytes)

    def _say(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Report a step, with the bytes that are done and those of all of it."""
        if self.on_progress is not None:
            self.on_progress(RepairProgress(doing, done, total))


def _unlisted_paths(problems: Sequence[Problem]) -> list[str]:
    """Return the paths of files that no manifest names."""
    paths: list[str] = []
    for problem in problems:
        if problem.problem == _UNLISTED:
            paths.append(problem.path)
    return paths


def _listed_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems that are not about files that no manifest names."""
    return [problem for problem in problems if problem.problem != _UNLISTED]

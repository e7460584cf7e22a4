"""One build, from its plan to its commit.

A session claims a version, finds out which units are done already, chooses the
tokenizer backend of each source, runs single units through a worker pool, and commits.
It can end at any moment: finished units have a ledger record, and the next session with
the same configuration and inputs continues from there.

Its driver decides on threads, retries and the order of the units: the library's own
runner (:mod:`tokenlake.etl.runner`) or a Prefect flow.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, Self, TypeAlias, final

import msgspec

from tokenlake import errors
from tokenlake.base import numbers
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.etl import planner
from tokenlake.etl.backend_choices import BackendChoices
from tokenlake.etl.bad_record_budget import BadRecordBudget
from tokenlake.etl.commit import (
    adopted_records,
    commit_version,
    committed_manifest,
    finished_records,
    publish_preamble,
    remove_record,
    require_held,
)
from tokenlake.etl.events.of_builds import (
    BackendDiscarded,
    BuildPlanned,
    Committed,
    Phase,
)
from tokenlake.etl.events.of_units import (
    Done,
    UnitFailed,
    UnitFinished,
    UnitProgress,
    UnitStarted,
)
from tokenlake.etl.events.watcher import Watcher, ignore
from tokenlake.etl.head_start import HeadStart
from tokenlake.etl.job.messages import REFERENCE, Job
from tokenlake.etl.plan.plan import Plan, PlannedUnit, TextUnit
from tokenlake.etl.planner.configurations import Configuration
from tokenlake.etl.pool import EarlyPool, Pool
from tokenlake.etl.run_log import Asked, RunLog
from tokenlake.etl.sources.hub_repo import hub_commits
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.step_clock.reported_steps import STEPS, StepTime, step_times
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Store, require_digest
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import QUARANTINE, Layout
from tokenlake.runtime.store.ledger import FileEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.outputs import require_no_version_above

How: TypeAlias = Literal["built", "resumed", "reused"]
"""Origin of a finished unit: built by this session, by an earlier one of this
version, or for another version.
"""

Status: TypeAlias = Literal["new", "resumed", "committed"]
"""State of the claim: made by this session, found unfinished, or found committed."""

_COUNTED: Final = ("bytes", "documents", "tokens")
"""Fields of a worker's progress that events have, in the order of
:data:`~tokenlake.etl.events.Done`.
"""

_SECONDS_HELD: Final = 1.0
"""Number of seconds for which a check of the claim is good."""


@final
class BuildSession:
    """Build that has claimed a version, from :meth:`open`.

    Attributes:
        plan: Plan of the build.
        dataset: Name of the dataset.
        version: Number of the version.
        status: ``new``, ``resumed`` (an unfinished claim was found) or ``committed``
            (nothing is left to do).
        backends: Tokenizer backend of each source.
        found_committed: Whether the version was committed before this session.
    """

    def __init__(
        self, plan: Plan, store: Store, version: int, status: Status, watcher: Watcher
    ) -> None:
        self.plan = plan
        self.dataset = plan.dataset
        self.version = version
        self.status: Status = status
        self.found_committed = status == "committed"
        self._store = store
        self._catalog = Catalog(store)
        self._layout = Layout(plan.dataset, version)
        self._log = RunLog(store, self._layout)
        self._emit = watcher
        self.backends = BackendChoices(plan, self._layout, watcher)
        quarantine = f"{store.url}/{self._layout.key(QUARANTINE)}"
        self._budget = BadRecordBudget(plan, quarantine)
        self._manifest: Manifest | None = None
        self._has_ended = False
        # Time of the last check of the claim.
        self._held_at = -math.inf

        # Finished units. The lock guards these three.
        self._lock = threading.Lock()
        self._records: dict[int, UnitRecord] = {}
        self._how: dict[int, How] = {}
        self._record_files: dict[int, FileEntry] = {}
        # Progress of attempts that failed, until an event takes it back.
        self._failed_progress: defaultdict[int, Counter[str]] = defaultdict(Counter)

    @classmethod
    def open(
        cls,
        config: Configuration,
        *,
        on_event: Watcher = ignore,
        plan: Plan | None = None,
        after: int = 0,
        pool: Pool | None = None,
    ) -> Self:
        """Plan a build, claim a version, and collect the units that are finished.

        Units are finished if an earlier session of this version built them, or if
        another version has them.

        Args:
            config: Configuration, dict of one, or path of a YAML file.
            on_event: Function that receives all events.
            plan: Plan that was made from `config` before; None makes it here.
            after: Number of a version; an equal version up to this number is not found,
                and the claim is above it.
            pool: Pool that will build the units; its workers are started while the plan
                is made.

        Raises:
            ConfigError, SourceError, TokenizerError: The build cannot be planned, or
                its store lies in a version of another store.
            IntegrityError: The version is committed, but not whole.
        """
        # 1. Plan. Meanwhile the workers of a pool that can prepare start.
        pipeline: PipelineConfig | None = None
        if plan is None:
            pipeline = load_config(config)
            watcher = on_event
            if isinstance(pool, EarlyPool):
                watcher = HeadStart(pool, pipeline, on_event)
            plan = planner.plan(pipeline, watcher)

        # 2. Claim a version: a new one, or an unfinished or committed one of the same
        #    fingerprint.
        store = open_store(plan.store)
        require_no_version_above(
            store.url, "save.output_dir", storage_options=plan.store.options
        )
        claim = Catalog(store).claim(plan.dataset, plan.fingerprint, {}, after=after)

        # 3. Collect the finished units.
        session = cls(plan, store, claim.version, claim.status, on_event)
        if claim.status == "committed":
            session._find_manifest()
        else:
            session._begin(pipeline)
        session._report_plan()
        return session

    def _find_manifest(self) -> None:
        """Read the manifest of a version that is committed already."""
        # A run that was killed right after its commit leaves a temporary name; a
        # read-only store keeps it.
        with contextlib.suppress(errors.StoreError):
            self._store.sweep_temp(self._layout.prefix)
        self._manifest = committed_manifest(self._catalog, self._layout)

    def _begin(self, config: PipelineConfig | None) -> None:
        """Publish the files that workers read, and collect finished units."""
        try:
            if config is not None:
                self._log.asked(Asked.of(config, self.plan.fingerprint))
            if self.status == "resumed":
                # This comes first: gc leaves alone a version that changed lately.
                self._log.resumed()
            publish_preamble(self._store, self.plan, self._layout)
            self._store.sweep_temp(self._layout.prefix)

            # Units of this version first: only the others are looked for elsewhere.
            finished = finished_records(
                self._catalog, self.plan.units, self.dataset, self.version
            )
            for record in finished:
                self._add_record(record, "resumed")
            adopted = adopted_records(
                self._catalog, self._reusable_units(), self.dataset, self.version
            )
            for record in adopted:
                self._add_record(record, "reused")
        except BaseException as error:
            if isinstance(error, errors.TokenlakeError):
                # A file that gc deleted causes many errors. The check of the claim
                # raises the one that names the cause.
                self._require_held()
            self.failed(error)
            raise

    def _reusable_units(self) -> list[PlannedUnit]:
        """Return the pending units that may be taken over from another version."""
        uncached_sources: set[str] = set()
        for source in self.plan.build.sources:
            if not source.cache_enabled:
                uncached_sources.add(source.name)
        pending_units = [self.plan.units[unit_index] for unit_index in self.pending]
        return [unit for unit in pending_units if unit.source not in uncached_sources]

    def _report_plan(self) -> None:
        """Emit the plan, then each unit that is finished already."""
        plan = self.plan
        self._emit(
            BuildPlanned(
                dataset=plan.dataset,
                version=self.version,
                units=len(plan.units),
                input_bytes=plan.input_bytes,
                pending=len(self.pending),
                source_bytes=plan.source_bytes,
            )
        )
        for unit_index, record in sorted(self._records.items()):
            unit = plan.units[unit_index]
            self._emit(
                UnitFinished(
                    unit_index, unit.source, unit.bytes, record, self._how[unit_index]
                )
            )

    @property
    def pending(self) -> list[int]:
        """Indices of the units still to build, in plan order."""
        if self.status == "committed":
            return []
        with self._lock:
            unit_indices = [unit.index for unit in self.plan.units]
            return [
                unit_index
                for unit_index in unit_indices
                if unit_index not in self._records
            ]

    @property
    def how(self) -> dict[int, How]:
        """Origin of each finished unit, by its index."""
        with self._lock:
            return dict(self._how)

    @property
    def path(self) -> str:
        """Folder of the version."""
        return f"{self._store.url}/{self._layout.prefix}"

    def announce(self, pool: Pool) -> None:
        """Prepare a pool for the units still to build."""
        pending_indices = self.pending

        def jobs() -> Iterator[Job]:
            for unit_index in pending_indices:
                unit = self.plan.units[unit_index]
                backend = self.backends.choose(unit, pool)
                yield self.plan.job(unit, self.plan.store, self._layout, backend)

        # The idle workers load the tokenizer while one runs the gate.
        pool.expect(len(pending_indices), jobs)
        text_unit = self._first_text_unit(pending_indices)
        if text_unit is not None and isinstance(pool, EarlyPool):
            pool.warm(self.plan.warm_job(text_unit, self._layout))

    def _first_text_unit(self, unit_indices: Sequence[int]) -> TextUnit | None:
        """Return the first of some units whose texts are tokenized, None for none."""
        for unit_index in unit_indices:
            unit = self.plan.units[unit_index]
            if not isinstance(unit, TextUnit):
                continue
            if self.plan.source(unit.source).tokens is None:
                return unit
        return None

    def run_unit(self, index: int, pool: Pool) -> UnitRecord:
        """Build one unit in one of the pool's workers; thread-safe and idempotent.

        If the backend turns out to differ from the reference, the unit is built again
        with the reference.

        Raises:
            WorkerDiedError, StoreError: The unit may succeed when it is tried again.
            TokenlakeError: Any other error is final for this unit.
        """
        unit = self.plan.units[index]
        # One turn for each backend: one that differs from the reference is condemned,
        # and its unit is built again.
        while True:
            backend = self._backend_of(unit, pool)
            progress = Counter[str]()
            self._emit(UnitStarted(unit.index, unit.source, unit.bytes))
            begin_time = time.monotonic()
            try:
                sealed = self._run_job(unit, backend, pool, progress)
            except errors.TokenlakeError as error:
                self._failed_progress[index].update(progress)
                self._emit(_failed_event(unit, error, progress))
                if isinstance(error, errors.EngineMismatchError):
                    self._condemn(backend, error)
                    continue
                # A file that gc deleted causes many errors. The check of the claim
                # raises the one that names the cause.
                self._require_held()
                raise
            record = UnitRecord.from_bytes(sealed, f"the record of unit {index}")
            if self._accept(
                unit, record, sealed, time.monotonic() - begin_time, progress
            ):
                return record
            self._failed_progress[index].update(progress)

    def _run_job(
        self, unit: PlannedUnit, backend: str, pool: Pool, progress: Counter[str]
    ) -> bytes:
        """Run the job of a unit and return its sealed record.

        Args:
            unit: Unit that is built.
            backend: Tokenizer backend.
            pool: Pool whose worker runs the job.
            progress: Sums of the worker's progress; updated.
        """

        def on_progress(fields: dict[str, int]) -> None:
            progress.update(fields)
            # Messages without counts only have the times of steps.
            counts = [fields.get(field_name, 0) for field_name in _COUNTED]
            if any(counts):
                self._emit(UnitProgress(unit.index, unit.source, *counts))

        job = self.plan.job(unit, self.plan.store, self._layout, backend)
        return pool.run(job, on_progress).encode()

    def _backend_of(self, unit: PlannedUnit, pool: Pool) -> str:
        """Return the backend of a unit's source.

        A worker chooses it with the files of the version.
        """
        try:
            return self.backends.choose(unit, pool)
        except errors.TokenlakeError:
            self._require_held()
            raise

    def reported(
        self, index: int, told: Mapping[str, int] = MappingProxyType({})
    ) -> Done:
        """Return the progress that events have reported of a unit.

        The progress of failed attempts is forgotten.

        Args:
            index: Index of the unit.
            told: Sums of the progress of a further attempt.
        """
        sums = self._failed_progress.pop(index, Counter[str]())
        sums.update(told)
        return sums["bytes"], sums["documents"], sums["tokens"]

    def commit(self, run: Mapping[str, str] | None = None) -> Manifest:
        """Check the whole build and make the version visible.

        Args:
            run: Facts about the run, such as the id and the URL of a flow run; they are
                stored in ``runs/``.

        Raises:
            StoreError: Units are missing.
            TooManyBadRecordsError, AccountError: The version must not exist.
            VersionConflictError: Another writer committed something else.
        """
        if self._manifest is not None:
            return self._manifest

        # 1. Every unit has a record, and there are not too many bad records.
        missing = self.pending
        if missing:
            raise errors.StoreError(
                f"{self.dataset}@v{self.version} cannot be committed: {len(missing)} of {len(self.plan.units)} units "
                f"are not built (first: {missing[0]}); run the build again to resume it"
            )
        records = [self._records[unit.index] for unit in self.plan.units]
        self._emit(Phase(f"committing {numbers.plural(len(records), 'unit')}"))
        self._budget.check()
        if self.backends.condemned:
            self._require_parts(records)

        # 2. The manifest makes the version visible.
        manifest = commit_version(
            self._store, self.plan, self._layout, records, self._record_files
        )

        # 3. The run's record, which is no part of the version.
        input_files = [file for file in self.plan.inputs if isinstance(file, InputFile)]
        self._log.finish(self.how, hub_commits(input_files), run or {})
        self.status = "committed"
        self._manifest = manifest
        self._emit(Phase(""))
        self._emit(Committed(self.dataset, self.version))
        return manifest

    def _require_parts(self, records: Sequence[UnitRecord]) -> None:
        """Require that all parts are as their records say.

        Once a unit has a record, nobody replaces its parts. Before that, a slow worker
        may have put parts that a condemned backend made in the place of those that were
        built again.
        """
        for record in records:
            for part in record.parts:
                require_digest(self._store, self._layout.key(part.path), part)

    def failed(self, error: BaseException) -> None:
        """Record why this run ends, for listings of the store.

        Only the first reason is recorded; later ones follow from it.

        Args:
            error: Error that ends the run. It was cancelled if that is no
                :class:`Exception`, as after Ctrl-C.
        """
        with self._lock:
            if self.status == "committed" or self._has_ended:
                return
            self._has_ended = True
        # The error that ends the run is more useful than one of recording it.
        is_cancelled = isinstance(error, errors.CancelledError)
        with contextlib.suppress(errors.StoreError):
            if is_cancelled or not isinstance(error, Exception):
                self._log.cancelled()
            else:
                self._log.failed(error)

    def _accept(
        self,
        unit: PlannedUnit,
        record: UnitRecord,
        sealed: bytes,
        seconds: float,
        progress: Mapping[str, int],
    ) -> bool:
        """Publish the record of a unit.

        Args:
            unit: Unit that was built.
            record: Its record.
            sealed: The record, sealed.
            seconds: Wall time of the unit.
            progress: Sums of the worker's progress.

        Returns:
            False if its backend was condemned meanwhile: the unit must be built again.
        """
        # The commit checks again. This check only ends a build early that lost its
        # version while it slept.
        if time.monotonic() - self._held_at > _SECONDS_HELD:
            self._require_held()
        # A backend is condemned under the same lock, so no record of it remains.
        with self._lock:
            if record.engine in self.backends.condemned:
                # A worker that joined by the store has filed the record already.
                remove_record(self._store, self._layout, record.unit)
                return False
            self._store.put_new(self._layout.ledger(record.unit), sealed)
            self._record_files[record.unit] = FileEntry.of(sealed)
            self._add_record(record, "built")
        # Workers report microseconds.
        step_seconds: dict[str, float] = {}
        for step_name in STEPS:
            if progress.get(step_name):
                step_seconds[step_name] = progress[step_name] / 1e6
        self._log.finished(unit.index, seconds, step_seconds)
        self._emit(
            UnitFinished(
                unit=unit.index,
                source=unit.source,
                bytes=unit.bytes,
                record=record,
                how="built",
                seconds=seconds,
                progressed=self.reported(unit.index, progress),
                step_seconds=step_seconds,
                steps=step_times(progress),
            )
        )
        self._budget.check()
        return True

    def _require_held(self) -> None:
        """Require that the claim is still this session's."""
        require_held(self._store, self._layout, self.plan.fingerprint)
        self._held_at = time.monotonic()

    def _condemn(self, backend: str, error: errors.EngineMismatchError) -> None:
        """Stop using a backend that differed from the reference.

        All units that it built are taken back.
        """
        with self._lock:
            # Several units may find the difference.
            if backend == REFERENCE or backend in self.backends.condemned:
                return
            self.backends.condemned.add(backend)
            self._log.condemned(backend, error)
            units_of_backend: list[int] = []
            for unit_index, record in self._records.items():
                if record.engine == backend:
                    units_of_backend.append(unit_index)
            undone: list[UnitFinished] = []
            for unit_index in units_of_backend:
                remove_record(self._store, self._layout, unit_index)
                unit = self.plan.units[unit_index]
                record = self._records.pop(unit_index)
                origin = self._how.pop(unit_index)
                self._record_files.pop(unit_index, None)
                self._budget.add(record, -1)
                undone.append(
                    UnitFinished(unit_index, unit.source, unit.bytes, record, origin)
                )
            self._emit(BackendDiscarded(backend, str(error), tuple(undone)))

    def _add_record(self, record: UnitRecord, how: How) -> None:
        """Add a finished unit, whose bad records are counted once."""
        if record.unit not in self._records:
            self._budget.add(record)
        self._records[record.unit] = record
        self._how[record.unit] = how


def _failed_event(
    unit: PlannedUnit, error: errors.TokenlakeError, progress: Mapping[str, int]
) -> UnitFailed:
    """Return the event of an attempt at a unit that ended with an error.

    Args:
        unit: Unit that was built.
        error: Error of the attempt.
        progress: Sums of the worker's progress in this attempt.
    """
    steps = step_times(progress)
    last_step = error.details.get("step")
    if last_step is not None:
        # The worker process is gone, and reported no times itself. The store's note of
        # another process may be damaged.
        with contextlib.suppress(msgspec.ValidationError):
            steps = (msgspec.convert(last_step, StepTime),)
    return UnitFailed(unit.index, unit.source, str(error), steps)

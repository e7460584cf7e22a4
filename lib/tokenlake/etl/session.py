"""One build, from its plan to its commit; whoever drives it decides threads, retries and order.

A session claims a version, finds out what is already done, chooses the engine of each source, runs single units through
a worker pool, and commits. It can be dropped at any moment: what is finished has a ledger record, and the next session
with the same configuration and inputs goes on from there.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, Self, final

import msgspec

from tokenlake import errors
from tokenlake.config.load import load_config
from tokenlake.etl import events, planner
from tokenlake.etl.commit import (
    adopted_records,
    commit_version,
    committed_manifest,
    finished_records,
    publish_preamble,
    remove_record,
    require_held,
)
from tokenlake.etl.head_start import HeadStart
from tokenlake.etl.job import NO_ENGINE, REFERENCE, Job
from tokenlake.etl.plan.plan import Plan, PlannedUnit, TextUnit
from tokenlake.etl.planner import Configuration, most_records
from tokenlake.etl.pool import EarlyPool, Pool
from tokenlake.etl.run_log import Asked, RunLog
from tokenlake.etl.sources.hub_repo import hub_commits
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.step_clock import STAGES, StepTime, step_times
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Store, require_digest
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import FileEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.outputs import require_no_version_above


@final
class Engines:
    """The engine of every source of one build; thread-safe.

    Args:
        layout: where the tokenizers' files are.

    Attributes:
        condemned: engines that differed from the reference once, and are used no more.
    """

    def __init__(self, plan: Plan, layout: Layout, watcher: events.Watcher) -> None:
        self._plan, self._layout, self._emit = plan, layout, watcher
        self._lock = threading.Lock()
        self._chosen: dict[str, str] = {}
        self.condemned: set[str] = set()

    def choose(self, unit: PlannedUnit, pool: Pool) -> str:
        """The engine for a unit's source; the first call for a source runs the gate in a worker."""
        if not isinstance(unit, TextUnit):
            return NO_ENGINE
        with self._lock:
            if unit.source not in self._chosen:
                verdict = pool.run(self._plan.engine_job(unit, self._layout))
                name = self._plan.tokenizers[unit.source].files.name
                self._emit(events.EngineChosen(name, verdict["engine"], verdict["reason"]))
                self._chosen[unit.source] = verdict["engine"]
            engine = self._chosen[unit.source]
            return REFERENCE if engine in self.condemned else engine


@final
class BadRecordBudget:
    """Bad records of each source so far, against all records that it has or can still have."""

    def __init__(self, plan: Plan) -> None:
        self._allowed = {
            source.name: source.max_bad_fraction
            for source in plan.build.sources
            if source.on_bad_record == "quarantine"
        }
        self._most: dict[int, int] = {}
        self._left, self._rows, self._bad = Counter[str](), Counter[str](), Counter[str]()
        for unit in plan.units:
            if isinstance(unit, TextUnit) and unit.source in self._allowed:
                self._most[unit.index] = most_records(unit.ranges)
                self._left[unit.source] += self._most[unit.index]

    def add(self, record: UnitRecord, times: int = 1) -> None:
        """Count a unit's records; with `times` -1, take them back."""
        if record.source in self._allowed:
            self._left[record.source] -= times * self._most.get(record.unit, 0)
            self._rows[record.source] += times * record.account.rows_read
            self._bad[record.source] += times * sum(record.account.quarantined.values())

    def check(self) -> None:
        """Raise TooManyBadRecordsError when what is left of a source cannot dilute its bad records enough."""
        for source, allowed in self._allowed.items():
            left, bad = self._left[source], self._bad[source]
            if bad > allowed * (rows := self._rows[source] + left):
                when = "even if every record still unread is good" if left else "of all records read"
                raise errors.TooManyBadRecordsError(
                    f"source {source!r}: {bad} bad records of {rows} are {bad / rows:.3%}, more than max_bad_fraction="
                    f"{allowed:g} allows, {when}. See the quarantine/ files for each record and its reason; fix the "
                    "input, or raise max_bad_fraction if the loss is acceptable",
                    source=source,
                    bad=bad,
                    rows=rows,
                )


def _failed(unit: PlannedUnit, error: errors.TokenlakeError, told: Mapping[str, int]) -> events.UnitFailed:
    """Return the event for a try of a unit that ended with an error.

    Args:
        told: What the worker reported of this try.
    """
    steps = step_times(told)
    last_step = error.details.get("step")
    if last_step is not None:
        # The worker process is gone, and reported no times itself. What a store says of another process is no proof.
        with contextlib.suppress(msgspec.ValidationError):
            steps = (msgspec.convert(last_step, StepTime),)
    return events.UnitFailed(unit.index, unit.source, str(error), steps)


How = Literal["built", "resumed", "reused"]

_DONE: Final = ("bytes", "documents", "tokens")
_HELD: Final = 1.0  # seconds for which a look at the claim is good


@final
class BuildSession:
    """A claimed build. Make one with :meth:`open`.

    Attributes:
        plan: what is to be done.
        dataset, version: where it goes.
        status: ``new``, ``resumed`` (an unfinished claim was found) or ``committed`` (nothing to do).
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        version: int,
        status: Literal["new", "resumed", "committed"],
        watcher: events.Watcher,
    ) -> None:
        self.plan, self.dataset, self.version = plan, plan.dataset, version
        self.status: Literal["new", "resumed", "committed"] = status
        self._store, self._catalog, self._emit = store, Catalog(store), watcher
        self._lock = threading.Lock()
        self._records: dict[int, UnitRecord] = {}
        self._how: dict[int, How] = {}
        self._filed: dict[int, FileEntry] = {}
        self._in_vain: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._layout = Layout(plan.dataset, version)
        self._log = RunLog(store, self._layout)
        self.engines = Engines(plan, self._layout, watcher)
        self._budget = BadRecordBudget(plan)
        self._manifest: Manifest | None = None
        self._held = -math.inf
        self._has_ended = False
        self.found_committed = status == "committed"

    @classmethod
    def open(
        cls,
        config: Configuration,
        *,
        on_event: events.Watcher = events.ignore,
        plan: Plan | None = None,
        after: int = 0,
        pool: Pool | None = None,
    ) -> Self:
        """Plan, claim a version, find what is finished and take over what another version already has.

        Args:
            config: a configuration, a dict of one, or the path of a YAML file.
            on_event: told of everything that happens.
            plan: a plan already made from ``config``.
            after: a version behind this one is found or claimed, also where an equal one is there before it.
            pool: Pool that will build the units; its workers are started while the plan is made.

        Raises:
            ConfigError, SourceError, TokenizerError: the build cannot be planned; or its store lies in a version of
                another store.
            IntegrityError: the version is there already, and not whole.
        """
        whole = load_config(config) if plan is None else None
        if plan is None:
            watcher = on_event
            if whole is not None and isinstance(pool, EarlyPool):
                watcher = HeadStart(pool, whole, on_event)
            plan = planner.plan(whole or config, watcher)
        store = open_store(plan.store)
        require_no_version_above(store.url, "save.output_dir", storage_options=plan.store.options)
        claim = Catalog(store).claim(plan.dataset, plan.fingerprint, {}, after=after)
        session = cls(plan, store, claim.version, claim.status, on_event)
        if claim.status != "committed":
            try:
                if whole is not None:
                    session._log.asked(Asked.of(whole, plan.fingerprint))
                session._prepare()
            except BaseException as error:
                if isinstance(error, errors.TokenlakeError):
                    session._require_held()  # files that gc deletes are missed in many ways
                session.failed(error)
                raise
        else:
            # Killed right after its commit, a run leaves a temporary name; a store that is only read keeps it.
            with contextlib.suppress(errors.StoreError):
                store.sweep_temp(session._layout.prefix)
            session._manifest = committed_manifest(session._catalog, session._layout)
        units, size = len(plan.units), plan.input_bytes
        what = (plan.dataset, claim.version, units, size, len(session.pending), plan.source_bytes)
        on_event(events.BuildPlanned(*what))
        for index, record in sorted(session._records.items()):
            unit, how = plan.units[index], session._how[index]
            on_event(events.UnitFinished(index, unit.source, unit.bytes, record, how))
        return session

    @property
    def pending(self) -> list[int]:
        """Indices of the units still to build, in plan order."""
        if self.status == "committed":
            return []
        with self._lock:
            return [unit.index for unit in self.plan.units if unit.index not in self._records]

    @property
    def how(self) -> dict[int, How]:
        """How each finished unit came to be."""
        with self._lock:
            return dict(self._how)

    @property
    def path(self) -> str:
        """The version's folder."""
        return f"{self._store.url}/{self._layout.prefix}"

    def announce(self, pool: Pool) -> None:
        """Have a pool get ready for the units still to build."""
        pending, plan = self.pending, self.plan

        def jobs() -> Iterator[Job]:
            for unit in (plan.units[index] for index in pending):
                yield plan.job(unit, plan.store, self._layout, self.engines.choose(unit, pool))

        pool.expect(len(pending), jobs)
        first = self._first_texts(pending)
        if first is not None and isinstance(pool, EarlyPool):
            pool.warm(plan.warm_job(first, self._layout))

    def _first_texts(self, pending: Sequence[int]) -> TextUnit | None:
        """Return the first of some units that is made of text; None where none is."""
        for index in pending:
            unit = self.plan.units[index]
            if isinstance(unit, TextUnit):
                return unit
        return None

    def run_unit(self, index: int, pool: Pool) -> UnitRecord:
        """Build one unit in one of the pool's workers; thread-safe, and idempotent.

        Raises:
            WorkerDiedError, StoreError: worth a retry.
            TokenlakeError: anything else is final for this unit.
        """
        unit = self.plan.units[index]
        while True:
            engine, told = self._engine_of(unit, pool), Counter[str]()

            def progress(fields: dict[str, int], told: Counter[str] = told) -> None:
                told.update(fields)
                done = [fields.get(name, 0) for name in _DONE]
                if any(done):
                    self._emit(events.UnitProgress(unit.index, unit.source, *done))

            self._emit(events.UnitStarted(unit.index, unit.source, unit.bytes))
            began = time.monotonic()
            try:
                answer = pool.run(self.plan.job(unit, self.plan.store, self._layout, engine), progress)
            except errors.EngineMismatchError as error:
                self._in_vain[index].update(told)
                self._emit(_failed(unit, error, told))
                self._condemn(engine, error)
                continue
            except errors.TokenlakeError as error:
                self._in_vain[index].update(told)
                self._emit(_failed(unit, error, told))
                self._require_held()  # files that gc deletes are missed in many ways
                raise
            sealed = answer.encode()
            record = UnitRecord.from_bytes(sealed, f"the record of unit {index}")
            if self._accept(unit, record, sealed, time.monotonic() - began, told):
                return record
            self._in_vain[index].update(told)

    def _engine_of(self, unit: PlannedUnit, pool: Pool) -> str:
        """Return the engine for a unit's source, which a worker chooses by the files of the version."""
        try:
            return self.engines.choose(unit, pool)
        except errors.TokenlakeError:
            self._require_held()
            raise

    def reported(self, index: int, told: Mapping[str, int] = MappingProxyType({})) -> events.Done:
        """Return what progress told of attempts in vain of a unit, with what it `told` of another; it is told once."""
        vain = self._in_vain.pop(index, Counter[str]())
        bytes_, documents, tokens = (vain[name] + told.get(name, 0) for name in _DONE)
        return bytes_, documents, tokens

    def commit(self, run: Mapping[str, str] | None = None) -> Manifest:
        """Judge the whole and make the version visible.

        Args:
            run: who does it, such as the id and the URL of a flow run; kept in ``runs/``.

        Raises:
            StoreError: units are missing.
            TooManyBadRecordsError, AccountError: the version must not be.
            VersionConflictError: another writer committed something else.
        """
        if self._manifest is not None:
            return self._manifest
        if missing := self.pending:
            raise errors.StoreError(
                f"{self.dataset}@v{self.version} cannot be committed: {len(missing)} of {len(self.plan.units)} units "
                f"are not built (first: {missing[0]}); run the build again to resume it"
            )
        records = [self._records[unit.index] for unit in self.plan.units]
        self._budget.check()
        if self.engines.condemned:
            # From its record on, nobody replaces what a unit has; before it, a slow worker may have put what a
            # condemned engine made in the place of what was built again.
            for part in (part for record in records for part in record.parts):
                require_digest(self._store, self._layout.key(part.path), part)
        manifest = commit_version(self._store, self.plan, self._layout, records, self._filed)
        inputs = [file for file in self.plan.inputs if isinstance(file, InputFile)]
        self._log.finish(self.how, hub_commits(inputs), run or {})
        self.status, self._manifest = "committed", manifest
        self._emit(events.Committed(self.dataset, self.version))
        return manifest

    def failed(self, error: BaseException) -> None:
        """Record why this run ends, for those who list the store; the first reason counts, later ones follow from it.

        Args:
            error: Error that ends the run. It was cancelled if that is no :class:`Exception`, as after Ctrl-C.
        """
        with self._lock:
            if self.status == "committed" or self._has_ended:
                return
            self._has_ended = True
        with contextlib.suppress(errors.StoreError):
            if isinstance(error, errors.CancelledError) or not isinstance(error, Exception):
                self._log.cancelled()
            else:
                self._log.failed(error)

    def _accept(
        self, unit: PlannedUnit, record: UnitRecord, sealed: bytes, seconds: float, told: Mapping[str, int]
    ) -> bool:
        """Publish a record, unless its engine was condemned in the meantime."""
        # The commit looks again. Here it only ends a build early that lost its version while it slept.
        if time.monotonic() - self._held > _HELD:
            self._require_held()
        with self._lock:
            if record.engine in self.engines.condemned:
                # A worker that no scheduler tells anything has filed it already.
                remove_record(self._store, self._layout, record.unit)
                return False
            self._store.put_new(self._layout.ledger(record.unit), sealed)
            self._filed[record.unit] = FileEntry.of(sealed)
            self._note(record, "built")
        steps = step_times(told)
        stages = {stage: told[stage] / 1e6 for stage in STAGES if told.get(stage)}
        self._log.finished(unit.index, seconds, stages)
        spent = seconds, self.reported(unit.index, told), stages, steps
        self._emit(events.UnitFinished(unit.index, unit.source, unit.bytes, record, "built", *spent))
        self._budget.check()
        return True

    def _require_held(self) -> None:
        require_held(self._store, self._layout, self.plan.fingerprint)
        self._held = time.monotonic()

    def _condemn(self, engine: str, error: errors.EngineMismatchError) -> None:
        """Never use an engine again that was wrong once: what it built is to be built again by the reference."""
        with self._lock:
            if engine == REFERENCE or engine in self.engines.condemned:
                return
            self.engines.condemned.add(engine)
            self._log.condemned(engine, error)
            undone: list[events.UnitFinished] = []
            for index in [index for index, record in self._records.items() if record.engine == engine]:
                remove_record(self._store, self._layout, index)
                unit, record, how = self.plan.units[index], self._records.pop(index), self._how.pop(index)
                self._budget.add(record, -1)
                self._filed.pop(index, None)
                undone.append(events.UnitFinished(index, unit.source, unit.bytes, record, how))
            self._emit(events.EngineCondemned(engine, str(error), tuple(undone)))

    def _prepare(self) -> None:
        """Publish what workers read, then collect finished and reusable units."""
        if self.status == "resumed":
            self._log.resumed()  # first of all: gc leaves alone what changed lately
        publish_preamble(self._store, self.plan, self._layout)
        self._store.sweep_temp(self._layout.prefix)
        for record in finished_records(self._catalog, self.plan.units, self.dataset, self.version):
            self._note(record, "resumed")
        anew = {source.name for source in self.plan.build.sources if not source.cache_enabled}
        units = (self.plan.units[index] for index in self.pending)
        missing = [unit for unit in units if unit.source not in anew]
        for record in adopted_records(self._catalog, missing, self.dataset, self.version):
            self._note(record, "reused")

    def _note(self, record: UnitRecord, how: How) -> None:
        if record.unit not in self._records:
            self._budget.add(record)
        self._records[record.unit], self._how[record.unit] = record, how

"""One build, from its plan to its commit; whoever drives it decides threads, retries and order.

A session claims a version, finds out what is already done, runs single units through a worker pool,
and commits. It can be dropped at any moment: what is finished has a ledger record, and the next session
with the same configuration and inputs goes on from there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeAlias, final

from tokenlake.build.commit import commit_version, publish_preamble
from tokenlake.build.engines import Engines
from tokenlake.build.events import (
    Committed,
    EngineCondemned,
    Planned,
    UnitFinished,
    UnitProgress,
    UnitStarted,
    Watcher,
    ignore,
)
from tokenlake.build.hopeless import BadRecordBudget
from tokenlake.build.job import UnitJob
from tokenlake.build.planning.plan import Plan, make_plan
from tokenlake.build.planning.units import WorkUnit
from tokenlake.build.pool import WorkerPool
from tokenlake.build.reuse import (
    adopt_record,
    finished_records,
    publish_record,
    remove_record,
    reusable_records,
)
from tokenlake.build.runlog import RunLog
from tokenlake.catalog import Catalog
from tokenlake.config import PipelineConfig, load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import EngineMismatchError, StoreError
from tokenlake.manifest import Manifest, UnitRecord
from tokenlake.sources.hub.api import hub_commits
from tokenlake.storage import Layout, Store, open_store

Configuration: TypeAlias = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]
How = Literal["built", "resumed", "reused"]


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
        watcher: Watcher,
    ) -> None:
        self.plan = plan
        self.dataset = plan.build.name
        self.version = version
        self.status: Literal["new", "resumed", "committed"] = status
        self._store = store
        self._catalog = Catalog(store)
        self._emit = watcher
        self._lock = threading.Lock()
        self._records: dict[int, UnitRecord] = {}
        self._how: dict[int, How] = {}
        self._layout = Layout(plan.build.name, version)
        self._engines = Engines(plan, store.url, self._layout, watcher)
        self._budget = BadRecordBudget(plan)
        self._log = RunLog(store, self._layout)
        self.found_committed = status == "committed"

    @classmethod
    def open(cls, config: Configuration, *, on_event: Watcher = ignore, plan: Plan | None = None) -> Self:
        """Plan, claim a version, find what is finished and take over what another version already has.

        Args:
            config: a configuration, a dict of one, or the path of a YAML file.
            on_event: told of everything that happens.
            plan: a plan already made from ``config``.

        Raises:
            ConfigError, SourceError, TokenizerError: the build cannot be planned.
        """
        plan = plan or make_plan(resolve(load_config(config)), on_event=on_event)
        store = open_store(plan.build.store)
        claim = Catalog(store).claim(plan.build.name, plan.fingerprint, {})
        session = cls(plan, store, claim.version, claim.status, on_event)
        if claim.status != "committed":
            session._prepare()
        session._announce()
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

    def run_unit(self, index: int, pool: WorkerPool) -> UnitRecord:
        """Build one unit in one of the pool's workers; thread-safe, and idempotent.

        Raises:
            WorkerDiedError, StoreError: worth a retry.
            TokenlakeError: anything else is final for this unit.
        """
        unit = self.plan.units[index]
        while True:
            engine = self._engines.choose(unit, pool)
            try:
                record, seconds, progressed = self._attempt(unit, engine, pool)
            except EngineMismatchError as error:
                self._condemn(engine, error)
                continue
            if self._accept(unit, record, seconds, progressed):
                return record

    def job(self, index: int, engine: str) -> UnitJob:
        """The self-contained description of one unit's work."""
        unit = self.plan.units[index]
        build = self.plan.build
        tokenizer = self.plan.tokenizers[unit.source]
        files = {part.file.file_id for part in unit.ranges}
        excluded = self.plan.excluded[unit.source]
        return UnitJob(
            store=self._store.url,
            dataset=self.dataset,
            version=self.version,
            unit=index,
            fingerprint=unit.fingerprint,
            source=self.plan.source(unit.source),
            ranges=unit.ranges,
            pack=build.pack,
            tokenizer=self._engines.tokenizer_prefix(unit.source),
            engine=engine,
            eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id,
            append_eos=tokenizer.append_eos,
            max_shard_size=build.max_shard_size,
            excluded={file: excluded[file] for file in files & excluded.keys()},
            bad_budget=self._budget.most_in_one_unit(unit),
            loss_mask=build.loss_mask,
            attention_mask=build.attention_mask,
            kept=build.kept,
            files=unit.files,
        )

    def commit(self) -> Manifest:
        """Judge the whole and make the version visible.

        Raises:
            StoreError: units are missing.
            TooManyBadRecordsError, AccountError: the version must not be.
            VersionConflictError: another writer committed something else.
        """
        if self.status == "committed":
            return self._catalog.manifest(self.dataset, self.version)
        missing = self.pending
        if missing:
            raise StoreError(
                f"{self.dataset}@v{self.version} cannot be committed: {len(missing)} of {len(self.plan.units)} units "
                f"are not built (first: {missing[0]}); run the build again to resume it"
            )
        records = [self._records[unit.index] for unit in self.plan.units]
        self._budget.judge()
        manifest = commit_version(self._store, self.plan, self._layout, records)
        self._log.finish(self.how, hub_commits(self.plan.inputs))
        self.status = "committed"
        self._emit(Committed(self.dataset, self.version))
        return manifest

    def _attempt(self, unit: WorkUnit, engine: str, pool: WorkerPool) -> tuple[UnitRecord, float, int]:
        started = time.monotonic()
        progressed = 0

        def progress(fields: dict[str, int]) -> None:
            nonlocal progressed
            progressed += fields["bytes"]
            self._emit(
                UnitProgress(unit.index, unit.source, fields["bytes"], fields["documents"], fields["tokens"])
            )

        self._emit(UnitStarted(unit.index, unit.source, unit.bytes))
        answer = pool.run(self.job(unit.index, engine).to_json(), progress)
        return UnitRecord.from_json(answer), time.monotonic() - started, progressed

    def _accept(self, unit: WorkUnit, record: UnitRecord, seconds: float, progressed: int) -> bool:
        """Publish a record, unless its engine was condemned in the meantime."""
        with self._lock:
            if self._engines.is_condemned(record.engine):
                return False
            publish_record(self._store, self._layout, record)
            self._records[unit.index] = record
            self._how[unit.index] = "built"
            self._budget.add(record)
        self._log.finished(unit.index, seconds)
        self._emit(UnitFinished(unit.index, unit.source, unit.bytes, record, "built", seconds, progressed))
        self._budget.require_hope()
        return True

    def _condemn(self, engine: str, error: EngineMismatchError) -> None:
        """Units of this claim that the engine built are to be built again with the reference."""
        with self._lock:
            if not self._engines.condemn(engine):
                return
            self._log.condemned(engine, error)
            for index in [i for i, record in self._records.items() if record.engine == engine]:
                remove_record(self._store, self._layout, index)
                self._budget.remove(self._records.pop(index))
                self._how.pop(index, None)
        self._emit(EngineCondemned(engine, str(error)))

    def _prepare(self) -> None:
        """Publish what workers read, then collect finished and reusable units."""
        publish_preamble(self._store, self.plan, self._layout)
        self._store.sweep_temp(self._layout.prefix)
        for record in finished_records(self._catalog, self.plan, self.version):
            self._know(record, "resumed")
        for source, record, unit in reusable_records(
            self._catalog, self.plan, self.version, set(self.pending)
        ):
            adopted = adopt_record(self._store, source, record, self._layout, unit)
            if adopted is not None:
                self._know(adopted, "reused")

    def _know(self, record: UnitRecord, how: How) -> None:
        with self._lock:
            self._records[record.unit] = record
            self._how[record.unit] = how
            self._budget.add(record)

    def _announce(self) -> None:
        pending = self.pending
        self._emit(
            Planned(
                dataset=self.dataset,
                version=self.version,
                units=len(self.plan.units),
                input_bytes=self.plan.input_bytes,
                pending=len(pending),
                source_bytes=self.plan.source_bytes,
            )
        )
        for index, record in sorted(self._records.items()):
            unit = self.plan.units[index]
            self._emit(UnitFinished(index, unit.source, unit.bytes, record, self._how[index]))

"""The builds of one configuration on this machine, and their worker processes.

The orchestrator of a run brings threads, retries and records. Each thread borrows a
worker process from our own pool, which survives the death of its workers.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextlib import ExitStack, nullcontext, suppress
from contextvars import copy_context
from dataclasses import astuple, replace
from types import TracebackType
from typing import Final, Self, final

from tokenlake.base.secrets import provide_blocks
from tokenlake.base.section import referenced_blocks
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import CancelledError, TokenlakeError
from tokenlake.etl.events import (
    Event,
    Phase,
    Planning,
    UnitFailed,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    Watcher,
    ignore,
)
from tokenlake.etl.executors import ExecutorName, open_pool
from tokenlake.etl.export.plan import make_exports
from tokenlake.etl.observability import DisplayOptions, measured
from tokenlake.etl.observability.tally import RunTallies, source_name
from tokenlake.etl.pool import Pool, worth_a_retry
from tokenlake.etl.reports.dataset import planning_line
from tokenlake.etl.runner import BuildResult, BuildSteps, result_of
from tokenlake.etl.session import BuildSession
from tokenlake.etl.step_clock import StepTime
from tokenlake.runs.groups import (
    MAX_GROUPS,
    MAX_TASK_RUNS,
    MOST_STEPS,
    group_name,
    group_units,
)
from tokenlake.runs.progress_log import Log, ProgressLog
from tokenlake.runs.step_runs import StepRun, UnitTry, step_runs
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.ledger import UnitRecord

RETRY_SECONDS: Final = (0.5, 2.0)
"""Seconds before the second and the third try. They are short, because a cancelled
run waits for them.
"""

# Seconds between two lines about the plan, after the first.
_PLAN_LINE_EVERY: Final = 5.0

_CANCELLED: Final = "the run was cancelled; finished units are kept, and the same command resumes the run"


@final
class BuildRun:
    """The builds of one configuration on this machine.

    The first build starts with the object, in the background.

    Where text is mixed, the tokens of each source are built first, each by a run of
    its own on the same workers (:meth:`parts`). Everything else is about the last
    build: the mixture, or the only one.

    Args:
        config: Configuration of all builds.
        workers: Number of worker processes; None for one per core that this process may
            use.
        on_event: Function that gets every event, from several threads.
        pool: Shared workers that outlive the run; None for workers of its own.
        executor: Place where units run; None for this machine.

    Attributes:
        pool: Workers that build the units.
        blocks: Names of the secret blocks that the last build refers to;
            :meth:`provide` takes their values.
        tallies: Figures of the builds so far.
        is_part: True for the build of one source, for another run.

    Raises:
        ConfigError: Any build is wrong, the last one too: this must be known before
            hours of work.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        workers: int | None = None,
        on_event: Watcher = ignore,
        pool: Pool | None = None,
        executor: ExecutorName | None = None,
    ) -> None:
        self.config = config
        self._steps = BuildSteps(config, self._on_event)
        # Every build is checked before the first one starts, because the last one comes
        # after hours of work.
        self._steps.check()
        self._configs = iter(self._steps)
        self._began = time.monotonic()
        self._watching = ExitStack()
        # The figures of the whole run are measured, not those of a part of it.
        watcher = nullcontext(on_event)
        if pool is None:
            watcher = measured(config.observability, on_event)
        self._watcher = self._watching.enter_context(watcher)
        self.tallies = RunTallies()
        # State of the last build, which several threads change.
        self._cancelled = False
        self._planning: Planning | None = None
        self._progress: dict[int, ProgressLog] = {}
        self._failed: dict[int, TokenlakeError] = {}
        self._records: dict[int, UnitRecord] = {}
        self._built: dict[int, UnitFinished] = {}
        # Tries that are not shown yet.
        self._tries: defaultdict[int, list[UnitTry]] = defaultdict(list)
        self._tries_of: Counter[int] = Counter()
        self._task_runs_left = MAX_TASK_RUNS
        self._result: BuildResult | None = None
        self._lock = threading.Lock()
        self.pool: Pool = pool or open_pool(executor, workers, config.ray)
        self.workers = self.pool.workers
        # One more than there are workers, so that no worker waits for a record to be
        # published.
        self._threads = ThreadPoolExecutor(
            self.workers + 1, thread_name_prefix="tokenlake-unit"
        )
        self.is_part = pool is not None
        self._opening: Future[BuildSession] = Future()
        # Set as soon as it is open, even if nobody waits for it.
        self._session: BuildSession | None = None
        self.blocks: tuple[str, ...] = ()
        self._provided = threading.Event()
        self._part: BuildRun | None = None
        self._open_next()

    def parts(self) -> Iterator[BuildRun]:
        """Yield a run for each source that is text still.

        Each must have committed before the next is requested.

        Raises:
            CancelledError: :meth:`cancel` was called.
        """
        while (part := self._part) is not None:
            yield part
            self._steps.done(part.result())
            self._open_next()

    def _open_next(self) -> None:
        """Start the next build.

        It is that of one source's tokens, by a run of its own, or the last one.
        """
        config = next(self._configs)
        is_last = self._steps.is_last
        # Under the lock, so that a cancellation meets either the old part or the new
        # one.
        with self._lock:
            self.raise_if_cancelled()
            self._part = None
            if not is_last:
                self._part = BuildRun(config, on_event=self._on_event, pool=self.pool)
        if is_last:
            self._open(config)

    def provide(self, blocks: Mapping[str, str]) -> None:
        """Hand over the values of :attr:`blocks`; planning waits for them."""
        provide_blocks(blocks)
        self._provided.set()

    @property
    def display(self) -> DisplayOptions:
        """Options of the configuration about the display of the run."""
        return DisplayOptions.of(self.config.observability)

    def session(self) -> BuildSession:
        """Return the planned and claimed build, once it is ready.

        Raises:
            TokenlakeError: The error of planning.
            CancelledError: The run was cancelled.
        """
        return self._opening.result()

    def planned(self, log: Log) -> BuildSession:
        """Return the planned build of :meth:`session`, and log how a long plan goes."""
        wait_seconds = 1.0  # time until the next line
        while not self._opening.done():
            with suppress(TimeoutError):
                self._opening.exception(wait_seconds)
            if self._planning is not None and not self._opening.done():
                log(f"planning: {planning_line(*astuple(self._planning))}")
                wait_seconds = _PLAN_LINE_EVERY
        return self.session()

    def groups(self) -> list[tuple[int, ...]]:
        """Return the pending units, in order, in groups of neighbours.

        There are at most :data:`MAX_GROUPS`, which a run can show, and fewer where a
        tokenizer was found wrong and units are built again.
        """
        pending = self.session().pending
        with self._lock:
            groups_left = self._task_runs_left // (1 + MOST_STEPS)
            group_limit = max(1, min(MAX_GROUPS, groups_left))
            groups = group_units(pending, group_limit)
            self._task_runs_left -= len(groups)
        return groups

    def groups_at_once(self, groups: Sequence[Sequence[int]]) -> int:
        """Return the number of groups to have under way, so that no worker waits."""
        # As many groups as have units for all workers, and one more, whose units are
        # next.
        return 1 + math.ceil(self.workers / max(1, len(groups[-1])))

    def step_runs(self, units: Sequence[int]) -> list[StepRun]:
        """Return the steps of a group of units that are not shown yet.

        They are as many as the run has room for.
        """
        with self._lock:
            tries: list[UnitTry] = []
            for unit in units:
                tries.extend(self._tries.pop(unit, []))
            shown_steps = step_runs(units, tries)[: max(0, self._task_runs_left)]
            self._task_runs_left -= len(shown_steps)
        return shown_steps

    def sources_of(self, units: Sequence[int]) -> list[str]:
        """Return the sources of units, each once, in the order of the units."""
        planned = self.session().plan.units
        # The names become tags of task runs, which have no spaces.
        sources: dict[str, None] = {}
        for unit in units:
            sources[source_name(planned[unit].source).replace(" ", "-")] = None
        return list(sources)

    def build(self, units: Sequence[int], log: Log) -> dict[str, int | float]:
        """Build some units, as many at a time as there are workers.

        Units that an earlier try finished are kept.

        Args:
            units: Indices of units.
            log: Function that gets a line at the end, and more meanwhile if it takes
                long.

        Returns:
            ``units, documents, tokens, text_bytes`` and ``seconds`` of this call, and
            ``load_seconds``, ``tokenize_seconds``, ``mix_seconds``, ``pack_seconds``
            and ``save_seconds`` of the units that it built.

        Raises:
            WorkerDiedError: A worker died; another try may succeed.
            CancelledError: :meth:`cancel` was called.
            TokenlakeError: The error of a unit.
        """
        self.begin("")
        start_time = time.monotonic()
        planned = self.session().plan.units
        input_bytes = sum(planned[unit].bytes for unit in units)
        progress = ProgressLog(group_name(units), input_bytes, log, self.display.form)
        # Units that an earlier try finished count in the totals, but are not built
        # again.
        pending = set(self.session().pending)
        units_to_build: list[int] = []
        for unit in units:
            if unit in pending:
                units_to_build.append(unit)
        self._build_units(units_to_build, progress)
        total_account = Account.total(self._records[unit].account for unit in units)
        step_seconds: Counter[str] = Counter()
        for event in self.built():
            if event.unit in units:
                step_seconds.update(event.step_seconds)
        progress.done(total_account.documents, total_account.tokens, step_seconds)
        figures: dict[str, int | float] = {
            "units": len(units),
            "documents": total_account.documents,
            "tokens": total_account.tokens,
            "text_bytes": total_account.text_bytes,
            "seconds": round(time.monotonic() - start_time, 3),
        }
        for step_name, seconds in step_seconds.items():
            figures[f"{step_name}_seconds"] = round(seconds, 3)
        return figures

    def commit(self, run: Mapping[str, str] | None = None) -> BuildResult:
        """Commit the version, unless it is committed already.

        Args:
            run: Facts about the run, which are kept beside the version.
        """
        self.begin("")
        # A version that exists already has its manifest, which is returned.
        manifest = self.session().commit(run or {})
        result = result_of(self.session(), manifest, time.monotonic() - self._began)
        self._result = self._steps.done(result)
        return self._result

    def export(self) -> BuildResult:
        """Make the exports of the configuration, unless they exist already."""
        self.begin("writing the exports")
        self._result = replace(
            self.result(), exports=make_exports(self.config, self.result().manifest)
        )
        return self._result

    def begin(self, phase: str) -> None:
        """Report a phase of the flow run, for the display of the run.

        Args:
            phase: Work that begins, ``writing the report``; empty where the build is at
                work again.
        """
        self._on_event(Phase(phase, "flow"))

    def result(self) -> BuildResult:
        """Return the result of :meth:`commit`, or of :meth:`export` after it."""
        assert self._result is not None, "not committed yet"
        return self._result

    def built(self) -> list[UnitFinished]:
        """Return the units that this run itself built, in order."""
        with self._lock:
            return [self._built[unit] for unit in sorted(self._built)]

    def cancel(self) -> None:
        """Kill the workers at once; all waiting calls raise CancelledError.

        Finished units are kept.
        """
        with self._lock:
            self._cancelled = True
            source_run = self._part
        if source_run is not None:
            source_run.cancel()
        # Planning may wait for secrets, and others for planning: both are woken.
        self._provided.set()
        with suppress(InvalidStateError):
            self._opening.set_exception(CancelledError(_CANCELLED))
        self.pool.cancel()
        if self._session is not None:
            # Written now: a second Ctrl-C ends the process before anything else could
            # write it.
            self._session.failed(CancelledError(_CANCELLED))

    def raise_if_cancelled(self) -> None:
        """Raise CancelledError after :meth:`cancel`."""
        if self._cancelled:
            raise CancelledError(_CANCELLED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            if self._session is not None:
                # After a cancellation, any other error is its consequence.
                reason = CancelledError(_CANCELLED) if self._cancelled else error
                self._session.failed(reason)
            self.cancel()
        # Cancelled, or all done: a thread that still waits for a worker ends with its
        # pool.
        self._threads.shutdown(wait=False, cancel_futures=True)
        if not self.is_part:
            self.pool.close()
        self._watching.close()

    def _open(self, config: PipelineConfig) -> None:
        """Plan and claim the last build, in the background."""
        self.blocks = tuple(referenced_blocks([config.datasets, config.save]))
        if not self.blocks:
            self._provided.set()
        # A daemon: hashing terabytes must not keep a cancelled run alive.
        threading.Thread(
            target=self._plan, args=(config,), name="plan", daemon=True
        ).start()

    def _plan(self, config: PipelineConfig) -> None:
        """Plan and claim a build, in a thread of its own.

        The waiting threads get the session, or the error.
        """
        # The future may have been cancelled meanwhile: then nobody waits any more.
        with suppress(InvalidStateError):
            try:
                self._provided.wait()
                session = BuildSession.open(config, on_event=self._tell, pool=self.pool)
            except BaseException as error:  # callers of `session` get it
                self._opening.set_exception(error)
                return
            self._session = session
            # Cancelled while it was planned: the claim is recorded as cancelled, and
            # nobody waits for the session any more.
            if self._cancelled:
                session.failed(CancelledError(_CANCELLED))
                return
            session.announce(self.pool)
            self._opening.set_result(session)

    def _build_units(self, units: Sequence[int], progress: ProgressLog) -> None:
        """Build units, as many at a time as there are workers.

        A single unit is tried once; the caller tries it again. A unit among others is
        tried again here: one worker that dies must not stop its neighbours, or use up
        the tries of the group.
        """
        if len(units) == 1:
            self._build_unit(units[0], progress)
            return
        # The context of the caller has the log of the run.
        builds: list[Future[None]] = []
        for unit in units:
            context = copy_context()
            build = self._threads.submit(
                context.run, self._build_with_retries, unit, progress
            )
            builds.append(build)
        try:
            for build in as_completed(builds):
                build.result()
        except BaseException as error:
            # One error ends the group: units that have not begun are not begun.
            for build in builds:
                build.cancel()
            if worth_a_retry(error):
                # The next try begins when nothing of this one is under way any more.
                wait(builds)
            raise

    def _build_with_retries(self, unit: int, progress: ProgressLog) -> None:
        """Build a unit; after an error that may pass, try again after a pause."""
        for pause_seconds in RETRY_SECONDS:
            try:
                self._build_unit(unit, progress)
                return
            except TokenlakeError as error:
                if not worth_a_retry(error):
                    raise
            time.sleep(pause_seconds)
        self._build_unit(unit, progress)

    def _build_unit(self, unit: int, progress: ProgressLog) -> None:
        """Build a unit once, and report that it is a retry if an earlier try failed."""
        session = self.session()
        if unit in self._failed:
            error = str(self._failed.pop(unit))
            source = session.plan.units[unit].source
            self._tell(UnitRetried(unit, source, error, session.reported(unit)))
        self._progress[unit] = progress
        try:
            self._records[unit] = session.run_unit(unit, self.pool)
        # An error that may pass is reported as a retry when the unit is tried again.
        except TokenlakeError as error:
            if worth_a_retry(error):
                self._failed[unit] = error
            raise
        finally:
            del self._progress[unit]

    def _tell(self, event: Event) -> None:
        """Note an event of the last build, and pass it on."""
        # Only events of the last build get here: those of a source go to its own
        # run.
        if isinstance(event, UnitProgress):
            progress = self._progress.get(event.unit)
            if progress is not None:
                progress.add(event)
        elif isinstance(event, Planning):
            self._planning = event
        elif isinstance(event, UnitFinished) and event.how == "built":
            with self._lock:
                self._built[event.unit] = event
            self._note_try(event.unit, event.steps, None)
        elif isinstance(event, UnitFailed):
            self._note_try(event.unit, event.steps, event.error)
        self._on_event(event)

    def _note_try(
        self, unit: int, steps: tuple[StepTime, ...], error: str | None
    ) -> None:
        """Keep a try of a unit until its steps are shown."""
        with self._lock:
            self._tries_of[unit] += 1
            self._tries[unit].append(UnitTry(unit, self._tries_of[unit], steps, error))

    def _on_event(self, event: Event) -> None:
        """Count an event of any build, and pass it to the watcher."""
        self.tallies.add(event)
        self._watcher(event)

"""The library's own runner: a build in one call, without an orchestrator."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from tokenlake import errors
from tokenlake.base import numbers
from tokenlake.base.markup import named_facts, one_line
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, last_step
from tokenlake.etl import planner
from tokenlake.etl.after_commit import check_hooks, run_hooks
from tokenlake.etl.engines import EngineName, open_pool
from tokenlake.etl.events import BuildStep, Event, UnitRetried, Watcher, ignore
from tokenlake.etl.planner import Configuration
from tokenlake.etl.pool import Pool, run_threads, worth_a_retry
from tokenlake.etl.same_tokens import under_their_name
from tokenlake.etl.session import BuildSession
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build did.

    Attributes:
        dataset, version, path: the committed version and its folder.
        status: ``built``, ``resumed`` (some units had been finished before) or ``exists`` (nothing to do).
        manifest: the committed manifest.
        units_built, units_resumed, units_reused: how the units came to be.
        seconds: wall time.
        notes: splits that were not read or mixed, and entries of `exclude` that matched no document.
        exports: paths and URLs of what the configuration asked for beside the version.
    """

    dataset: str
    version: int
    path: str
    status: Literal["built", "resumed", "exists"]
    manifest: Manifest
    units_built: int
    units_resumed: int
    units_reused: int
    seconds: float
    notes: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()

    def __repr__(self) -> str:
        units = self.units_built + self.units_resumed + self.units_reused
        told = f"{self.status}, {numbers.plural(units, 'unit')}, {self.seconds:.1f} s"
        return f"BuildResult({one_line(f'{self.dataset}@v{self.version}')}: {told})"

    def _repr_html_(self) -> str:
        totals = self.manifest.totals
        facts = {
            "status": self.status,
            "path": self.path,
            "rows": totals.rows,
            "tokens": totals.tokens,
            "shards": totals.files,
            "units built": self.units_built,
            "units resumed": self.units_resumed,
            "units reused": self.units_reused,
            "seconds": f"{self.seconds:.1f}",
            "exports": ", ".join(self.exports),
        }
        notes = [(note,) for note in self.notes]
        return named_facts(f"Build of {self.dataset}@v{self.version}", facts, ("note",), notes)


def build_dataset(
    config: Configuration,
    *,
    workers: int | None = None,
    on_event: Watcher = ignore,
    retries: int = 2,
    pool: Pool | None = None,
    engine: EngineName | None = None,
) -> BuildResult:
    """Build a dataset version, and first the tokens of each source where text is to be mixed.

    Args:
        config: a configuration, a mapping of one, or the path of a YAML file.
        workers: Number of worker processes; default: one for each processor that this process may use, as far as the
            memory goes, or as the engine has it.
        on_event: told of everything that happens, from several threads.
        retries: how often a unit is tried again after an error worth a retry.
        pool: running workers to use instead of `workers` new ones; it stays open.
        engine: where units run, one of :data:`tokenlake.etl.engines.ENGINES`; default: on this machine.

    Returns:
        The committed version; when an equal one existed, that one.

    Raises:
        TokenlakeError: see :mod:`tokenlake.errors`; finished units stay and a rerun resumes.
    """
    steps = BuildSteps(whole := load_config(config), on_event)
    steps.check()
    with nullcontext(pool) if pool else open_pool(engine, workers, whole.ray) as units_on:
        built = steps.run(lambda step: _build(step, units_on, on_event, retries))
    return replace(built, exports=run_hooks(whole, built.manifest))


def finished_build(config: Configuration, on_event: Watcher = ignore) -> BuildResult | None:
    """Return what :func:`build_dataset` would find finished; None where there is something to do, or to complain about.

    Exports are something to do: whether they are there is found by making them.

    Args:
        on_event: told of everything that happened, once it is known that all is there.
    """
    events: list[Event] = []
    with suppress(errors.TokenlakeError):
        whole = load_config(config)
        if whole.has_exports:
            return None
        found = BuildSteps(whole, events.append).run(lambda step: _finished(step, events.append))
        for event in events:
            on_event(event)
        return found
    return None


def _finished(step: PipelineConfig, on_event: Watcher) -> BuildResult:
    """Return the result of a build that is committed; an error where there is something to do."""
    begin, plan = time.monotonic(), planner.plan(step, on_event)
    if Catalog(open_store(plan.store)).committed(plan.dataset, plan.fingerprint) is None:
        raise errors.NotFoundError(
            f"{plan.dataset}: its inputs or its tokenizer changed", dataset=plan.dataset
        )
    session = BuildSession.open(step, on_event=on_event, plan=plan)
    return result_of(session, session.commit(), time.monotonic() - begin)


@final
class BuildSteps:
    """The builds of one configuration, in order: the tokens of each source that is text still, then the whole.

    Iterate to get the configuration of each; say :meth:`done` before asking for the next.

    Args:
        on_event: told which of several builds begins.

    Attributes:
        is_last: whether all builds but the last are done.
    """

    def __init__(self, whole: PipelineConfig, on_event: Watcher = ignore) -> None:
        self._whole, self._on_event = whole, on_event
        self._first = first_steps(whole)
        self._results: list[BuildResult] = []

    def check(self) -> None:
        """Raise ConfigError for what is wrong with the last build or the exports; before them, tokens take hours."""
        if self._first:
            from tokenlake.etl.plan.stored import foresee

            foresee(self._whole)
        check_hooks(self._whole)

    @property
    def is_last(self) -> bool:
        return len(self._results) >= len(self._first)

    def __iter__(self) -> Iterator[PipelineConfig]:
        of = len(self._first) + 1
        for number, (source, step) in enumerate(self._first.items(), 1):
            self._on_event(BuildStep(number, of, f"tokens of {source}"))
            yield under_their_name(step, source)
        if self._first:
            self._on_event(BuildStep(of, of, "the mixture" if self._whole.mixes else "packed rows"))
        stored = (f"{result.dataset}@v{result.version}" for result in self._results)
        yield last_step(self._whole, dict(zip(self._first, stored, strict=True)))

    def run(self, build: Callable[[PipelineConfig], BuildResult]) -> BuildResult:
        """Have each built in turn; return the last result."""
        *_, last = (self.done(build(step)) for step in self)
        return last

    def done(self, result: BuildResult) -> BuildResult:
        """Take the result of the build that was last asked for; return it with the notes of those before it, too.

        Builds of one configuration may repeat a note, which is kept once.
        """
        self._results.append(result)
        notes = dict.fromkeys(note for each in self._results for note in each.notes)
        return replace(result, notes=tuple(notes))


def _build(config: PipelineConfig, pool: Pool, on_event: Watcher, retries: int) -> BuildResult:
    begin = time.monotonic()
    session = BuildSession.open(config, on_event=on_event, pool=pool)
    try:
        run_pending(session, pool, on_event=on_event, retries=retries)
        manifest = session.commit()
    except BaseException as error:
        session.failed(error)
        raise
    return result_of(session, manifest, time.monotonic() - begin)


_LARGE: Final = 3.0  # times the mean: larger units come first
_PAUSE: Final = 0.2  # seconds before a unit is tried again, twice as many each time
_LONGEST: Final = 5.0


@final
class Schedule:
    """The units of a build that are still to be built: which a free worker takes next; thread-safe.

    No clock and no I/O: :mod:`benchmarks.schedule` asks it with a cluster of thousands that is only imagined. A free
    worker takes the next unit, whoever built the one before. So all are busy until the units run out, and then idle for
    no longer than the longest of the last units takes. Hence those that are much larger than the others, such as a file
    that cannot be split, come first.

    Args:
        sizes: unit to input bytes, in plan order.
        retries: how often a unit is tried again.
    """

    def __init__(self, sizes: Mapping[int, int], retries: int) -> None:
        limit = _LARGE * sum(sizes.values()) / max(1, len(sizes))
        large = sorted((unit for unit in sizes if sizes[unit] > limit), key=lambda unit: -sizes[unit])
        self._fresh = deque(dict.fromkeys([*large, *sizes]))
        self._again: list[tuple[float, int]] = []
        self._failures = Counter[int]()
        self._retries = retries
        self._lock = threading.Lock()

    def take(self, now: float) -> tuple[int, float] | None:
        """Return a unit, and the seconds after which to begin it; None where none is left.

        Whoever has one and fails says so before taking another, so that none is lost when the others find none left.

        Args:
            now: seconds, on any clock that goes on evenly.
        """
        with self._lock:
            if self._again and (not self._fresh or self._again[0][0] <= now):
                when, unit = heapq.heappop(self._again)
                return unit, max(0.0, when - now)
            return (self._fresh.popleft(), 0.0) if self._fresh else None

    def failed(self, unit: int, now: float) -> bool:
        """Have a unit tried again after a pause; False where it was tried often enough."""
        with self._lock:
            self._failures[unit] += 1
            if (times := self._failures[unit]) > self._retries:
                return False
            heapq.heappush(self._again, (now + min(_PAUSE * 2 ** (times - 1), _LONGEST), unit))
            return True


def run_pending(session: BuildSession, pool: Pool, *, on_event: Watcher = ignore, retries: int = 2) -> None:
    """Run a session's pending units until none is left; the first error that retries do not cure ends it.

    A condemned engine makes finished units pending again, hence the loop.
    """
    units = session.plan.units

    def tell(index: int, error: errors.TokenlakeError) -> None:
        on_event(UnitRetried(index, units[index].source, str(error), session.reported(index)))

    while pending := session.pending:
        session.announce(pool)
        sizes = {index: units[index].bytes for index in pending}
        run_each(sizes, lambda index: session.run_unit(index, pool), pool, retries, tell)


def run_each(
    sizes: Mapping[int, int],
    run: Callable[[int], object],
    pool: Pool,
    retries: int,
    on_retry: Callable[[int, errors.TokenlakeError], object] = lambda unit, error: None,
) -> None:
    """Run units in as many threads as a pool has workers; the first error that retries do not cure cancels the pool.

    Args:
        sizes: unit to input bytes, in plan order.
        run: blocks until a unit is done.
        on_retry: told of a unit that will be tried again, and why.
    """
    schedule, failed = Schedule(sizes, retries), threading.Event()

    def work() -> None:
        while (taken := schedule.take(time.monotonic())) is not None:
            unit, pause = taken
            if failed.wait(pause):
                return
            try:
                run(unit)
            except errors.TokenlakeError as error:
                if not worth_a_retry(error) or not schedule.failed(unit, time.monotonic()):
                    raise
                on_retry(unit, error)

    run_threads(work, pool, min(pool.workers, len(sizes)), failed)


def result_of(session: BuildSession, manifest: Manifest, seconds: float) -> BuildResult:
    """Sum up a committed session."""
    how = list(session.how.values())
    resumed = how.count("resumed")
    return BuildResult(
        dataset=session.dataset,
        version=session.version,
        path=session.path,
        status="exists" if session.found_committed else "resumed" if resumed else "built",
        manifest=manifest,
        units_built=how.count("built"),
        units_resumed=resumed,
        units_reused=how.count("reused"),
        seconds=seconds,
        notes=(*session.plan.build.notes, *session.plan.left_out, *session.plan.missed(manifest.accounts)),
    )

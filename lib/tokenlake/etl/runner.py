"""The library's own runner: a build in one call, without an orchestrator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Literal, final

from tokenlake import errors
from tokenlake.base import numbers
from tokenlake.base.markup import named_facts, one_line
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, last_step
from tokenlake.etl import planner
from tokenlake.etl.after_commit import check_hooks, run_hooks
from tokenlake.etl.events import BuildStep, Event, Phase, UnitRetried, Watcher, ignore
from tokenlake.etl.executors import ExecutorName, open_pool
from tokenlake.etl.planner import Configuration
from tokenlake.etl.pool import Pool, run_threads, worth_a_retry
from tokenlake.etl.same_tokens import under_their_name
from tokenlake.etl.schedule import Schedule
from tokenlake.etl.session import BuildSession
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Result of a build.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the committed version.
        path: Folder of the version.
        status: ``built``, ``resumed`` (some units had been finished before) or
            ``exists`` (nothing was left to do).
        manifest: Committed manifest.
        units_built: Number of units that this build built.
        units_resumed: Number of units that an earlier run of this version had finished.
        units_reused: Number of units that were taken over from another version.
        seconds: Wall time of the build.
        notes: Notes on splits that were not read or mixed, and on entries of `exclude`
            that matched no document.
        exports: Paths and URLs of the exports that the configuration asks for.

    Example:
        >>> import tokenlake as tl
        >>> config = {
        ...     "name": "books",
        ...     "datasets": [{"name": "books", "data_files": "data/books/*.jsonl"}],
        ...     "default_tokenizer": "openai-community/gpt2",
        ...     "pack": {"enabled": True, "seq_length": 64},
        ...     "save": {"output_dir": "new"},
        ... }
        >>> result = tl.build_dataset(config, workers=1)
        >>> result.status, result.version, result.manifest.totals.documents
        ('built', 1, 120)
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
        version_name = one_line(f"{self.dataset}@v{self.version}")
        return f"BuildResult({version_name}: {self.status}, {numbers.plural(units, 'unit')}, {self.seconds:.1f} s)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        totals = self.manifest.totals
        fields = {
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
        note_rows = [(note,) for note in self.notes]
        return named_facts(
            f"Build of {self.dataset}@v{self.version}", fields, ("note",), note_rows
        )


def build_dataset(
    config: Configuration,
    *,
    workers: int | None = None,
    on_event: Watcher = ignore,
    retries: int = 2,
    pool: Pool | None = None,
    executor: ExecutorName | None = None,
) -> BuildResult:
    """Build a dataset version.

    A configuration that mixes text is several builds, first one for the tokens of each
    source.

    Args:
        config: Configuration, mapping of one, or path of a YAML file.
        workers: Number of worker processes. By default one for each processor that this
            process may use, as far as the memory goes, or as many as the executor has.
        on_event: Function that receives all events, from several threads.
        retries: Number of times that a unit is tried again after an error that may
            pass.
        pool: Running workers to use instead of `workers` new ones; it stays open.
        executor: Place where units run: ``local``, ``store``, ``ray`` or ``dask``. By
            default processes of this machine, or Ray if the configuration enables it.

    Returns:
        The committed version; where an equal one existed, that one.

    Raises:
        TokenlakeError: See :mod:`tokenlake.errors`; finished units stay and a rerun
            resumes.
    """
    # 1. Errors of the last build or of the exports come before hours of tokenizing.
    pipeline = load_config(config)
    steps = BuildSteps(pipeline, on_event)
    steps.check()

    # 2. The builds, all with the same workers. A pool of the caller stays open.
    with ExitStack() as stack:
        if pool:
            open_workers = pool
        else:
            new_pool = open_pool(executor, workers, pipeline.ray)
            open_workers = stack.enter_context(new_pool)
        result = steps.run(lambda step: _build(step, open_workers, on_event, retries))

    # 3. The exports.
    if pipeline.has_exports:
        on_event(Phase("writing the exports"))
    return replace(result, exports=run_hooks(pipeline, result.manifest))


def finished_build(
    config: Configuration, on_event: Watcher = ignore
) -> BuildResult | None:
    """Return the result of :func:`build_dataset` where everything is built already.

    Args:
        config: Configuration, mapping of one, or path of a YAML file.
        on_event: Function that receives all events, once it is known that everything is
            built.

    Returns:
        The result; None where something is left to do, or wrong. Exports count as left
        to do: only making them shows whether they exist.
    """
    # Events wait until the result is known: the caller builds otherwise, with events of
    # its own.
    events: list[Event] = []
    with suppress(errors.TokenlakeError):
        pipeline = load_config(config)
        if pipeline.has_exports:
            return None
        steps = BuildSteps(pipeline, events.append)
        result = steps.run(lambda step: _finished(step, events.append))
        for event in events:
            on_event(event)
        return result
    return None


def _finished(step: PipelineConfig, on_event: Watcher) -> BuildResult:
    """Return the result of a build that is committed.

    Raises:
        NotFoundError: It is not committed.
    """
    begin_time = time.monotonic()
    plan = planner.plan(step, on_event)
    catalog = Catalog(open_store(plan.store))
    # A session would claim a version that is not there.
    if catalog.committed(plan.dataset, plan.fingerprint) is None:
        raise errors.NotFoundError(
            f"{plan.dataset}: its inputs or its tokenizer changed", dataset=plan.dataset
        )
    session = BuildSession.open(step, on_event=on_event, plan=plan)
    return result_of(session, session.commit(), time.monotonic() - begin_time)


@final
class BuildSteps:
    """Builds of one configuration, in order.

    They are the tokens of each source of text, then the mixture or packed rows. A
    configuration of a single build has only that one. Iterate over the configurations
    of the builds, and pass the result of each to :meth:`done` before the next.

    Args:
        whole: Configuration of all builds.
        on_event: Function that receives an event at the beginning of each of several
            builds.
    """

    def __init__(self, whole: PipelineConfig, on_event: Watcher = ignore) -> None:
        self._config = whole
        self._on_event = on_event
        # Builds of the tokens of a source, by its name; empty for a configuration of a
        # single build.
        self._token_builds = first_steps(whole)
        self._results: list[BuildResult] = []

    def check(self) -> None:
        """Raise ConfigError for an error in the last build or the exports.

        It would otherwise come after hours of tokenizing.
        """
        if self._token_builds:
            # A build of texts is checked without importing all that mixes.
            from tokenlake.etl.plan.stored import foresee

            foresee(self._config)
        check_hooks(self._config)

    @property
    def is_last(self) -> bool:
        """Whether all builds are done except the last one."""
        return len(self._results) >= len(self._token_builds)

    def __iter__(self) -> Iterator[PipelineConfig]:
        step_count = len(self._token_builds) + 1
        # 1. The tokens of each source, under a name that has them already if possible.
        for number, (source, step) in enumerate(self._token_builds.items(), 1):
            self._on_event(BuildStep(number, step_count, f"tokens of {source}"))
            yield under_their_name(step, source)

        # 2. The last build, which reads the versions of the builds before.
        if self._token_builds:
            description = "packed rows"
            if self._config.mixes:
                description = "the mixture"
            self._on_event(BuildStep(step_count, step_count, description))
        references: dict[str, str] = {}
        for source, result in zip(self._token_builds, self._results, strict=True):
            references[source] = f"{result.dataset}@v{result.version}"
        yield last_step(self._config, references)

    def run(self, build: Callable[[PipelineConfig], BuildResult]) -> BuildResult:
        """Run all builds in turn, and return the last result.

        Args:
            build: Function that runs the build of a configuration.
        """
        # The configuration of a step needs the results of those before.
        steps = iter(self)
        result = self.done(build(next(steps)))
        for step in steps:
            result = self.done(build(step))
        return result

    def done(self, result: BuildResult) -> BuildResult:
        """Record the result of the current build.

        Returns:
            The result with the notes of the builds before. A note that several builds
            have is there once.
        """
        self._results.append(result)
        # The keys of a dict are distinct, in the order of the builds.
        notes: dict[str, None] = {}
        for earlier_result in self._results:
            notes.update(dict.fromkeys(earlier_result.notes))
        return replace(result, notes=tuple(notes))


def _build(
    config: PipelineConfig, pool: Pool, on_event: Watcher, retries: int
) -> BuildResult:
    """Run one build, and record the error that ends it."""
    begin_time = time.monotonic()
    session = BuildSession.open(config, on_event=on_event, pool=pool)
    try:
        run_pending(session, pool, on_event=on_event, retries=retries)
        manifest = session.commit()
    except BaseException as error:
        session.failed(error)
        raise
    return result_of(session, manifest, time.monotonic() - begin_time)


def run_pending(
    session: BuildSession, pool: Pool, *, on_event: Watcher = ignore, retries: int = 2
) -> None:
    """Run the pending units of a session until none is left.

    The first error that retries do not cure ends it.

    Args:
        session: Session of the build.
        pool: Pool whose workers build.
        on_event: Function that receives an event for each unit that is tried again.
        retries: Number of times that a unit is tried again.
    """
    units = session.plan.units

    def report_retry(index: int, error: errors.TokenlakeError) -> None:
        on_event(
            UnitRetried(index, units[index].source, str(error), session.reported(index))
        )

    # A condemned backend makes finished units pending again.
    while session.pending:
        session.announce(pool)
        sizes = {index: units[index].bytes for index in session.pending}
        run_each(
            sizes,
            lambda index: session.run_unit(index, pool),
            pool,
            retries,
            report_retry,
        )


def run_each(
    sizes: Mapping[int, int],
    run: Callable[[int], object],
    pool: Pool,
    retries: int,
    on_retry: Callable[[int, errors.TokenlakeError], object] = lambda unit, error: None,
) -> None:
    """Run units in as many threads as a pool has workers.

    The first error that retries do not cure cancels the pool.

    Args:
        sizes: Input bytes of each unit, in plan order.
        run: Function that runs a unit, and returns when it is done.
        pool: Pool on which the units run.
        retries: Number of times that a unit is tried again.
        on_retry: Function that receives each unit that will be tried again, and its
            error.
    """
    schedule = Schedule(sizes, retries)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            scheduled = schedule.take(time.monotonic())
            if scheduled is None:
                return
            # A thread that waits for a retry wakes up when another one fails for good.
            unit, pause = scheduled
            if is_over.wait(pause):
                return
            try:
                run(unit)
            except errors.TokenlakeError as error:
                if not worth_a_retry(error):
                    raise
                is_scheduled = schedule.failed(unit, time.monotonic())
                if not is_scheduled:
                    raise
                on_retry(unit, error)

    run_threads(work, pool, min(pool.workers, len(sizes)), is_over)


def result_of(session: BuildSession, manifest: Manifest, seconds: float) -> BuildResult:
    """Return the result of a committed session.

    Args:
        session: Session of the build.
        manifest: Committed manifest.
        seconds: Wall time of the build.
    """
    origins = list(session.how.values())
    resumed_units = origins.count("resumed")
    status: Literal["built", "resumed", "exists"] = "built"
    if session.found_committed:
        status = "exists"
    elif resumed_units:
        status = "resumed"
    notes_on_inputs: list[str] = []
    if status != "exists":
        notes_on_inputs = _notes_on_inputs(session.plan.store, manifest)
    return BuildResult(
        dataset=session.dataset,
        version=session.version,
        path=session.path,
        status=status,
        manifest=manifest,
        units_built=origins.count("built"),
        units_resumed=resumed_units,
        units_reused=origins.count("reused"),
        seconds=seconds,
        notes=(
            *session.plan.build.notes,
            *session.plan.left_out,
            *session.plan.missed(manifest.accounts),
            *notes_on_inputs,
        ),
    )


def _notes_on_inputs(store: StoreAddress, manifest: Manifest) -> list[str]:
    """Return a note if a version has no input of the version before it.

    Two configurations with one name are probably a mistake: their builds become
    versions of one dataset. An input is the same if it has the same path in its source,
    or the same bytes.

    Args:
        store: Store of the version.
        manifest: Manifest of the version.
    """
    dataset = manifest.dataset
    catalog = Catalog(open_store(store))
    # The version is committed: an error of another version must not hide that.
    try:
        earlier_versions: list[int] = []
        for info in catalog.versions(dataset):
            if info.committed and info.version < manifest.version:
                earlier_versions.append(info.version)
        if not earlier_versions:
            return []
        before = max(earlier_versions)
        earlier_inputs = catalog.manifest(dataset, before).inputs
    except errors.TokenlakeError:
        return []
    # Mixtures have no input files.
    if not earlier_inputs or not manifest.inputs:
        return []
    earlier_paths = {(file.source, file.path) for file in earlier_inputs}
    earlier_tokens = {file.token for file in earlier_inputs}
    for file in manifest.inputs:
        if (file.source, file.path) in earlier_paths or file.token in earlier_tokens:
            return []
    files = numbers.plural(len(earlier_inputs), "file")
    return [
        f"{dataset} v{manifest.version} reads none of the input files of v{before} ({files}). If it is "
        f"another dataset, set another `name` and run again, then `tokenlake rm {dataset}@v{manifest.version}`"
    ]

"""The tasks of a build: retries, progress and one call of the library each; and a dataset as Prefect knows it.

That is an asset with its lineage, and the events that automations wait for. Each version of a dataset is one
materialization of its asset. What it was made from are assets, too: the folders, patterns and repositories of its
inputs, and the datasets of its parent versions.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.assets import Asset, add_asset_metadata
from prefect.assets.core import AssetProperties
from prefect.blocks.system import Secret
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.events import emit_event
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled
from prefect.tasks import MaterializingTask, Task

from tokenlake import numbers
from tokenlake.base.secrets import scrub
from tokenlake.errors import CancelledError, ConfigError, TokenlakeError
from tokenlake.etl.events import UnitFinished
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.pool import worth_a_retry
from tokenlake.etl.runner import BuildResult
from tokenlake.fingerprint import fingerprint
from tokenlake.observability.build import time_tables
from tokenlake.prefect.engine import LocalEngine, group_name
from tokenlake.prefect.policy import require_secret
from tokenlake.prefect.runs import this_run
from tokenlake.query.report import store_report
from tokenlake.reports import facts, to_markdown
from tokenlake.reports.dataset import (
    about_sources,
    account_table,
    fill,
    headline,
    mixture_table,
    remarks,
    sentence,
    splits_table,
)
from tokenlake.sources.formats import has_wildcard, static_folder
from tokenlake.store.address import open_store
from tokenlake.store.manifest import Manifest

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Seconds before a second and a third try; short, because a cancelled run waits for them.
RETRY_SECONDS: Final = [0.5, 2.0]


def is_worth_a_retry(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the same work may succeed next time: a worker died, or the store had a hiccup.

    What is raised on purpose about the input, the configuration or a conflict fails at once.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and worth_a_retry(error)


def retried(
    name: str,
    run_name: str | Callable[[dict[str, Any]], str],
    condition: Any = is_worth_a_retry,
    make: Callable[..., Any] = task,
) -> Callable[[Callable[_P, _R]], Task[_P, _R]]:
    """A task that is tried up to three times; of its result nothing is stored, for it may be unpickled later."""
    return make(
        name=name,
        task_run_name=cast("Any", run_name),  # typed by Prefect as if it took nothing
        retries=len(RETRY_SECONDS),
        retry_delay_seconds=RETRY_SECONDS,
        retry_jitter_factor=0.5,
        retry_condition_fn=condition,
        persist_result=False,
        cache_policy=NO_CACHE,
    )


def tried_once(name: str) -> Callable[[Callable[_P, _R]], Task[_P, _R]]:
    """A task that is not tried again; of its result nothing is stored."""
    return task(name=name, task_run_name=name, persist_result=False, cache_policy=NO_CACHE)


def submitted(
    task: Task[..., _R], engine: LocalEngine, *arguments: Any, after: Sequence[Any]
) -> PrefectFuture[_R]:
    """Submit a task that comes after others, as the arrows of the run's graph say.

    Args:
        after: futures, and states of flows; not what they hold, for of equal values Prefect draws arrows that are none.
    """
    submit: Any = task.submit  # whose types know nothing of wait_for
    return submit(engine, *arguments, wait_for=after)


def _materializing(**options: Any) -> Callable[[Callable[_P, _R]], MaterializingTask[_P, _R]]:
    """A task with assets, which are not known before there is a plan."""
    return lambda function: MaterializingTask(function, assets=(), **options)


def _log(engine: LocalEngine, level: str = "INFO") -> Callable[[str], None]:
    """Return the run's log for messages of a level, if `observability.log_level` wants to see these."""
    logger: Any = get_run_logger()
    return getattr(logger, level.lower()) if engine.display.tells(level) else lambda line: None


@retried("build-units", lambda parameters: group_name(parameters["units"]))
def build_units(engine: LocalEngine, units: Sequence[int]) -> dict[str, int | float] | State[Any]:
    """Build a group of units."""
    try:
        return engine.build(units, _log(engine))
    except CancelledError as error:
        # A state and not an exception: a cancelled run is no failure and needs no traceback.
        return Cancelled(message=str(error))


Built: TypeAlias = PrefectFuture[dict[str, int | float] | State[Any]]
"""A group of units, done or on its way."""


def build_all(engine: LocalEngine, after: Sequence[Any] = ()) -> list[Built]:
    """Submit all groups of units, a few at a time, until every unit is built; return what is to come before the commit.

    Args:
        after: what is to be done before, for the arrows of the run's graph.

    Raises:
        TokenlakeError: the first error of a group, after its retries.
    """
    built: list[Built] = []
    finished: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()

    def wait() -> None:
        """Raise what the next task run ended with."""
        future = finished.get()
        engine.raise_if_cancelled()
        future.result()

    # One more than there are workers, so that no worker waits for Prefect.
    at_once = engine.workers + 1
    # An engine found wrong makes finished units pending again.
    while groups := engine.groups():
        for index, units in enumerate(groups):
            if index >= at_once:
                wait()
            task = build_units.with_options(tags=[f"source:{name}" for name in engine.sources_of(units)])
            built.append(submitted(task, engine, units, after=after))
            built[-1].add_done_callback(finished.put)
        for _ in groups[-at_once:]:
            wait()
    return built


@tried_once("plan")
def plan_build(engine: LocalEngine) -> dict[str, Any]:
    """Wait for the plan and say what it comes to."""
    if engine.blocks:
        engine.provide(load_blocks(engine.blocks))
    log = _log(engine)
    session = engine.planned(log)
    units, pending, size = len(session.plan.units), len(session.pending), session.plan.input_bytes
    log(
        f"{session.dataset} v{session.version} is {session.status}: {numbers.plural(units, 'unit')} of "
        f"{numbers.size(size)}, {numbers.count(pending)} to build, {numbers.plural(engine.workers, 'worker')}"
    )
    for note in session.plan.notes:
        log(note)
    own = {name: getattr(session, name) for name in ("dataset", "version", "status")}
    return {**own, "units": units, "pending": pending, "input_bytes": size}


Summary: TypeAlias = dict[str, Any]
"""JSON-able: what was committed and what this run did for it."""
_OF_RESULT: Final = "dataset version path status units_built units_resumed units_reused"


def summarize(result: BuildResult) -> Summary:
    """Figures of the committed version, and of what this run itself did."""
    manifest, mixture = result.manifest, result.manifest.mixture
    return {
        **{name: getattr(result, name) for name in _OF_RESULT.split()},
        **{name: getattr(manifest.account, name) for name in ("documents", "tokens")},
        "rows": manifest.totals.rows,
        "fill": fill(manifest),
        "bytes": manifest.totals.bytes,
        "seconds": round(result.seconds, 3),
        "fingerprint": manifest.fingerprint,
        **({} if mixture is None else {"mixture": mixture_table(mixture).records()}),
        **({"exports": list(result.exports)} if result.exports else {}),
    }


def _page(result: BuildResult, report: str, built: Sequence[UnitFinished]) -> str:
    """The result as Markdown.

    Args:
        result: a committed build.
        report: where its report is; empty: nowhere.
        built: the units that this run itself built.
    """
    manifest = result.manifest
    units = {"built": result.units_built, "resumed": result.units_resumed, "reused": result.units_reused}
    told = ", ".join(f"{numbers.count(many)} {how}" for how, many in units.items() if many)
    run = [("units", told or "none: the same version exists already")]
    if result.units_built:
        speed = numbers.rate(sum(event.record.account.text_bytes for event in built), result.seconds)
        run.append(("time", f"{numbers.duration(result.seconds)}, {speed} of text"))
    run += [("stored at", f"`{result.path}`"), ("fingerprint", f"`{manifest.fingerprint}`")]
    run += [("report", report)] if report else []
    tables = [
        headline(manifest),
        account_table(manifest),
        *about_sources(manifest),
        *([splits_table(manifest)] if len(manifest.splits) > 1 else []),
        facts(run, "This run"),
        *time_tables(built),
    ]
    notes = "".join(f"- {remark}\n" for remark in [*remarks(manifest.account), *result.notes])
    return "\n".join([f"# {result.dataset} v{result.version}\n", *map(to_markdown, tables), notes])


@tried_once("report")
def publish_table(engine: LocalEngine) -> None:
    """Show the result beside the run, and in the history of the dataset's artifact; keep its report in the store."""
    result = engine.result()
    store, link = open_store(engine.session().plan.store), ""
    try:  # a version is whole without a report
        where = f"{store.url}/{store_report(store, result.manifest)}"
        link = f"[report.html]({where if '://' in where else Path(where).absolute().as_uri()})"
    except TokenlakeError as error:
        get_run_logger().warning("there is no report of this version: %s", scrub(str(error)))
    create_markdown_artifact(
        _page(result, link, engine.built()),
        key=artifact_key("tokens", result.dataset),
        description=f"{result.dataset} v{result.version}: {numbers.short(result.manifest.account.tokens)} tokens",
    )


def artifact_key(kind: str, dataset: str) -> str:
    """Prefect's keys know only lower-case letters, digits and dashes.

    >>> artifact_key("tokens", "web.v2_clean")
    'tokens-web-v2-clean'
    """
    return f"{kind}-{re.sub('[^a-z0-9]+', '-', dataset).strip('-')}"


@retried("commit", "commit", make=_materializing)
def _commit(engine: LocalEngine) -> Summary:
    found = engine.session().found_committed
    result = engine.commit(this_run())
    summary = summarize(result)
    log = _log(engine)
    log(f"{summary['dataset']} v{summary['version']} is committed: {summary['path']}")
    if (mixture := result.manifest.mixture) is not None:
        log(f"mixture: {sentence(mixture)}")
    if not found:
        told = facts_of(open_store(engine.session().plan.store).url, result.manifest)
        add_asset_metadata(dataset_asset(told["store"], result.dataset), told)
        emit(COMMITTED, told)
    return summary


def commit_version(engine: LocalEngine, after: Sequence[Any] = ()) -> PrefectFuture[Summary]:
    """Submit what judges and commits the version, materializes the dataset's asset, and sums it up.

    A version that was there already is no news: it materializes nothing and emits no event.

    Args:
        after: what is to be done before, for the arrows of the run's graph.
    """
    session = engine.session()
    if session.found_committed:
        return submitted(_commit, engine, after=after)
    store = open_store(session.plan.store).url
    made: Any = _commit.with_options
    task = made(
        assets=[dataset_asset(store, session.dataset)], asset_deps=upstream_assets(store, session.plan)
    )
    return submitted(task, engine, after=after)


@retried("export", "export")
def export_version(engine: LocalEngine) -> Summary:
    """Make the exports of the committed version, and sum everything up again."""
    result = engine.export()
    for place in result.exports:
        _log(engine)(f"exported to {place}")
    return summarize(result)


def load_blocks(names: Iterable[str]) -> dict[str, str]:
    """Return the values of blocks by name.

    Raises:
        ConfigError: there is no such block, or it holds no text; for a deployment's run also if that is no secret.
    """
    found: dict[str, str] = {}
    for name in names:
        what = f"storage_options: {{block: {name}}}"
        try:
            block: Any = Secret.load(name.removeprefix("secret/"))
        except ValueError as error:
            why = f"the Prefect server has no Secret block of this name ({scrub(str(error).splitlines()[0])})"
            how = "Create it on the page Blocks of its interface, or write {env: NAME}"
            raise ConfigError(f"{what}: {why}. {how}", block=name) from None
        value: Any = block.get()
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{what} holds {type(value).__name__}, expected a text", block=name)
        require_secret(name, value)
        found[name] = value
    return found


COMMITTED: Final = "tokenlake.version.committed"
DAMAGED: Final = "tokenlake.version.damaged"
PUSHED: Final = "tokenlake.version.pushed"

# What Prefect's keys may not have, or not be longer than.
_REFUSED: Final = re.compile(r"""[\s\0#?&%"'<>\[\]{}|\\^`]""")
_LONGEST: Final = 512
_MOST_INPUTS: Final = 16  # assets that one source's inputs are; more files are the folder that holds them


def asset_key(address: str) -> str:
    """Return the key of what lies at a path or URL: no password, no query, and ``_`` for what keys may not have.

    >>> asset_key("s3://me:secret@lake/raw data/a.jsonl?signature=x")
    's3://lake/raw_data/a.jsonl'
    """
    scheme, separator, rest = address.partition("://")
    if separator and re.fullmatch("[A-Za-z0-9]+", scheme) and scheme.lower() != "file":
        host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
        key = f"{scheme.lower()}://{host.rpartition('@')[2]}{slash}{path}"
    else:
        path = Path(rest if scheme.lower() == "file" else address)
        with suppress(RuntimeError):  # a name that begins with ~ and is nobody's home
            path = path.expanduser()
        key = f"file://{path.absolute().as_posix()}"
    key = _REFUSED.sub("_", key)
    return key if len(key) <= _LONGEST else f"{key[: _LONGEST - 17]}-{fingerprint(key)[:16]}"


def dataset_asset(store: str, dataset: str) -> Asset:
    """Return the asset that a dataset is."""
    return Asset(key=asset_key(f"{store}/{dataset}"), properties=AssetProperties(name=dataset))


def upstream_assets(store: str, plan: Plan) -> list[Asset]:
    """Return what a build reads: the inputs of its texts, and the datasets of its parents."""
    inputs = [
        root for source in plan.build.sources for root in input_roots(source.data_files, source.type or "")
    ]
    parents = [dataset_asset(store, parent.lineage.dataset) for parent in plan.parents]
    found = [*(Asset(key=asset_key(root)) for root in inputs), *parents]
    return list({asset.key: asset for asset in found}.values())


def input_roots(patterns: Iterable[str], kind: str = "") -> list[str]:
    """Return where inputs lie: files and folders as named, and of a pattern the folder before its first wildcard.

    >>> input_roots(["raw/*.jsonl", "raw/2024/**/a.csv", "b.csv"])
    ['raw', 'raw/2024', 'b.csv']
    """
    if kind == "hub":
        return [f"hf://datasets/{pattern}" for pattern in patterns]
    roots = list(dict.fromkeys(static_folder(each) if has_wildcard(each) else each for each in patterns))
    if len(roots) <= _MOST_INPUTS:
        return roots
    return list(dict.fromkeys(root.rpartition("/")[0] for root in roots))[:_MOST_INPUTS]


def facts_of(store: str, manifest: Manifest) -> dict[str, Any]:
    """Return what the event of a version says, and its materialization: JSON-able, with no secret."""
    totals = manifest.totals
    return {
        **called(store, manifest.dataset, manifest.version),
        "manifest_sha256": manifest.sha256,
        "fingerprint": manifest.fingerprint,
        "kind": manifest.kind,
        **{name: getattr(totals, name) for name in ("tokens", "rows", "documents", "files", "bytes")},
        "splits": {name: split.rows for name, split in manifest.splits.items()},
        "parents": [f"{parent.dataset}@v{parent.version}" for parent in manifest.parents],
    }


def called(store: str, dataset: str, version: int) -> dict[str, Any]:
    """Which version, in words that are a flow's parameters, too."""
    return {"dataset": dataset, "version": version, "name": f"{dataset}@v{version}", "store": store}


def emit(event: str, facts: Mapping[str, Any]) -> None:
    """Emit an event about a dataset; Prefect adds the run, its deployment and their tags."""
    dataset, store = facts["dataset"], facts["store"]
    labels = {
        "prefect.resource.id": f"tokenlake.dataset.{dataset}",
        "prefect.resource.name": f"{dataset} v{facts['version']}",
        "tokenlake.dataset": dataset,
        "tokenlake.version": str(facts["version"]),
        "tokenlake.store": store,
    }
    asset = {"prefect.resource.id": dataset_asset(store, dataset).key, "prefect.resource.role": "asset"}
    emit_event(event, labels, related=[asset], payload=dict(facts))

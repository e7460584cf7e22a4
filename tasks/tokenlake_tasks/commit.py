"""The task `commit`: the version becomes visible, and Prefect learns of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from prefect.assets import add_asset_metadata
from prefect.futures import PrefectFuture
from prefect.tasks import MaterializingTask

from tokenlake.etl.reports.dataset import sentence
from tokenlake.runs.engine import LocalEngine
from tokenlake.runtime.store.address import open_store
from tokenlake_tasks.assets import dataset_asset, upstream_assets
from tokenlake_tasks.events import COMMITTED, emit, facts_of
from tokenlake_tasks.retries import retried, submitted
from tokenlake_tasks.run_log import log_of, this_run
from tokenlake_tasks.summary import Summary, summarize

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _materializing(
    **options: Any,
) -> Callable[[Callable[_P, _R]], MaterializingTask[_P, _R]]:
    """Return a decorator of a task with assets, which are known only with a plan."""
    return lambda function: MaterializingTask(function, assets=(), **options)


@retried("commit", "commit", make=_materializing)
def commit(engine: LocalEngine) -> Summary:
    """Make the version visible and return its summary.

    A version that existed already is found again.
    """
    was_committed = engine.session().found_committed
    result = engine.commit(this_run())
    summary = summarize(result)
    log_line = log_of(engine)
    log_line(
        f"{summary['dataset']} v{summary['version']} is committed: {summary['path']}"
    )
    if result.manifest.mixture is not None:
        log_line(f"mixture: {sentence(result.manifest.mixture)}")
    # Only a new version is news: a second run emits no event.
    if not was_committed:
        store_url = open_store(engine.session().plan.store).url
        event_facts = facts_of(store_url, result.manifest)
        add_asset_metadata(dataset_asset(store_url, result.dataset), event_facts)
        emit(COMMITTED, event_facts)
    return summary


def submit_commit(
    engine: LocalEngine, after: Sequence[Any] = ()
) -> PrefectFuture[Summary]:
    """Submit the task `commit` with the assets of the build, which the plan names.

    A version that existed already materializes nothing and emits no event.

    Args:
        engine: Engine of the run.
        after: Futures and states that come before, for the arrows of the run's graph.
    """
    session = engine.session()
    if session.found_committed:
        return submitted(commit, engine, after=after)
    # The lineage on the page of the dataset: this version, and everything it is made of.
    store_url = open_store(session.plan.store).url
    with_options: Any = commit.with_options  # its types do not have assets
    commit_task = with_options(
        assets=[dataset_asset(store_url, session.dataset)],
        asset_deps=upstream_assets(store_url, session.plan),
    )
    return submitted(commit_task, engine, after=after)

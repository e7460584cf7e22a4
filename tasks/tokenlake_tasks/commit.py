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
    """A task with assets, which are not known before there is a plan."""
    return lambda function: MaterializingTask(function, assets=(), **options)


@retried("commit", "commit", make=_materializing)
def commit(engine: LocalEngine) -> Summary:
    """Make the version visible and return its summary; a version that was there
    already is found again.
    """
    was_committed = engine.session().found_committed
    result = engine.commit(this_run())
    summary = summarize(result)
    log = log_of(engine)
    log(f"{summary['dataset']} v{summary['version']} is committed: {summary['path']}")
    if result.manifest.mixture is not None:
        log(f"mixture: {sentence(result.manifest.mixture)}")
    if not was_committed:
        facts = facts_of(open_store(engine.session().plan.store).url, result.manifest)
        add_asset_metadata(dataset_asset(facts["store"], result.dataset), facts)
        emit(COMMITTED, facts)
    return summary


def submit_commit(
    engine: LocalEngine, after: Sequence[Any] = ()
) -> PrefectFuture[Summary]:
    """Submit the task `commit` with the assets of the build, which the plan names.

    A version that was there already materializes nothing and emits no event.

    Args:
        after: What must be done before, for the arrows of the run's graph.
    """
    session = engine.session()
    if session.found_committed:
        return submitted(commit, engine, after=after)
    store = open_store(session.plan.store).url
    with_options: Any = commit.with_options  # its types do not have assets
    task = with_options(
        assets=[dataset_asset(store, session.dataset)],
        asset_deps=upstream_assets(store, session.plan),
    )
    return submitted(task, engine, after=after)

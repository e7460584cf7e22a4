"""The task that makes a version visible."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tokenlake.prefect.tasks.engine import LocalEngine
from tokenlake.prefect.tasks.reporting import Summary, summarize
from tokenlake.prefect.tasks.shards import RETRY_SECONDS, is_worth_a_retry
from tokenlake.report.mixture import sentence


@task(
    name="commit",
    task_run_name="commit",
    retries=len(RETRY_SECONDS),
    retry_delay_seconds=RETRY_SECONDS,
    retry_jitter_factor=0.5,
    retry_condition_fn=is_worth_a_retry,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def commit_version(engine: LocalEngine) -> Summary:
    """Judge and commit the version, and sum it up."""
    summary = summarize(engine.commit())
    get_run_logger().info("%s v%d is committed: %s", summary["dataset"], summary["version"], summary["path"])
    if (mixture := engine.result().manifest.mixture) is not None:
        get_run_logger().info("mixed of %s", sentence(mixture))
    return summary

"""The task that publishes a version on the Hub; what is sent, and what refuses it, is the library's affair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.tasks import Task

from tokenlake.config.references import provide_blocks, resolve_options
from tokenlake.errors import ConfigError, NotFoundError, SourceError, StoreError, VersionConflictError
from tokenlake.prefect.tasks.blocks import load_blocks
from tokenlake.prefect.tasks.shards import RETRY_SECONDS
from tokenlake.publish import HubTarget, PushReport, push
from tokenlake.report import numbers
from tokenlake.storage import ReadStore


def check_reference(token: Mapping[str, str] | None) -> dict[str, str]:
    """Return a reference to a token; empty: the worker's own.

    Raises:
        ConfigError: it is no reference; what it is, is not shown.
    """
    found = dict(token or {})
    if found and (set(found) not in ({"env"}, {"block"}) or not all(found.values())):
        raise ConfigError(
            'token: expected {"env": NAME} or {"block": NAME}, which name where the token is kept'
        )
    return found


def token_of(reference: Mapping[str, str]) -> str | None:
    """Return the token that a reference names; None: the worker's own.

    Raises:
        ConfigError: there is no such variable or block.
    """
    if not reference:
        return None
    if "block" in reference:
        provide_blocks(load_blocks([reference["block"]]))
    return str(resolve_options({"token": reference})["token"])


def may_pass(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether the same push may succeed next time: the Hub or the store could not be reached."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StoreError | SourceError) and not isinstance(
        error, NotFoundError | VersionConflictError
    )


@task(
    name="push-version",
    task_run_name="{dataset} v{version} to {repo}",
    retries=len(RETRY_SECONDS),
    retry_delay_seconds=RETRY_SECONDS,
    retry_jitter_factor=0.5,
    retry_condition_fn=may_pass,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def push_version(
    store: ReadStore,
    dataset: str,
    version: int,
    repo: str,
    branch: str,
    token: Mapping[str, str],
    strict: bool,
) -> PushReport:
    """Publish one version in a private repository; another try sends what is missing."""
    report = push(store, dataset, version, HubTarget(repo, branch, token_of(token)), strict=strict)
    log = get_run_logger()
    log.info("%s: %s at %s, %s", report.outcome, report.tag, report.url, numbers.size(report.bytes))
    for finding in report.findings:
        log.warning("looks like a secret: %s", finding)
    return report

"""The task that publishes a version on the Hub; what is sent, and what refuses it, is the library's affair.

The tasks that look after what is stored: which versions there are, and whether each is what was committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.tasks import Task

from tokenlake.config.references import provide_blocks, resolve_options
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    SourceError,
    StoreError,
    VersionConflictError,
)
from tokenlake.integrity.findings import VerifyReport
from tokenlake.integrity.verify import verify
from tokenlake.prefect.blocks import load_blocks
from tokenlake.prefect.tasks import RETRY_SECONDS
from tokenlake.publish.push import PushReport, push
from tokenlake.publish.repository import HubTarget
from tokenlake.report import numbers
from tokenlake.report.table import Table, label, number, to_markdown
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog


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


_VERSIONS: Final = (
    label("name", "version"),
    label("state"),
    number("files"),
    number("bytes", "size", numbers.size),
    number("rows"),
    number("tokens"),
)
_PROBLEMS: Final = (
    label("name", "version"),
    label("path"),
    label("problem"),
    label("expected"),
    label("got"),
)
_SHOWN: Final = 200  # problems on a run's page; all are in its logs


def committed_versions(catalog: Catalog, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return (dataset, version) of what is named, or of everything that is committed.

    Args:
        names: datasets (all their versions), or one version each: ``name@v3``, ``name@prod``.

    Raises:
        NotFoundError: something that is named is not there.
    """
    found: list[tuple[str, int]] = []
    for name in names or catalog.datasets():
        if "@" in name:
            found.append(catalog.resolve(name))
        else:
            found += [(name, info.version) for info in catalog.versions(name) if info.committed]
    return list(dict.fromkeys(found))


@task(
    name="verify-version",
    task_run_name="{dataset} v{version}",
    retries=len(RETRY_SECONDS),
    retry_delay_seconds=RETRY_SECONDS,
    retry_jitter_factor=0.5,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def verify_version(store: ReadStore, dataset: str, version: int, deep: bool, workers: int) -> VerifyReport:
    """Verify one version; damage is logged and reported, not raised."""
    report = verify(store, dataset, version, deep=deep, workers=workers)
    log = get_run_logger()
    log.info("%s, %s read", numbers.plural(report.files, "file"), numbers.size(report.bytes))
    for problem in report.problems:
        log.error("%s: %s: expected %s, got %s", problem.path, problem.problem, problem.expected, problem.got)
    return report


@task(name="report", task_run_name="report", persist_result=False, cache_policy=NO_CACHE)
def publish_findings(reports: Sequence[VerifyReport]) -> None:
    """Show what was found beside the run, and in the history of the artifact ``verification``."""
    damaged = sum(not report.ok for report in reports)
    create_markdown_artifact(
        findings(reports),
        key="verification",
        description=f"{numbers.plural(len(reports), 'version')}: {damaged or 'none'} damaged",
    )


def findings(reports: Sequence[VerifyReport]) -> str:
    """Return what verification found, as Markdown."""
    versions = [
        {
            "name": _called(report),
            "state": "intact" if report.ok else numbers.plural(len(report.problems), "problem"),
            **{key: getattr(report, key) for key in ("files", "bytes")},
            **({"rows": report.rows, "tokens": report.tokens} if report.deep else {}),
        }
        for report in reports
    ]
    problems = [
        {"name": _called(report), **asdict(problem)} for report in reports for problem in report.problems
    ]
    tables = [Table.of(_VERSIONS, versions)]
    if problems:
        tables.append(Table.of(_PROBLEMS, problems[:_SHOWN], "Damage"))
    return "\n".join(["# Verification\n", *map(to_markdown, tables)])


def require_well(reports: Sequence[VerifyReport]) -> None:
    """Raise what a run with damage ends with.

    Raises:
        IntegrityError: names the versions and the command that repairs them.
    """
    damaged = [f"{report.dataset}@v{report.version}" for report in reports if not report.ok]
    if damaged:
        raise IntegrityError(
            f"{len(damaged)} of {numbers.plural(len(reports), 'version')} damaged: {', '.join(damaged)}. What is wrong "
            f"is in this run's logs and artifact; `tokenlake repair {damaged[0]}` rebuilds what can be rebuilt.",
            damaged=damaged,
        )


def _called(report: VerifyReport) -> str:
    return f"{report.dataset} v{report.version}"

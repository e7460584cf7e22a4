"""The tasks of the flow `verify`: each version by itself, and the findings beside the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from tokenlake.base import numbers
from tokenlake.errors import IntegrityError
from tokenlake.etl.integrity.findings import VerifyReport
from tokenlake.etl.integrity.verify import verify as verify_stored
from tokenlake.etl.reports import Table, label, number, to_markdown
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake_tasks.events import DAMAGED, called, emit
from tokenlake_tasks.retries import retried, tried_once

_NAME: Final = label("name", "version")
_SIZE: Final = number("bytes", "size", numbers.size)
_VERSIONS: Final = (_NAME, label("state"), number("files"), _SIZE, number("rows"), number("tokens"))
_PROBLEMS: Final = (_NAME, *map(label, ("path", "problem", "expected", "got")))
_SHOWN: Final = 200  # problems on a run's page; all are in its logs
_TOLD: Final = 20  # problems in an event


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


@retried("verify-version", "{dataset} v{version}", None)
def verify(store: ReadStore, dataset: str, version: int, deep: bool, workers: int) -> VerifyReport:
    """Verify one version; damage is logged and reported, not raised."""
    report = verify_stored(store, dataset, version, deep=deep, workers=workers)
    log = get_run_logger()
    log.info("%s, %s read", numbers.plural(report.files, "file"), numbers.size(report.bytes))
    for remark in report.notes:
        log.warning("%s", remark)
    for problem in report.problems:
        log.error("%s: %s: expected %s, got %s", problem.path, problem.problem, problem.expected, problem.got)
    if not report.ok:
        facts, first = called(store.url, dataset, version), report.problems[:_TOLD]
        problems = [f"{problem.path}: {problem.problem}" for problem in first]
        emit(DAMAGED, facts | {"problems": len(report.problems), "first_problems": problems})
    return report


@tried_once("report")
def publish_findings(reports: Sequence[VerifyReport]) -> None:
    """Show what was found beside the run, and in the history of the artifact ``verification``."""
    damaged = sum(not report.ok for report in reports)
    told = f"{numbers.plural(len(reports), 'version')}: {damaged or 'none'} damaged"
    create_markdown_artifact(findings(reports), key="verification", description=told)


def findings(reports: Sequence[VerifyReport]) -> str:
    """Return what verification found, as Markdown."""
    versions: list[dict[str, Any]] = []
    for report in reports:
        state = "intact" if report.ok else numbers.plural(len(report.problems), "problem")
        keys = ("files", "bytes", "rows", "tokens") if report.deep else ("files", "bytes")
        counts = {key: getattr(report, key) for key in keys}
        versions.append({"name": _called(report), "state": state, **counts})
    problems = [
        {"name": _called(report), **asdict(problem)} for report in reports for problem in report.problems
    ]
    tables = [Table.of(_VERSIONS, versions)]
    if problems:
        tables.append(Table.of(_PROBLEMS, problems[:_SHOWN], "Damage"))
    return "\n".join(["# Verification\n", *map(to_markdown, tables)])


def require_undamaged(reports: Sequence[VerifyReport]) -> None:
    """Raise what a run with damage ends with.

    Raises:
        IntegrityError: names the versions and the command that repairs them.
    """
    damaged = [f"{report.dataset}@v{report.version}" for report in reports if not report.ok]
    if damaged:
        what = f"{len(damaged)} of {numbers.plural(len(reports), 'version')} damaged: {', '.join(damaged)}"
        how = f"`tokenlake repair {damaged[0]}` rebuilds what can be rebuilt"
        told = f"{what}. This run's logs and artifact list the damage; {how}."
        raise IntegrityError(told, damaged=damaged)


def _called(report: VerifyReport) -> str:
    return f"{report.dataset} v{report.version}"

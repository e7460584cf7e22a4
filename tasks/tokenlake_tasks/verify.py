"""The tasks of the flow `verify`: one task for each version, and one for the
findings.
"""

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
from tokenlake_tasks.events import DAMAGED, emit, version_facts
from tokenlake_tasks.retries import retried, tried_once

_NAME: Final = label("name", "version")
_SIZE: Final = number("bytes", "size", numbers.size)
_VERSIONS: Final = (
    _NAME,
    label("state"),
    number("files"),
    _SIZE,
    number("rows"),
    number("tokens"),
)
_PROBLEMS: Final = (_NAME, *map(label, ("path", "problem", "expected", "got")))
_MOST_SHOWN: Final = 200
"""Largest number of problems in the artifact of a run. The logs of the run have all
of them.
"""

_MOST_IN_EVENT: Final = 20
"""Largest number of problems in an event."""


def committed_versions(catalog: Catalog, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return (dataset, version) of the named versions, or of all committed ones.

    Args:
        names: Datasets (all their versions), or one version each: ``name@v3``,
            ``name@prod``. Empty: all datasets.

    Raises:
        NotFoundError: A named dataset or version does not exist.
    """
    versions: list[tuple[str, int]] = []
    for name in names or catalog.datasets():
        if "@" in name:
            versions.append(catalog.resolve(name))
        else:
            versions += [
                (name, info.version)
                for info in catalog.versions(name)
                if info.committed
            ]
    return list(dict.fromkeys(versions))


@retried("verify-version", "{dataset} v{version}", None)
def verify(
    store: ReadStore, dataset: str, version: int, deep: bool, workers: int
) -> VerifyReport:
    """Verify one version. Damage is logged and returned in the report; it does not
    raise.
    """
    report = verify_stored(store, dataset, version, deep=deep, workers=workers)
    log = get_run_logger()
    log.info(
        "%s, %s read", numbers.plural(report.files, "file"), numbers.size(report.bytes)
    )
    for remark in report.notes:
        log.warning("%s", remark)
    for problem in report.problems:
        log.error(
            "%s: %s: expected %s, got %s",
            problem.path,
            problem.problem,
            problem.expected,
            problem.got,
        )
    if not report.ok:
        first_problems = [
            f"{problem.path}: {problem.problem}"
            for problem in report.problems[:_MOST_IN_EVENT]
        ]
        facts = version_facts(store.url, dataset, version)
        emit(
            DAMAGED,
            facts
            | {"problems": len(report.problems), "first_problems": first_problems},
        )
    return report


@tried_once("report")
def publish_findings(reports: Sequence[VerifyReport]) -> None:
    """Publish the findings as the artifact ``verification`` of the run."""
    damaged = len([report for report in reports if not report.ok])
    description = (
        f"{numbers.plural(len(reports), 'version')}: {damaged or 'none'} damaged"
    )
    create_markdown_artifact(
        findings(reports), key="verification", description=description
    )


def findings(reports: Sequence[VerifyReport]) -> str:
    """Return the findings of a verification as Markdown."""
    versions: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for report in reports:
        name = _name_of(report)
        state = (
            "intact" if report.ok else numbers.plural(len(report.problems), "problem")
        )
        row = {
            "name": name,
            "state": state,
            "files": report.files,
            "bytes": report.bytes,
        }
        if report.deep:
            row |= {"rows": report.rows, "tokens": report.tokens}
        versions.append(row)
        problems += [{"name": name, **asdict(problem)} for problem in report.problems]

    tables = [Table.of(_VERSIONS, versions)]
    if problems:
        tables.append(Table.of(_PROBLEMS, problems[:_MOST_SHOWN], "Damage"))
    return "\n".join(["# Verification\n", *map(to_markdown, tables)])


def require_undamaged(reports: Sequence[VerifyReport]) -> None:
    """Raise an error if a version is damaged.

    Raises:
        IntegrityError: Names the damaged versions, and the command that repairs them.
    """
    damaged = [
        f"{report.dataset}@v{report.version}" for report in reports if not report.ok
    ]
    if not damaged:
        return
    versions = numbers.plural(len(reports), "version")
    raise IntegrityError(
        f"{len(damaged)} of {versions} damaged: {', '.join(damaged)}. The logs and the artifact of this run list the "
        f"damage; `tokenlake repair {damaged[0]}` rebuilds what can be rebuilt.",
        damaged=damaged,
    )


def _name_of(report: VerifyReport) -> str:
    return f"{report.dataset} v{report.version}"

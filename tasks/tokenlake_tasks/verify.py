"""The tasks of the flow `verify`: one for each version, and one for the findings."""

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
        catalog: Catalog of the store.
        names: Datasets (all their versions), or one version each: ``name@v3``,
            ``name@prod``. Empty: all datasets.

    Raises:
        NotFoundError: A named dataset or version does not exist.
    """
    versions: list[tuple[str, int]] = []
    for dataset_name in names or catalog.datasets():
        if "@" in dataset_name:
            versions.append(catalog.resolve(dataset_name))
        else:
            for version_info in catalog.versions(dataset_name):
                if version_info.committed:
                    versions.append((dataset_name, version_info.version))
    # A version may be named twice, by its dataset and by a tag.
    return list(dict.fromkeys(versions))


@retried("verify-version", "{dataset} v{version}", None)
def verify(
    store: ReadStore, dataset: str, version: int, deep: bool, workers: int
) -> VerifyReport:
    """Verify one version.

    Damage is logged and returned in the report; it does not raise.
    """
    # Damage does not raise here, so that the other versions are verified, too.
    report = verify_stored(store, dataset, version, deep=deep, workers=workers)
    run_logger = get_run_logger()
    run_logger.info(
        "%s, %s read", numbers.plural(report.files, "file"), numbers.size(report.bytes)
    )
    for remark in report.notes:
        run_logger.warning("%s", remark)
    for problem in report.problems:
        run_logger.error(
            "%s: %s: expected %s, got %s",
            problem.path,
            problem.problem,
            problem.expected,
            problem.got,
        )
    if not report.ok:
        # An event is small: the first problems stand for all of them.
        first_problems: list[str] = []
        for problem in report.problems[:_MOST_IN_EVENT]:
            first_problems.append(f"{problem.path}: {problem.problem}")
        problem_facts = {
            "problems": len(report.problems),
            "first_problems": first_problems,
        }
        event_facts = version_facts(store.url, dataset, version)
        emit(DAMAGED, event_facts | problem_facts)
    return report


@tried_once("report")
def publish_findings(reports: Sequence[VerifyReport]) -> None:
    """Publish the findings as the artifact ``verification`` of the run."""
    # The key is always the same: the server shows all verifications as one history.
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
        version_name = _name_of(report)
        version_state = "intact"
        if not report.ok:
            version_state = numbers.plural(len(report.problems), "problem")
        version_row = {
            "name": version_name,
            "state": version_state,
            "files": report.files,
            "bytes": report.bytes,
        }
        # Rows and tokens are counted only where every row was decoded.
        if report.deep:
            version_row |= {"rows": report.rows, "tokens": report.tokens}
        versions.append(version_row)
        problems += [
            {"name": version_name, **asdict(problem)} for problem in report.problems
        ]

    # The page of a run gets slow with very many lines: the logs have all of them.
    tables = [Table.of(_VERSIONS, versions)]
    if problems:
        tables.append(Table.of(_PROBLEMS, problems[:_MOST_SHOWN], "Damage"))
    return "\n".join(["# Verification\n", *map(to_markdown, tables)])


def require_undamaged(reports: Sequence[VerifyReport]) -> None:
    """Raise an error if a version is damaged.

    Raises:
        IntegrityError: Names the damaged versions, and the command that repairs them.
    """
    damaged: list[str] = []
    for report in reports:
        if not report.ok:
            damaged.append(f"{report.dataset}@v{report.version}")
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

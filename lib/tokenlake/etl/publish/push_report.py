"""The progress of a push, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, final

from tokenlake.etl.publish.secret_scan import SecretFinding

Outcome: TypeAlias = Literal["pushed", "tagged", "unchanged", "would push", "would tag"]
"""Outcome of a push, or of a dry run."""


@final
@dataclass(frozen=True, slots=True)
class PushProgress:
    """Progress of a push.

    Attributes:
        bytes: Bytes sent so far, including those that the Hub had already.
        bytes_total: Bytes of the whole version.
    """

    bytes: int
    bytes_total: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """Result of a push, or of a dry run.

    Attributes:
        outcome: ``pushed``; ``tagged`` where only the tag was missing; ``unchanged``
            where nothing was missing; after a dry run ``would push`` or ``would tag``.
        dataset: Name of the dataset.
        version: Number of the version.
        repo: Repository, as ``org/name``.
        url: Address of the repository.
        branch: Branch of the commit.
        tag: Tag of the version, such as ``v3``.
        commit: Commit that holds the version; None after a dry run that would make one.
        created: True for a new repository; None after a dry run without a token that
            did not see the repository.
        private: True if only accounts with access see the repository.
        files: Number of published files.
        bytes: Total size of the published files.
        deleted: Paths that the branch's earlier version has and this version does not
            have.
        left_out: Paths that the manifest lists and that are not published.
        scanned_rows: Number of rows that were decoded and searched for secrets.
        findings: Possible secrets in those rows. A possible secret elsewhere refuses
            the push.

    Example:
        >>> import tokenlake as tl
        >>> def push(repo: str) -> None:
        ...     report = tl.push_to_hub("artifacts/books@v3", repo, dry_run=True)
        ...     print(report.outcome, report.files, report.findings)
    """

    outcome: Outcome
    dataset: str
    version: int
    repo: str
    url: str
    branch: str
    tag: str
    commit: str | None
    created: bool | None
    private: bool
    files: int
    bytes: int
    deleted: tuple[str, ...]
    left_out: tuple[str, ...]
    scanned_rows: int
    findings: tuple[SecretFinding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return asdict(self)

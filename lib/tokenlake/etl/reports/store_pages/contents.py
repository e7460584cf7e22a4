"""The contents of a store, as far as its pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from tokenlake.runtime.store.ledger import Parent, Totals
from tokenlake.runtime.store.manifest import Kind

VersionState: TypeAlias = Literal[
    "committed", "running", "idle", "failed", "cancelled", "unreadable", "damaged"
]
"""State of a version. ``unreadable``: its manifest is damaged. ``damaged``: a
file is missing or has another size, or a file that its page needs is damaged.
"""

# A build in one of these states can be resumed; the others are committed versions.
_UNFINISHED: Final[frozenset[VersionState]] = frozenset(
    {"running", "idle", "failed", "cancelled"}
)


@final
@dataclass(frozen=True, slots=True, order=True)
class VersionName:
    """Name of a version.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
    """

    dataset: str
    version: int

    def __str__(self) -> str:
        return f"{self.dataset}@v{self.version}"


@final
@dataclass(frozen=True, slots=True)
class InputSet:
    """The input files of one source of a version.

    Attributes:
        source: Name of the source.
        files: Number of files.
        bytes: Size of all files.
        digest: Hash of their paths, sizes and tokens: versions with equal hashes read
            the same files.
    """

    source: str
    files: int
    bytes: int
    digest: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One version of a dataset, or a build that is not committed.

    Attributes:
        name: Dataset and number.
        state: State of the version.
        kind: Kind of a committed version; ``mixture`` for one whose rows are a mixture.
            "" for others.
        sha256: Seal of the manifest; "" if there is none, or it cannot be read.
        totals: Sums over all shards; None if there is no readable manifest.
        tags: Tags, sorted.
        changed: Time of the last change by the storage's clock, in seconds since the
            epoch; None if unknown.
        units: Number of finished units of a build that is not committed.
        error: Error of a failed build, the reason why the version cannot be read, or
            its damaged file; "" for others.
        inputs: Input files by source; empty for a version that was made from other
            versions.
        parents: Versions that this one was made from.
    """

    name: VersionName
    state: VersionState
    kind: Kind | Literal["mixture", ""] = ""
    sha256: str = ""
    totals: Totals | None = None
    tags: tuple[str, ...] = ()
    changed: float | None = None
    units: int = 0
    error: str = ""
    inputs: tuple[InputSet, ...] = ()
    parents: tuple[Parent, ...] = ()

    @property
    def has_page(self) -> bool:
        """True if the version has a manifest that can be read, and therefore a page."""
        return self.totals is not None

    @property
    def is_unfinished(self) -> bool:
        """True for a build that is not committed."""
        return self.state in _UNFINISHED

    @property
    def is_damaged(self) -> bool:
        """True if the manifest or data of the version is damaged."""
        return self.state in ("unreadable", "damaged")


@final
@dataclass(frozen=True, slots=True)
class ExportSummary:
    """A flat directory that was exported from a version.

    Attributes:
        place: Path or URL.
        sha256: Seal of the manifest of the version.
        form: Format and compression, such as ``jsonl, gzip``.
        files: Number of data files.
        rows: Number of rows.
    """

    place: str
    sha256: str
    form: str
    files: int
    rows: int


@final
@dataclass(frozen=True, slots=True)
class StatementSummary:
    """A signed statement about the data of a checkpoint.

    Attributes:
        place: Path of the file.
        key: Public key of the signer, hexadecimal.
        steps: First step, and the step after the last one.
        sha256s: Seals of the manifests of the versions that were read.
    """

    place: str
    key: str
    steps: tuple[int, int]
    sha256s: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class StoreContents:
    """Versions of a store, with their exports and statements.

    Attributes:
        url: Path or URL of the store, without credentials.
        versions: Versions, ascending by name and number.
        exports: Exports, by place.
        statements: Statements, by place.
        problems: Sentences about parts that could not be read and are left out.
    """

    url: str
    versions: tuple[VersionSummary, ...]
    exports: tuple[ExportSummary, ...] = ()
    statements: tuple[StatementSummary, ...] = ()
    problems: tuple[str, ...] = ()

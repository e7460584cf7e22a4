"""What verification says: a list of problems, each with what was expected and what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: the file, relative to the version.
        problem: what is wrong, in a few stable words (``missing``, ``size``, ``sha256``, ``tokens`` ...).
        expected, got: for people.
    """

    path: str
    problem: str
    expected: str
    got: str


@final
@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far verification is; bytes of shards count twice when they are decoded too."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result for one version.

    Attributes:
        deep: whether shards were decoded.
        files, bytes: read and compared with their hashes.
        rows, tokens: decoded and counted (0 unless deep).
        problems: sorted by path; empty if all is well.
    """

    dataset: str
    version: int
    deep: bool
    files: int
    bytes: int
    rows: int
    tokens: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {"ok": self.ok, **asdict(self), "problems": [asdict(problem) for problem in self.problems]}

"""What a repair says: for each damaged file how it was mended or why it was not, and what is left."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from tokenlake.verify import Problem

How = Literal["copied", "rebuilt", "rendered", "new version", "not mended"]
"""copied: from the same bytes elsewhere in the store; rebuilt: from the inputs; rendered: from the manifest, or from
the configuration; new version: rebuilt, with other bytes and the same rows."""


@final
@dataclass(frozen=True, slots=True)
class Mended:
    """What became of one damaged file.

    Attributes:
        version: ``code@v3``; the one that was to be repaired, or another that holds the same bytes.
        path: of the file, relative to the version.
        damage: what was wrong, in the words of verification (``missing``, ``size``, ``sha256``, ``unreadable``,
            ``damaged``).
        how: it was mended, or would be.
        note: where the bytes came from, or why there are none.
    """

    version: str
    path: str
    damage: str
    how: How
    note: str


@final
@dataclass(frozen=True, slots=True)
class RepairProgress:
    """How far a repair is.

    Attributes:
        doing: ``verifying``, ``looking for copies``, ``planning``, ``rebuilding`` or ``writing``.
        bytes, bytes_total: of this step; a total of 0 is not known.
    """

    doing: str
    bytes: int = 0
    bytes_total: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result for one version, and for others that share its damaged files.

    Attributes:
        dry_run: nothing was written.
        files: what was damaged; empty if all was well.
        well: other versions that hold the same bytes, and hold them well (``code@v2: data/train-00000-00.parquet``).
        new_version: number of the version that holds what was rebuilt with other bytes; None where nothing was.
        unlisted: files that no manifest names; they are left to ``gc``.
        problems: what is still wrong with the version, in the words of verification.
    """

    dataset: str
    version: int
    dry_run: bool
    files: tuple[Mended, ...]
    well: tuple[str, ...]
    new_version: int | None
    unlisted: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether all is well now; of a dry run, whether it would be."""
        if self.dry_run:
            return not any(file.how in ("not mended", "new version") for file in self.files)
        return not self.problems and all(file.how not in ("not mended", "new version") for file in self.files)

    @property
    def mended(self) -> int:
        """How many files were mended, or would be."""
        return sum(file.how != "not mended" for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {
            "ok": self.ok,
            **asdict(self),
            "files": [asdict(file) for file in self.files],
            "problems": [asdict(problem) for problem in self.problems],
        }

"""What verification says: a list of problems, each with what was expected and what was found.

The words of :attr:`Problem.problem` are an interface: programs decide by them what to do.

What is wrong with a file as such, whatever is in it; a good copy in its place mends it:

``missing``      there is no such file
``size``         it has another size
``sha256``       it has the right size and other bytes
``unreadable``   it is no regular file (a symlink, a folder, a pipe), or the storage does not give it out; also of a
                 folder that cannot be listed
``damaged``      a sealed file (``manifest.json``, ``claim.json``, a ledger record, a tag) is cut, changed, or that of
                 another place
``unlisted``     the manifest does not name it; it may be removed

What is wrong though all bytes are those that the manifest's hashes are of; no copy mends it:

``footer``, ``decode``, ``columns``, ``type of NAME``: a shard is no Parquet file of the right columns.
``rows``, ``row groups``, ``tokens``, ``documents``, ``logical hash of NAME``: counted or hashed otherwise.
``nulls``, ``provenance``, ``segment lengths``, ``ids``, names of columns: rows that cannot be.
``account``, ``account of SOURCE``, ``rows of the mixture``: do not close, or are not the sum of the ledger's.
``parts``, ``inputs``, ``fingerprint``: manifest, ledger and claim contradict each other.
``config``, ``tokenizer``, ``tokenizer of SOURCE``: not what ``config.yaml`` and ``tokenizer/`` say, or do.
``parent NAME``, ``mixture source NAME``: a version that this one was made from is another one by now.
``tag``: a tag was set when the version was another one, or it is of a version that is gone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, final

FILE_PROBLEMS: Final = frozenset({"missing", "size", "sha256", "unreadable", "damaged"})
"""The words for a file that a good copy of it mends."""


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: the file, relative to the version; tags are beside versions: ``../tags/prod.json``.
        problem: what is wrong, in the words of this module.
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
        listed: whether unlisted files and tags were looked for; a web server does not list what it has.
        files, bytes: read and compared with their hashes.
        rows, tokens: decoded and counted (0 unless deep).
        problems: sorted by path; empty if all is well.
    """

    dataset: str
    version: int
    deep: bool
    listed: bool = True
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

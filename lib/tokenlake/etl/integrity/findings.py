"""Findings of verification, and results of a repair.

Verification lists problems, each with the expected and the found value. The words of
:attr:`Problem.problem` are an interface: programs decide by them.

Problems of a file as such, whatever is in it; a good copy in its place repairs it:

``missing``      there is no such file
``size``         it has another size
``sha256``       it has the right size and other bytes
``unreadable``   it is no regular file (a symlink, a folder, a pipe), or the storage
                 does not give it out; also of a folder that cannot be listed
``damaged``      a sealed file (``manifest.json``, ``claim.json``, a ledger record, a
                 tag) is cut, changed, or that of another place;
                 ``runs/manifest-copy.json`` is no copy of the manifest
``unlisted``     the manifest does not name it; it may be removed

Problems although all bytes have the manifest's hashes; no copy repairs them:

``footer``, ``decode``, ``columns``, ``type of NAME``: a shard is no Parquet file of the
right columns. ``rows``, ``row groups``, ``tokens``, ``documents``, ``logical hash of
NAME``: counted or hashed otherwise. ``nulls``, ``provenance``, ``segment lengths``,
``ids``, names of columns: rows that cannot be. ``account``, ``account of SOURCE``,
``rows of the mixture``: do not balance, or are not the sum of the ledger's. ``copy``:
``runs/manifest-copy.json`` is sealed and another manifest; one of the two was edited.
``parts``, ``inputs``, ``fingerprint``: manifest, ledger and claim contradict each
other. ``config``, ``tokenizer``, ``tokenizer of SOURCE``: differ from ``config.yaml``
and ``tokenizer/``. ``parent NAME``, ``mixture source NAME``: a version that this one
was made from is another one by now. ``tag``: a tag was set when the version was another
one, or its version is gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, final

from tokenlake.base import numbers
from tokenlake.base.markup import named_facts, one_line
from tokenlake.errors import NotFoundError, StoreError
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.file_check import (
    PROBLEM_COLUMNS,
    Problem,
    problem_rows,
    verdict_on,
)
from tokenlake.runtime.store.layout import Layout, ledger_unit
from tokenlake.runtime.store.ledger import FileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest

FILE_PROBLEMS: Final = frozenset({"missing", "size", "sha256", "unreadable", "damaged"})
"""The words for a file that a good copy of it repairs."""


Entry: TypeAlias = FileEntry | ShardEntry
"""Entry of a file in a manifest: size and hash; for a shard, also its contents."""

Entries: TypeAlias = dict[str, Entry]
"""Path of a file, relative to the version -> its entry."""


def listed_files(manifest: Manifest) -> Entries:
    """Return path -> entry of every file that a manifest lists."""
    return {shard.path: shard for shard in manifest.files} | manifest.other_files


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Result of verifying one version.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        deep: True if shards were decoded.
        listed: True if unlisted files and tags were looked for. A web server cannot
            list its files.
        files: Number of files that were compared with their hashes.
        bytes: Number of bytes that were read.
        rows: Number of rows that were decoded (0 unless deep).
        tokens: Number of tokens that were decoded (0 unless deep).
        problems: Problems, sorted by path; empty if nothing is damaged.
        notes: Remarks that are no damage: the second copy of the manifest is missing,
            or can restore the manifest.

    Example:
        >>> import tokenlake as tl
        >>> report = tl.verify("artifacts/books@v3")
        >>> report.ok, report.rows  # rows are counted with deep=True only
        (True, 0)
    """

    dataset: str
    version: int
    deep: bool
    listed: bool = True
    files: int = 0
    bytes: int = 0
    rows: int = 0
    tokens: int = 0
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {"ok": self.ok, **asdict(self)}

    def __repr__(self) -> str:
        name = one_line(f"{self.dataset}@v{self.version}")
        files = numbers.plural(self.files, "file")
        return f"VerifyReport({name}: {verdict_on(self.problems)}, {files}, {numbers.size(self.bytes)})"

    def _repr_html_(self) -> str:
        # A fact that is None is left out: a shallow verification decodes nothing.
        rows_decoded: int | None = None
        tokens_decoded: int | None = None
        if self.deep:
            rows_decoded = self.rows
            tokens_decoded = self.tokens
        unlisted_files: str | None = None
        if not self.listed:
            unlisted_files = "not checked"
        facts = {
            "found": verdict_on(self.problems),
            "files": self.files,
            "bytes": self.bytes,
            "rows decoded": rows_decoded,
            "tokens decoded": tokens_decoded,
            "unlisted files": unlisted_files,
        }
        rows = problem_rows(self.problems)
        title = f"Verification of {self.dataset}@v{self.version}"
        return named_facts(title, facts, PROBLEM_COLUMNS, rows)


# Path of a unit's quarantine. Its name is the number of the unit.
_QUARANTINE_FILE: Final = re.compile(r"quarantine/(\d{5,7})\.parquet")


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """One file with other bytes than it should have.

    Attributes:
        layout: Keys of its version.
        path: Path of the file, relative to the version.
        sha256: Hash that it should have (hex); empty if it is not known before the file
            is made again.
        word: Kind of the damage, in the words of verification.
        found: Hash of the bytes that were seen (hex); None: there is no file.
        obstacle: Reason why it cannot be replaced; empty if it can.
    """

    layout: Layout
    path: str
    sha256: str
    word: str
    found: str | None
    obstacle: str = ""

    @property
    def key(self) -> str:
        """Key of the file in the store."""
        return self.layout.key(self.path)

    @property
    def version(self) -> str:
        """Name of the version, ``code@v3``."""
        return f"{self.layout.dataset}@v{self.layout.version}"


def look(
    store: ReadStore, layout: Layout, path: str, sha256: str, word: str = ""
) -> Damage | None:
    """Return the damage of a file; None if its bytes are right.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        path: Path of the file, relative to the version.
        sha256: Hash that it should have (hex).
        word: Kind of the damage as verification reported it; empty if it did not.
    """
    try:
        current_sha256 = store.digest(layout.key(path)).sha256
        # A bit that flipped on its way is right the next time.
        if current_sha256 != sha256:
            current_sha256 = store.digest(layout.key(path)).sha256
    except NotFoundError:
        return Damage(layout, path, sha256, word or "missing", None)
    except StoreError as error:  # a symlink, a folder, no permission, a failing disk
        obstacle = f"{error}. Remove it, and repair again"
        return Damage(layout, path, sha256, word or "unreadable", None, obstacle)
    if current_sha256 == sha256:
        return None
    return Damage(layout, path, sha256, word or "sha256", current_sha256)


def damages(
    store: ReadStore, layout: Layout, files: Entries, words: Mapping[str, str]
) -> list[Damage]:
    """Return the damages of files, sorted by path.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        files: Path -> entry of the files of the manifest.
        words: Path -> kind of the damage, in the words of verification, of the files to
            look at.
    """
    damaged: list[Damage] = []
    for path, word in sorted(words.items()):
        if path not in files:
            continue
        damage = look(store, layout, path, files[path].sha256, word)
        if damage is not None:
            damaged.append(damage)
    return damaged


def unit_of(manifest: Manifest, path: str) -> int | None:
    """Return the unit that wrote a file; None for a file of the whole version."""
    quarantine = _QUARANTINE_FILE.fullmatch(path)
    if quarantine is not None:
        return int(quarantine[1])
    # Shards name their unit in the manifest; ledger records name it in their path.
    for shard in manifest.files:
        if shard.path == path:
            return shard.unit
    return ledger_unit(path)


How = Literal["copied", "rebuilt", "rendered", "new version", "not repaired"]
"""copied: from the same bytes elsewhere in the store; rebuilt: from the inputs;
rendered: from the manifest, or from the configuration; new version: rebuilt, with other
bytes and the same rows.
"""


@final
@dataclass(frozen=True, slots=True)
class RepairedFile:
    """Result for one damaged file.

    Attributes:
        version: Version to repair, or another one that holds the same bytes,
            ``code@v3``.
        path: Path of the file, relative to the version.
        damage: Kind of the damage, in the words of verification (``missing``, ``size``,
            ``sha256``, ``unreadable``, ``damaged``).
        how: Way in which it was repaired, or would be.
        note: Origin of the good bytes, or the reason why there are none.
    """

    version: str
    path: str
    damage: str
    how: How
    note: str


@final
@dataclass(frozen=True, slots=True)
class RepairProgress:
    """Progress of a repair.

    Attributes:
        doing: Step of the repair: ``verifying``, ``looking for copies``, ``planning``,
            ``rebuilding``, ``writing``, or ``waiting for workers: `` and their command.
        bytes: Bytes of this step that are done.
        bytes_total: All bytes of this step; 0: not known.
    """

    doing: str
    bytes: int = 0
    bytes_total: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Result of repairing one version, and others that share its damaged files.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        dry_run: True if nothing was written.
        files: Damaged files.
        intact: Other versions that hold the same bytes undamaged (``code@v2:
            data/train-00000-00.parquet``).
        new_version: Number of the version with the units that were rebuilt in other
            bytes; None if there is none.
        unlisted: Files that no manifest names; they are left to ``gc``.
        problems: Problems that the version still has, in the words of verification.

    Example:
        >>> import tokenlake as tl
        >>> report = tl.repair("artifacts/books@v3", dry_run=True)
        >>> report.ok, report.files
        (True, ())
    """

    dataset: str
    version: int
    dry_run: bool
    files: tuple[RepairedFile, ...]
    intact: tuple[str, ...]
    new_version: int | None
    unlisted: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """True if nothing is damaged now or, after a dry run, if nothing would be."""
        # A file in other bytes stays damaged in this version, although the new one is
        # whole.
        if any(file.how in ("not repaired", "new version") for file in self.files):
            return False
        return self.dry_run or not self.problems

    @property
    def repaired(self) -> int:
        """Number of files that were repaired, or would be."""
        return len([file for file in self.files if file.how != "not repaired"])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {"ok": self.ok, **asdict(self)}

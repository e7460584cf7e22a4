"""What verification finds, and what a repair makes of it.

Verification lists problems, each with what was expected and what was found. The words of :attr:`Problem.problem` are
an interface: programs decide by them what to do.

What is wrong with a file as such, whatever is in it; a good copy in its place repairs it:

``missing``      there is no such file
``size``         it has another size
``sha256``       it has the right size and other bytes
``unreadable``   it is no regular file (a symlink, a folder, a pipe), or the storage does not give it out; also of a
                 folder that cannot be listed
``damaged``      a sealed file (``manifest.json``, ``claim.json``, a ledger record, a tag) is cut, changed, or that of
                 another place; ``runs/manifest-copy.json`` is no copy of the manifest
``unlisted``     the manifest does not name it; it may be removed

What is wrong though all bytes are those that the manifest's hashes are of; no copy repairs it:

``footer``, ``decode``, ``columns``, ``type of NAME``: a shard is no Parquet file of the right columns.
``rows``, ``row groups``, ``tokens``, ``documents``, ``logical hash of NAME``: counted or hashed otherwise.
``nulls``, ``provenance``, ``segment lengths``, ``ids``, names of columns: rows that cannot be.
``account``, ``account of SOURCE``, ``rows of the mixture``: do not close, or are not the sum of the ledger's.
``copy``: ``runs/manifest-copy.json`` is sealed and another manifest; one of the two was edited.
``parts``, ``inputs``, ``fingerprint``: manifest, ledger and claim contradict each other.
``config``, ``tokenizer``, ``tokenizer of SOURCE``: not what ``config.yaml`` and ``tokenizer/`` say, or do.
``parent NAME``, ``mixture source NAME``: a version that this one was made from is another one by now.
``tag``: a tag was set when the version was another one, or it is of a version that is gone.
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
from tokenlake.runtime.store.layout import Layout, ledger_unit
from tokenlake.runtime.store.ledger import FileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest

FILE_PROBLEMS: Final = frozenset({"missing", "size", "sha256", "unreadable", "damaged"})
"""The words for a file that a good copy of it repairs."""


Entry: TypeAlias = FileEntry | ShardEntry
Entries: TypeAlias = dict[str, Entry]


def listed_files(manifest: Manifest) -> Entries:
    """Return path -> entry of every file that a manifest lists."""
    return {shard.path: shard for shard in manifest.files} | manifest.other_files


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
        problems: sorted by path; empty if nothing is damaged.
        notes: Remarks that are no damage: the second copy of the manifest is missing, or can restore the manifest.
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
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {"ok": self.ok, **asdict(self)}

    def __repr__(self) -> str:
        read = f"{numbers.plural(self.files, 'file')}, {numbers.size(self.bytes)}"
        return f"VerifyReport({one_line(f'{self.dataset}@v{self.version}')}: {self._found}, {read})"

    def _repr_html_(self) -> str:
        facts = {
            "found": self._found,
            "files": self.files,
            "bytes": self.bytes,
            "rows decoded": self.rows if self.deep else None,
            "tokens decoded": self.tokens if self.deep else None,
            "unlisted files": None if self.listed else "not looked for",
        }
        rows = [(each.path, each.problem, each.expected, each.got) for each in self.problems]
        heads = ("file", "problem", "expected", "got")
        return named_facts(f"Verification of {self.dataset}@v{self.version}", facts, heads, rows)

    @property
    def _found(self) -> str:
        return "intact" if self.ok else numbers.plural(len(self.problems), "problem")


_UNIT_FILE: Final = re.compile(r"quarantine/(\d{5,7})\.parquet")


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """One file that is not what it should be.

    Attributes:
        layout: of its version.
        path: relative to the version.
        sha256: hex, what it should hold; "" where it is not known before it is made again.
        word: what is wrong, as verification calls it.
        found: hex, the sha256 of what was seen there; None: nothing.
        obstacle: why it cannot be replaced, whatever should be there; "" where it can.
    """

    layout: Layout
    path: str
    sha256: str
    word: str
    found: str | None
    obstacle: str = ""

    @property
    def key(self) -> str:
        return self.layout.key(self.path)

    @property
    def version(self) -> str:
        """``code@v3``."""
        return f"{self.layout.dataset}@v{self.layout.version}"


def look(store: ReadStore, layout: Layout, path: str, sha256: str, word: str = "") -> Damage | None:
    """Return what is wrong with a file's bytes; None if they are what they should be.

    Args:
        word: what verification called it, if it did.
    """
    try:
        found = store.digest(layout.key(path)).sha256
        if found != sha256:  # what flipped on its way is right the next time
            found = store.digest(layout.key(path)).sha256
    except NotFoundError:
        return Damage(layout, path, sha256, word or "missing", None)
    except StoreError as error:  # a symlink, a folder, no permission, a failing disk
        obstacle = f"{error}. Remove what is there, and repair again"
        return Damage(layout, path, sha256, word or "unreadable", None, obstacle)
    return None if found == sha256 else Damage(layout, path, sha256, word or "sha256", found)


def damages(store: ReadStore, layout: Layout, files: Entries, words: Mapping[str, str]) -> list[Damage]:
    """Return the files whose bytes are wrong, sorted by path.

    Args:
        words: path -> what is wrong, as verification calls it, of the files that are looked at.
    """
    there = [(path, word) for path, word in sorted(words.items()) if path in files]
    found = [look(store, layout, path, files[path].sha256, word) for path, word in there]
    return [damage for damage in found if damage is not None]


def unit_of(manifest: Manifest, path: str) -> int | None:
    """Return the unit whose work a file is; None for a file of the whole version."""
    if quarantine := _UNIT_FILE.fullmatch(path):
        return int(quarantine[1])
    of_shard = next((shard.unit for shard in manifest.files if shard.path == path), None)
    return of_shard if of_shard is not None else ledger_unit(path)


How = Literal["copied", "rebuilt", "rendered", "new version", "not repaired"]
"""copied: from the same bytes elsewhere in the store; rebuilt: from the inputs; rendered: from the manifest, or from
the configuration; new version: rebuilt, with other bytes and the same rows."""


@final
@dataclass(frozen=True, slots=True)
class RepairedFile:
    """What became of one damaged file.

    Attributes:
        version: ``code@v3``; the one that was to be repaired, or another that holds the same bytes.
        path: of the file, relative to the version.
        damage: what was wrong, in the words of verification (``missing``, ``size``, ``sha256``, ``unreadable``,
            ``damaged``).
        how: it was repaired, or would be.
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
        doing: ``verifying``, ``looking for copies``, ``planning``, ``rebuilding``, ``writing``, or ``waiting for
            workers: `` and their command.
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
        files: what was damaged.
        intact: other versions that hold the same bytes undamaged (``code@v2: data/train-00000-00.parquet``).
        new_version: number of the version that holds what was rebuilt with other bytes; None where nothing was.
        unlisted: files that no manifest names; they are left to ``gc``.
        problems: what is still wrong with the version, in the words of verification.
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
        """Whether nothing is damaged now; of a dry run, whether nothing would be."""
        left = any(file.how in ("not repaired", "new version") for file in self.files)
        return not left and (self.dry_run or not self.problems)

    @property
    def repaired(self) -> int:
        """How many files were repaired, or would be."""
        return sum(file.how != "not repaired" for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``ok`` included."""
        return {"ok": self.ok, **asdict(self)}

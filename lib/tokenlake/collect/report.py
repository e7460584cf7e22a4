"""What a collection did, or would do: what was removed, which builds were given up, and what was left and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, final

Kind: TypeAlias = Literal["temporary", "abandoned", "stray"]


@final
@dataclass(frozen=True, slots=True)
class Removed:
    """One file, or one upload that never ended.

    Attributes:
        kind: ``temporary`` (never published), ``abandoned`` (of a build that was given up) or ``stray`` (below a
            committed version whose manifest does not name it).
        name: key in the store.
        bytes: its size. Of a file with other hard links, as reuse makes them, removing it frees nothing.
        modified: seconds since the epoch, by the storage's clock; None where it does not say.
    """

    kind: Kind
    name: str
    bytes: int
    modified: float | None

    @property
    def place(self) -> str:
        """The version it lay in, as a reference (``code@v3``); its folder where that is no version's."""
        return place_of(self.name)


@final
@dataclass(frozen=True, slots=True)
class Swept:
    """A build that was given up: its number stays taken, and its files go.

    Attributes:
        was: the state of its claim: ``building``, ``committing``, ``damaged``, or ``swept`` where an earlier collection
            had begun.
        modified: when anything of it changed last, in seconds since the epoch.
    """

    dataset: str
    version: int
    was: Literal["building", "committing", "damaged", "swept"]
    modified: float | None


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """Something that was left alone, and why; failed: it should have gone, and the storage refused."""

    name: str
    reason: str
    failed: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """The result of one collection.

    Attributes:
        store: its URL.
        grace: seconds that something must have lain untouched.
        dry_run: nothing was changed; the report is the same as without.
        removed: by name.
        swept: builds that were given up, also those of which no file was left.
        kept: unfinished builds that are younger, and what could not be judged or removed.
    """

    store: str
    grace: float
    dry_run: bool
    removed: tuple[Removed, ...]
    swept: tuple[Swept, ...]
    kept: tuple[Kept, ...]

    @property
    def bytes(self) -> int:
        """The sizes of all that was removed."""
        return sum(each.bytes for each in self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``bytes`` and ``files`` included."""
        return {
            "store": self.store,
            "grace": self.grace,
            "dry_run": self.dry_run,
            "files": len(self.removed),
            "bytes": self.bytes,
            "removed": [asdict(each) for each in self.removed],
            "swept": [asdict(each) for each in self.swept],
            "kept": [asdict(each) for each in self.kept],
        }


def place_of(name: str) -> str:
    """``code/v3/data/x.parquet`` -> ``code@v3``; other folders as they are."""
    dataset, _, rest = name.partition("/")
    version = rest.partition("/")[0]
    if version[:1] == "v" and version[1:].isdecimal() and "/" in rest:
        return f"{dataset}@{version}"
    return name.rpartition("/")[0] or "(the store)"

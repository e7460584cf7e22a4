"""What is damaged: the files of a version that do not hold what its manifest says, as they were seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.manifest import Manifest
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout, ledger_unit
from tokenlake.verify import Problem

UNLISTED: Final = "unlisted"

_UNIT_FILE: Final = re.compile(r"quarantine/(\d{5,7})\.parquet")


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """One file that is not what it should be.

    Attributes:
        layout: of its version.
        path: relative to the version.
        sha256: hex, what it should hold; "" where nobody knows before it is made again.
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


def expected_hashes(manifest: Manifest) -> dict[str, str]:
    """Return path -> sha256 of every file that a manifest names."""
    found = {shard.path: shard.sha256 for shard in manifest.files}
    return found | {path: entry.sha256 for path, entry in manifest.other_files.items()}


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
        return Damage(layout, path, sha256, word or "unreadable", None, _obstacle(error))
    return None if found == sha256 else Damage(layout, path, sha256, word or "sha256", found)


def damages(
    store: ReadStore, layout: Layout, expected: Mapping[str, str], problems: Iterable[Problem]
) -> list[Damage]:
    """Return the files among what verification complained of whose bytes are wrong, sorted by path."""
    words = {problem.path: problem.problem for problem in problems if problem.path in expected}
    found = (look(store, layout, path, expected[path], word) for path, word in sorted(words.items()))
    return [damage for damage in found if damage is not None]


def unit_of(manifest: Manifest, path: str) -> int | None:
    """Return the unit whose work a file is; None for a file of the whole version."""
    quarantine = _UNIT_FILE.fullmatch(path)
    if quarantine is not None:
        return int(quarantine[1])
    if (unit := ledger_unit(path)) is not None:
        return unit
    return next((shard.unit for shard in manifest.files if shard.path == path), None)


def _obstacle(error: StoreError) -> str:
    return f"{error}. Remove what is there, and repair again"

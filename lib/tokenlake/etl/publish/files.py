"""The files of a version that are published: an allow-list, restricted to the files that the manifest lists.

Published are the manifest, the card, the configuration, the tokenizer, the shards and the ledger (hashes and counts of
each unit, which the verification of a copy needs). Never published are ``quarantine/`` (bad records, which are not for
everybody), ``runs/`` (names of hosts, and times), ``claim.json``, and files that the manifest does not list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self, final

from tokenlake.errors import IntegrityError
from tokenlake.runtime.reading.file_hashes import verified_bytes
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import (
    CARD,
    CONFIG,
    DATA,
    LEDGER,
    MANIFEST,
    TOKENIZER,
    Layout,
    ledger_unit,
)
from tokenlake.runtime.store.manifest import Manifest

OURS: Final = (MANIFEST, CARD, CONFIG, f"{DATA}/", f"{TOKENIZER}/", f"{LEDGER}/")
"""Names of a repository that belong to the version that is published there; all others are left alone."""


def is_published(path: str) -> bool:
    """Return whether a file of a version may leave its store.

    ::

        >>> is_published("tokenizer/tokenizer.json"), is_published("quarantine/00001.parquet")
        (True, False)
    """
    if path.startswith(f"{DATA}/"):
        return path.endswith(".parquet")
    if path.startswith(f"{LEDGER}/"):
        return ledger_unit(path) is not None
    return path in (MANIFEST, CARD, CONFIG) or path.startswith(f"{TOKENIZER}/")


def is_ours(path: str) -> bool:
    """Return whether a path of a repository is one that only a published version may have."""
    return any(path == name or (name.endswith("/") and path.startswith(name)) for name in OURS)


@final
@dataclass(frozen=True)
class PublishedFile:
    """A file to publish.

    Attributes:
        path: relative to the version, and to the repository.
        data: its verified bytes; None for a shard, which is read when it is sent.
    """

    path: str
    bytes: int
    sha256: str
    data: bytes | None = None

    @cached_property
    def blob(self) -> str | None:
        """Git's id of the bytes, by which the Hub lists small files; None where they are not held."""
        if self.data is None:
            return None
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data, usedforsecurity=False).hexdigest()

    def is_same(self, found: Any) -> bool:
        """Return whether a file of a repository (``RepoFile``) is this one, by size and by hash."""
        if found.size != self.bytes:
            return False
        return found.lfs.sha256 == self.sha256 if found.lfs else found.blob_id == self.blob


def differing(
    files: Iterable[PublishedFile], found: Mapping[str, Any], ours: Callable[[str], bool]
) -> list[str]:
    """Return what of a repository is not as in these files: paths missing, others of ours, or of other bytes."""
    wanted = {file.path: file for file in files}
    wrong = {path for path, file in wanted.items() if path not in found or not file.is_same(found[path])}
    return sorted(wrong | {path for path in found if ours(path) and path not in wanted})


@final
@dataclass(frozen=True)
class Published:
    """A version as it is published: its manifest, and all files by path.

    Attributes:
        left_out: files that the manifest lists and that stay in the store.
    """

    layout: Layout
    manifest: Manifest
    files: tuple[PublishedFile, ...]
    left_out: tuple[str, ...]

    @property
    def name(self) -> str:
        """``small v3``, for people."""
        return f"{self.layout.dataset} v{self.layout.version}"

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def texts(self) -> list[PublishedFile]:
        """The files whose bytes are held: all but the shards."""
        return [file for file in self.files if file.data is not None]

    @property
    def shards(self) -> list[PublishedFile]:
        return [file for file in self.files if file.data is None]

    def differing(self, found: Mapping[str, Any]) -> list[str]:
        """Return what of a repository is not as in this version: paths missing, others, or of other bytes."""
        return differing(self.files, found, is_ours)

    @classmethod
    def read(cls, store: ReadStore, dataset: str, version: int) -> Self:
        """Read everything of a version but its shards, verified.

        Raises:
            NotFoundError: there is no such version, or a file of it is missing.
            IntegrityError: a file is not what the manifest says.
        """
        layout = Layout(dataset, version)
        manifest = Catalog(store).manifest(dataset, version)
        raw = store.read(layout.manifest)
        if Manifest.from_bytes(raw, layout.manifest).sha256 != manifest.sha256:
            raise IntegrityError(f"{layout.manifest}: it changed while it was read; nothing may change it")
        listed = {path: entry for path, entry in manifest.other_files.items() if is_published(path)}
        texts = [
            PublishedFile(path, entry.bytes, entry.sha256, verified_bytes(store, layout, path, entry.sha256))
            for path, entry in listed.items()
        ]
        head = PublishedFile(MANIFEST, len(raw), hashlib.sha256(raw).hexdigest(), raw)
        shards = [PublishedFile(entry.path, entry.bytes, entry.sha256) for entry in manifest.files]
        left_out = tuple(path for path in manifest.other_files if path not in listed)
        ordered = sorted((head, *texts, *shards), key=lambda file: file.path)
        return cls(layout, manifest, tuple(ordered), left_out)

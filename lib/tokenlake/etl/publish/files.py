"""The files of a version that are published: those of an allow-list that are listed.

Published are the manifest, the card, the configuration, the tokenizer, the shards and
the ledger (hashes and counts of each unit, which the verification of a copy needs).
Never published are ``quarantine/`` (bad records, which are not for everybody),
``runs/`` (names of hosts, and times), ``claim.json``, and files that the manifest does
not list.
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
"""Names of a repository that belong to the version that is published there; all
others are left alone.
"""


def is_published(path: str) -> bool:
    """Return True if a file of a version may leave its store.

    ::

        >>> is_published("tokenizer/tokenizer.json"), is_published("quarantine/00001.parquet")
        (True, False)
    """
    # Folders of a version hold files of one kind; anything else in them is unknown.
    if path.startswith(f"{DATA}/"):
        return path.endswith(".parquet")
    if path.startswith(f"{LEDGER}/"):
        return ledger_unit(path) is not None
    return path in (MANIFEST, CARD, CONFIG) or path.startswith(f"{TOKENIZER}/")


def is_ours(path: str) -> bool:
    """Return True if only a published version may have a path of a repository."""
    for name in OURS:
        is_inside = name.endswith("/") and path.startswith(name)
        if path == name or is_inside:
            return True
    return False


@final
@dataclass(frozen=True)
class PublishedFile:
    """A file to publish.

    Attributes:
        path: Path relative to the version, and to the repository.
        bytes: Size of the file.
        sha256: Hash of the file.
        data: Verified bytes of the file; None for a shard, which is read when it is
            sent.
    """

    path: str
    bytes: int
    sha256: str
    data: bytes | None = None

    @cached_property
    def blob(self) -> str | None:
        """Git's id of the bytes; None for a file that is not in memory.

        The Hub lists small files by it. Git hashes a header with the size before the
        bytes.
        """
        if self.data is None:
            return None
        git_object = b"blob %d\0" % len(self.data) + self.data
        return hashlib.sha1(git_object, usedforsecurity=False).hexdigest()

    def is_same(self, repository_file: Any) -> bool:
        """Return True if a ``RepoFile`` has the same size and hash."""
        if repository_file.size != self.bytes:
            return False
        # The Hub keeps large files in LFS, by their SHA-256, and small files in git.
        if repository_file.lfs:
            return repository_file.lfs.sha256 == self.sha256
        return repository_file.blob_id == self.blob


def differing(
    files: Iterable[PublishedFile],
    repository_files: Mapping[str, Any],
    ours: Callable[[str], bool],
) -> list[str]:
    """Return the paths at which a repository differs from these files.

    Args:
        files: Files that the repository should hold.
        repository_files: Files of a commit, by path, as ``RepoFile``.
        ours: Function that returns True for a path that only these files may have.

    Returns:
        Sorted paths of missing files, files with other bytes, and additional files
        under paths of ours.
    """
    expected = {file.path: file for file in files}
    wrong_paths: set[str] = set()
    for path, file in expected.items():
        if path not in repository_files or not file.is_same(repository_files[path]):
            wrong_paths.add(path)
    for path in repository_files:
        if ours(path) and path not in expected:
            wrong_paths.add(path)
    return sorted(wrong_paths)


@final
@dataclass(frozen=True)
class Published:
    """A version as it is published.

    Attributes:
        layout: Names of the version's files.
        manifest: Manifest of the version.
        files: Files to publish, sorted by path.
        left_out: Paths that the manifest lists and that stay in the store.
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
        """Size of all files to publish."""
        return sum(file.bytes for file in self.files)

    @property
    def texts(self) -> list[PublishedFile]:
        """The files whose bytes are in memory: all but the shards."""
        return [file for file in self.files if file.data is not None]

    @property
    def shards(self) -> list[PublishedFile]:
        """The files whose bytes are read when they are sent."""
        return [file for file in self.files if file.data is None]

    def differing(self, repository_files: Mapping[str, Any]) -> list[str]:
        """Return the paths at which a repository differs from this version."""
        return differing(self.files, repository_files, is_ours)

    @classmethod
    def read(cls, store: ReadStore, dataset: str, version: int) -> Self:
        """Read and verify all files of a version except its shards.

        Raises:
            NotFoundError: The version does not exist, or one of its files is missing.
            IntegrityError: A file differs from its hash in the manifest.
        """
        layout = Layout(dataset, version)
        manifest = Catalog(store).manifest(dataset, version)
        # The bytes are read on their own: the sealed form is hashed otherwise than the
        # file.
        manifest_bytes = store.read(layout.manifest)
        if (
            Manifest.from_bytes(manifest_bytes, layout.manifest).sha256
            != manifest.sha256
        ):
            raise IntegrityError(
                f"{layout.manifest}: it changed while it was read; files of a version must not change"
            )

        # The manifest proves the other files. Small ones are read now, shards later.
        manifest_sha256 = hashlib.sha256(manifest_bytes).hexdigest()
        files = [
            PublishedFile(
                MANIFEST, len(manifest_bytes), manifest_sha256, manifest_bytes
            )
        ]
        left_out: list[str] = []
        for path, entry in manifest.other_files.items():
            if is_published(path):
                file_bytes = verified_bytes(store, layout, path, entry.sha256)
                files.append(PublishedFile(path, entry.bytes, entry.sha256, file_bytes))
            else:
                left_out.append(path)
        for shard in manifest.files:
            files.append(PublishedFile(shard.path, shard.bytes, shard.sha256))
        files.sort(key=lambda file: file.path)
        return cls(layout, manifest, tuple(files), tuple(left_out))

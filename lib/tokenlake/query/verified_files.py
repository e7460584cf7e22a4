"""Files of versions on this machine whose bytes were compared with their manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.base.threads import in_order
from tokenlake.errors import NotFoundError
from tokenlake.runtime.reading.file_hashes import require_same
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.damage import damaged_file
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import FileEntry
from tokenlake.runtime.store.local import LocalStore

OnVerified = Callable[[int], None]
"""Function that is called with the size of each intact file, from several threads."""

_THREADS: Final = 4  # that hash or copy files


@final
@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files of a store's versions, hashed, and on this machine.

    Attributes:
        store: Store of the files. Files of a folder are hashed where they are; others
            are copied.
        copies: Folder for the copies, which its owner removes.
        on_verified: Function that is called for each intact file.
    """

    store: ReadStore
    copies: Path
    on_verified: OnVerified | None = None

    def paths(self, layout: Layout, hashes: Mapping[str, str]) -> dict[str, Path]:
        """Return the local paths of files of a version.

        Args:
            layout: Layout of the version.
            hashes: Path relative to the version -> SHA-256 in hexadecimal digits.

        Raises:
            IntegrityError: A file is missing, or its bytes differ from those that were
                committed.
            StoreError: The store cannot be read.
        """

        def verify(item: tuple[str, str]) -> tuple[str, Path]:
            path, expected_sha256 = item
            key = layout.key(path)
            # A file that is listed and missing is damage, and not a wrong name.
            try:
                local_path, entry = self._hashed(key, expected_sha256)
            except NotFoundError as error:
                raise damaged_file(layout, path, "is missing", file=key) from error
            require_same(layout, path, expected_sha256, entry.sha256)
            if self.on_verified:
                self.on_verified(entry.bytes)
            return path, local_path

        # hashlib releases the GIL, so that threads hash as fast as the disk reads.
        return dict(in_order(verify, list(hashes.items()), _THREADS))

    def _hashed(self, key: str, expected_sha256: str) -> tuple[Path, FileEntry]:
        """Return the local path of a file, and its size and hash.

        A remote file is copied first.
        """
        if isinstance(self.store, LocalStore):
            with self.store.open(key) as stream:
                digest = hashlib.file_digest(cast("Any", stream), "sha256")
                size = stream.tell()
            entry = FileEntry(bytes=size, sha256=digest.hexdigest())
            return self.store.local_path(key), entry

        copy_path = self.copies / key
        copy_path.parent.mkdir(parents=True, exist_ok=True)
        entry = self.store.download(key, copy_path)
        if entry.sha256 != expected_sha256:
            # One retry: the bytes may have changed on their way.
            copy_path.unlink()
            entry = self.store.download(key, copy_path)
        return copy_path, entry

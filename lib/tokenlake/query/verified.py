"""Bytes that are what the manifest says, or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.reading.verified import MEND, require_same
from tokenlake.storage import Digest, Layout, LocalStore, ReadStore

OnVerified = Callable[[int], None]
"""Called with the size of each file that was found whole; from several threads."""

_THREADS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files of a store's versions, hashed, and on this machine.

    Attributes:
        store: they are read from; a folder's are hashed where they are, others are copied.
        copies: a folder for these copies, whose owner removes it.
        on_verified: told of each file.
    """

    store: ReadStore
    copies: Path
    on_verified: OnVerified | None = None

    def paths(self, layout: Layout, hashes: Mapping[str, str]) -> dict[str, Path]:
        """Return the local paths of files of a version.

        Args:
            hashes: path relative to the version -> sha256 (hex).

        Raises:
            IntegrityError: a file is missing or its bytes are not what was committed.
            StoreError: the store cannot be read.
        """

        def check(item: tuple[str, str]) -> tuple[str, Path]:
            path, expected = item
            key = layout.key(path)
            try:
                where, found = (
                    self._local(key) if isinstance(self.store, LocalStore) else self._copied(key, expected)
                )
            except NotFoundError as error:
                raise IntegrityError(
                    f"{key}: the file is missing; the manifest lists it. {MEND}", file=key
                ) from error
            require_same(key, expected, found.sha256)
            if self.on_verified:
                self.on_verified(found.bytes)
            return path, where

        # hashlib releases the GIL: threads hash as fast as the disk reads
        with ThreadPoolExecutor(_THREADS) as pool:
            return dict(pool.map(check, hashes.items()))

    def _local(self, key: str) -> tuple[Path, Digest]:
        with self.store.open(key) as stream:
            sha256 = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
            size = stream.tell()
        return cast("LocalStore", self.store).local_path(key), Digest(size, sha256)

    def _copied(self, key: str, expected: str) -> tuple[Path, Digest]:
        """Copy a file, once more where the first copy is not what it should be: it may have changed on its way."""
        path = self.copies / key
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self.store.download(key, path)
        if found.sha256 != expected:
            path.unlink()
            found = self.store.download(key, path)
        return path, found

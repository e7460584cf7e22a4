"""Bytes that are what the manifest says, or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.reading.verified import MEND, require_same
from tokenlake.storage import Layout, ReadStore, Store

OnVerified = Callable[[int], None]
"""Called with the size of each file that was found whole; from several threads."""

_THREADS: Final = 4


def verified_paths(
    store: ReadStore, layout: Layout, hashes: Mapping[str, str], on_verified: OnVerified | None = None
) -> dict[str, Path]:
    """Hash files of a version and return their local paths.

    Args:
        hashes: path relative to the version -> sha256 (hex).

    Raises:
        IntegrityError: a file is missing or its bytes are not what was committed.
        StoreError: the store is not of this machine.
    """
    if not isinstance(store, Store):
        raise StoreError(
            f"{store.url} is not on this machine, and SQL reads local files; copy the version here"
        )

    def check(item: tuple[str, str]) -> tuple[str, Path]:
        path, expected = item
        key = layout.key(path)
        try:
            with store.open(key) as stream:
                got = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
                size = stream.tell()
        except NotFoundError as error:
            raise IntegrityError(
                f"{key}: the file is missing; the manifest lists it. {MEND}", file=key
            ) from error
        require_same(key, expected, got)
        if on_verified:
            on_verified(size)
        return path, store.local_path(key)

    # hashlib releases the GIL: threads hash as fast as the disk reads
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(pool.map(check, hashes.items()))

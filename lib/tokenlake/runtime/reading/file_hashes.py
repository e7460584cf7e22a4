"""Small files of a version, compared with the hashes that were committed."""

from __future__ import annotations

import hashlib

from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.damage import damaged_file
from tokenlake.runtime.store.layout import Layout


def verified_bytes(store: ReadStore, layout: Layout, path: str, expected: str) -> bytes:
    """Return the content of a small file of a version.

    Args:
        store: Store of the version.
        layout: Layout of the version.
        path: Path of the file in the version.
        expected: Committed sha256 of the file, hex.

    Raises:
        IntegrityError: The sha256 of the file is another one.
    """
    key = layout.key(path)
    data = store.read(key)
    require_same(layout, path, expected, hashlib.sha256(data).hexdigest())
    return data


def require_same(layout: Layout, path: str, expected: str, got: str) -> None:
    """Raise IntegrityError if the sha256 of a file is not the committed one.

    Args:
        layout: Layout of the version.
        path: Path of the file in the version.
        expected: Committed sha256, hex.
        got: Sha256 of the file, hex.
    """
    if expected != got:
        raise damaged_file(
            layout,
            path,
            f"was changed after it was committed: sha256 is {got}, the manifest records {expected}",
            file=layout.key(path),
            expected=expected,
            got=got,
        )

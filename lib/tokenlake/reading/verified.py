"""Small files of a version, that are what the manifest says, or an error."""

from __future__ import annotations

import hashlib
from typing import Final

from tokenlake.errors import IntegrityError
from tokenlake.storage import Layout, ReadStore

MEND: Final = "Run `tokenlake verify` for the whole picture, restore the file from a copy or build it again."


def verified_bytes(store: ReadStore, layout: Layout, path: str, expected: str) -> bytes:
    """Read one small file of a version; IntegrityError if its sha256 is not ``expected``."""
    key = layout.key(path)
    data = store.read(key)
    require_same(key, expected, hashlib.sha256(data).hexdigest())
    return data


def require_same(key: str, expected: str, got: str) -> None:
    """Raise IntegrityError if a file's sha256 (hex) is not the one that was committed."""
    if expected != got:
        raise IntegrityError(
            f"{key}: the file was changed after it was committed: sha256 is {got}, the manifest says {expected}. "
            f"{MEND}",
            file=key,
            expected=expected,
            got=got,
        )

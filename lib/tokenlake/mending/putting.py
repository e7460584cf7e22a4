"""Good bytes, and putting them where damaged ones are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tokenlake.errors import NotFoundError, StoreError
from tokenlake.mending.damage import Damage
from tokenlake.mending.report import How, Mended
from tokenlake.storage import HashingFile, Store
from tokenlake.storage.base import ReadStore


@final
@dataclass(frozen=True, slots=True)
class Good:
    """Where the bytes of a damaged file are to be had.

    Attributes:
        how, note: as of :class:`tokenlake.mending.report.Mended`.
        key: in the store itself, or in the workshop's where one is given,
        workshop: or None,
        data: or the bytes themselves.
    """

    how: How
    note: str
    key: str = ""
    workshop: ReadStore | None = None
    data: bytes = b""


def mended(damage: Damage, how: How, note: str) -> Mended:
    """Return what a report says of a damaged file."""
    return Mended(damage.version, damage.path, damage.word, how, note)


def put(store: Store, damage: Damage, good: Good) -> None:
    """Put good bytes in the place of a damaged file, whole and at once.

    Raises:
        VersionConflictError: what is there now is neither what was seen nor what is to be there.
        StoreError: the bytes cannot be had, or cannot be written.
        IntegrityError: the bytes are not good.
    """
    if good.key and good.workshop is None:
        # Linked where the storage can: versions that shared a file share it again.
        store.link(good.key, damage.key, damage.sha256, replace_orphan=lambda: _seen(store, damage))
        return
    temp = store.temp(damage.layout.prefix)
    try:
        if good.workshop is not None:
            temp.unlink()
            good.workshop.download(good.key, temp)
            expected = damage.sha256
        else:
            expected = write(temp, good.data)
        store.replace(temp, damage.key, damage.sha256 or expected, damage.found)
    finally:
        temp.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> str:
    """Write bytes to a temporary file; return their sha256 (hex)."""
    with HashingFile(path) as sink:
        sink.write(data)
    return sink.sha256


def is_good(data: bytes | None, damage: Damage) -> bool:
    """Say whether bytes are what a file should hold."""
    return data is not None and hashlib.sha256(data).hexdigest() == damage.sha256


def _seen(store: ReadStore, damage: Damage) -> bool:
    """Whether the damage is still what was seen: asked at the last moment, with other writers locked out."""
    try:
        return store.digest(damage.key).sha256 == damage.found
    except (NotFoundError, StoreError):
        return False

"""What was begun below a URL and never became an object: uploads in parts, trials, files in the scratch folder."""

from __future__ import annotations

from typing import Final

from tokenlake.errors import StoreError
from tokenlake.store.base import Leftover
from tokenlake.store.remote.connection import Connection
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.listing import listed
from tokenlake.store.remote.preflight import PROBE
from tokenlake.store.remote.scratch import Scratch
from tokenlake.store.remote.url import folder_of, key_of, url_of

_UPLOAD: Final = "upload:"
_TRIAL: Final = "trial:"


def leftovers(connection: Connection, scratch: Scratch, prefix: str) -> list[Leftover]:
    """Return what is left below the folder `prefix` ("" = all), sorted by name.

    GCS needs no uploads in parts, and has none.
    """
    root = connection.url
    uploads = on_loop(connection.writes().uploads(folder_of(root, prefix)))
    found = [
        Leftover(f"{_UPLOAD}{one.id}:{key_of(root, one.path)}", 0, one.begun, dead=False) for one in uploads
    ]
    if not prefix:
        found += _trials(connection)
    return sorted([*found, *scratch.leftovers(prefix)], key=lambda one: one.name)


def remove(connection: Connection, scratch: Scratch, leftover: Leftover) -> bool:
    """Remove what :func:`leftovers` named; False if it is gone, StoreError for anything else."""
    if (removed := scratch.remove(leftover.name)) is not None:
        return removed
    if leftover.name.startswith(_UPLOAD):
        upload, _, key = leftover.name.removeprefix(_UPLOAD).partition(":")
        return on_loop(connection.writes().abort(url_of(connection.url, key), upload))
    if leftover.name.startswith(_TRIAL + PROBE):
        trial = leftover.name.removeprefix(_TRIAL)
        there = any(one.name == leftover.name for one in _trials(connection))
        on_loop(connection.writes().delete(url_of(connection.url, trial)))
        return there
    raise StoreError(
        f"{leftover.name} is no upload and no temporary file; nothing was removed", key=leftover.name
    )


def _trials(connection: Connection) -> list[Leftover]:
    """Return what preflights left behind whose process died."""
    found = listed(connection.objects(), url_of(connection.url, PROBE), connection.patience, flat=True)
    return [
        Leftover(f"{_TRIAL}{key_of(connection.url, one.path)}", one.size, one.modified or 0.0, dead=False)
        for one in found
        if not one.path.endswith("/")
    ]

"""Closed numbers: a few bytes where a manifest would be, so that none ever can be.

A version appears when its ``manifest.json`` is created, create-only; that one request is all that a committing build
has left to do, and nothing but an object of that name can stop it. So before ``gc`` deletes the files of a claim that
is ``committing``, it creates that object itself: a sealed note that the number is closed. Of the two creations one
fails, whatever the clocks say and however long a process slept. The note stays, as the number stays taken.

A note is no manifest: who looks for versions tells them apart by their size first, for no manifest is as short, and by
the seal then. A manifest that was cut or damaged is none of both, and an error as ever.
"""

from __future__ import annotations

from typing import Final

from tokenlake.errors import IntegrityError
from tokenlake.sealed import FORMAT_VERSION, seal, unseal
from tokenlake.storage.layout import Layout

#: Bytes that a note has at most; the shortest manifest has more than twice as many.
MOST_BYTES: Final = 400


def closing_note(layout: Layout) -> bytes:
    """Return what is stored in the place of the manifest of a closed number."""
    return seal(
        {
            "format_version": FORMAT_VERSION,
            "dataset": layout.dataset,
            "version": layout.version,
            "closed": True,
        }
    )


def is_closing_note(data: bytes, layout: Layout) -> bool:
    """Say whether `data`, found in the place of a manifest, closes this very number."""
    if len(data) > MOST_BYTES:
        return False
    try:
        unseal(data, layout.manifest)
    except IntegrityError:
        return False
    return data == closing_note(layout)

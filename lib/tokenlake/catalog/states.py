"""What became of a version's number: committed, being built, or given up and swept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tokenlake.catalog.claims import Claim
from tokenlake.catalog.closing import MOST_BYTES, is_closing_note
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout


@final
@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A number that is taken; committed means that its manifest exists, swept that it never will."""

    version: int
    committed: bool
    swept: bool = False

    def __str__(self) -> str:
        state = "" if self.committed else " (swept)" if self.swept else " (unfinished)"
        return f"v{self.version}{state}"


def state_of(store: ReadStore, layout: Layout) -> VersionInfo | None:
    """Return what became of a number; None where it is free. A damaged claim is one of a build that goes on."""
    size = store.size(layout.manifest)
    if size is not None:
        closed = _is_closed(store, layout, size)
        return VersionInfo(layout.version, not closed, closed)
    try:
        claim = Claim.from_bytes(store.read(layout.claim), layout.claim)
    except NotFoundError:
        return None
    except IntegrityError:  # who resumes or sweeps it looks closer
        return VersionInfo(layout.version, False)
    return VersionInfo(layout.version, False, claim.state == "swept")


def is_committed(store: ReadStore, layout: Layout) -> bool:
    """Say whether a version exists."""
    size = store.size(layout.manifest)
    return size is not None and not _is_closed(store, layout, size)


def _is_closed(store: ReadStore, layout: Layout, size: int) -> bool:
    """Say whether what is in the place of a manifest says that there never will be one."""
    return size <= MOST_BYTES and is_closing_note(store.read(layout.manifest), layout)

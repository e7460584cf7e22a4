"""Claims (``claim.json``): the fingerprint that builds a version, and its state.

A claim is created once and changes at most twice. Each change is a compare-and-swap, so
that of two processes that change it one fails and learns of the other::

    building ──commit──> committing ──the manifest──> (a version)
        └────────gc────────┴─> swept: the number stays taken, and never becomes a version

A build that commits turns its claim from ``building`` into ``committing`` and then
creates the manifest. ``gc`` turns a ``building`` claim that nobody works on into
``swept`` and then deletes. A ``committing`` claim has one step left, which no swap of
the claim can stop; there ``gc`` first takes the place of the manifest itself.

A version appears when its ``manifest.json`` is created, create-only. That one request
is all that a committing build has left to do, and only an object of that name can stop
it. So before ``gc`` deletes the files of a ``committing`` claim, it creates that object
itself: a closing note, sealed, which says that the number is closed. One of the two
creations fails, whatever the clocks say and however long a process slept. The note
stays, as the number stays taken.

A closing note is not a manifest. Readers tell them apart by the size first, because
every manifest is longer, and then by the seal. A manifest that was cut or damaged is
neither, and is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Self, final

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.sealed import (
    FORMAT_VERSION,
    DatasetName,
    Positive,
    Sealed,
    Sha256,
    seal,
)

Status = Literal["new", "resumed", "committed"]
State = Literal["building", "committing", "swept"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Sealed):
    """The claim of a build to a version number.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        fingerprint: Fingerprint of the build. It alone decides which build may use the
            claim.
        meta: Free information, such as name, release and start of the build.
        state: ``building`` (not written to the file), ``committing`` or ``swept``.
    """

    FREE: ClassVar = ("meta",)

    dataset: DatasetName
    version: Positive
    fingerprint: Sha256
    meta: dict[str, Any]
    state: State = "building"

    def turned(self, state: State) -> Self:
        """Return the same claim in another state."""
        return replace(self, state=state)


@final
@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The version that a build should use.

    Attributes:
        version: Number of the version.
        status: ``new``, ``resumed`` (half built by an equal build) or ``committed``.
    """

    version: int
    status: Status


MOST_BYTES: Final = 400
"""Most bytes of a closing note; the shortest manifest has more than twice as many."""


def closing_note(layout: Layout) -> bytes:
    """Return the object that takes the place of the manifest of a closed number."""
    return seal(
        {
            "format_version": FORMAT_VERSION,
            "dataset": layout.dataset,
            "version": layout.version,
            "closed": True,
        }
    )


def is_closing_note(data: bytes, layout: Layout) -> bool:
    """Return whether the object in the place of a manifest closes this number."""
    return data == closing_note(layout)


@final
@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A number that is taken.

    Attributes:
        version: The number.
        committed: The version has a manifest.
        swept: The version will never have a manifest.
    """

    version: int
    committed: bool
    swept: bool = False

    def __str__(self) -> str:
        if self.committed:
            return f"v{self.version}"
        if self.swept:
            return f"v{self.version} (swept)"
        return f"v{self.version} (unfinished)"


def state_of(store: ReadStore, layout: Layout) -> VersionInfo | None:
    """Return the state of a number; None if it is free.

    A damaged claim counts as unfinished.
    """
    # The manifest decides, if there is one. Its size costs no bytes in most cases.
    manifest_bytes = store.size(layout.manifest)
    if manifest_bytes is not None:
        is_closed = _is_closed(store, layout, manifest_bytes)
        return VersionInfo(layout.version, committed=not is_closed, swept=is_closed)
    # Without a manifest, the claim says whether the number was given up.
    try:
        claim = Claim.from_bytes(store.read(layout.claim), layout.claim)
    except NotFoundError:
        return None
    except IntegrityError:  # reported when the build is resumed or swept
        return VersionInfo(layout.version, committed=False)
    return VersionInfo(layout.version, committed=False, swept=claim.state == "swept")


def is_committed(store: ReadStore, layout: Layout) -> bool:
    """Return whether a version has a manifest."""
    # The bytes are read only if the object is as small as a note.
    manifest_bytes = store.size(layout.manifest)
    return manifest_bytes is not None and not _is_closed(store, layout, manifest_bytes)


def _is_closed(store: ReadStore, layout: Layout, size: int) -> bool:
    """Return whether the object in the place of a manifest is a closing note.

    Args:
        store: The store.
        layout: The version.
        size: Bytes of the object.
    """
    return size <= MOST_BYTES and is_closing_note(store.read(layout.manifest), layout)

"""The second copy of a manifest, from which a damaged manifest is restored.

A commit writes the copy before the manifest, in equal bytes, to
``runs/manifest-copy.json``. Versions of older releases have no copy: they are read as
always, `verify` says in a note that the copy is missing, and `repair` writes it as long
as the manifest is intact.

A copy restores a manifest only if it proves itself. Its seal must hold, and it must be
of this version. The claim, the tags and the versions that were made from this one must
not name another manifest.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout, tag_of, tags_prefix
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.tags import stored_tag

CopyState: TypeAlias = Literal["intact", "missing", "damaged", "another"]
"""State of a copy beside an intact manifest. ``another``: it is sealed and another
manifest, so that one of the two was edited, and nobody can tell which.
"""


def copy_state(store: ReadStore, layout: Layout) -> CopyState:
    """Compare the copy with an intact manifest.

    Raises:
        StoreError: The copy or the manifest cannot be read.
    """
    try:
        # Equal bytes need no further check. Otherwise the seal tells damage from
        # another manifest.
        copy = store.read(layout.manifest_copy)
        if copy == store.read(layout.manifest):
            return "intact"
        Manifest.from_bytes(copy, layout.manifest_copy)
    except NotFoundError:
        return "missing"
    except IntegrityError:
        return "damaged"
    return "another"


def restored_manifest(store: ReadStore, layout: Layout) -> tuple[Manifest, bytes]:
    """Return the manifest of a version and its bytes, from its copy.

    Raises:
        IntegrityError: There is no copy, or it does not prove to be the manifest that
            was committed. The message has the reason.
    """
    # 1. The copy must be readable, and its seal must hold.
    try:
        data = store.read(layout.manifest_copy)
        manifest = Manifest.from_bytes(data, layout.manifest_copy)
    except NotFoundError:
        reason = f"it has no second copy ({layout.manifest_copy}), like versions of older releases"
        raise _not_restored(layout, reason) from None
    except (IntegrityError, StoreError) as error:
        raise _not_restored(
            layout, f"its second copy cannot be used: {error}"
        ) from error
    # 2. It must be of this version: a folder may have been copied under another name.
    if (manifest.dataset, manifest.version) != (layout.dataset, layout.version):
        copied = f"{manifest.dataset}@v{manifest.version}"
        raise _not_restored(
            layout,
            f"its second copy {layout.manifest_copy} is the manifest of {copied}",
        )
    # 3. Nothing else in the store may contradict it. A seal alone proves only that the
    # copy is a manifest as somebody wrote it.
    _check_claim(store, layout, manifest)
    recorded_seals = _recorded_seals(store, layout)
    if recorded_seals and manifest.sha256 not in recorded_seals:
        raise _not_restored(
            layout,
            f"its second copy {layout.manifest_copy} has sha256 {manifest.sha256}; expected "
            f"{' or '.join(sorted(recorded_seals))}, by tags or by versions made from it",
        )
    return manifest, data


def _check_claim(store: ReadStore, layout: Layout, manifest: Manifest) -> None:
    """Require that an intact claim is of the build of the manifest.

    A damaged or missing claim says nothing.
    """
    try:
        claim = Catalog(store).read_claim(layout.dataset, layout.version)
    except (IntegrityError, StoreError):
        return
    if claim is None:
        return
    if claim.state == "swept":
        raise _not_restored(
            layout, f"{layout.claim} records that the version was removed"
        )
    if claim.fingerprint != manifest.fingerprint:
        raise _not_restored(
            layout,
            f"its second copy {layout.manifest_copy} is of the build {manifest.fingerprint}; expected "
            f"{claim.fingerprint}, by {layout.claim}",
        )


def _recorded_seals(store: ReadStore, layout: Layout) -> set[str]:
    """Return the seals of the version's manifest that other records of the store name.

    These are tags, and the versions that were made from this one.
    """
    seals: set[str] = set()
    for info in store.list(tags_prefix(layout.dataset)):
        try:
            # A damaged tag names nothing; it is reported by verification.
            stored = stored_tag(store, layout.dataset, tag_of(info.key) or "")
        except (IntegrityError, StoreError):
            continue
        if stored is not None and stored[0].version == layout.version:
            seals.add(stored[0].manifest_sha256)
    # Every version records the seals of its parents.
    catalog = Catalog(store)
    for child_layout in catalog.committed_versions():
        try:
            child = catalog.manifest(child_layout.dataset, child_layout.version)
        except (IntegrityError, StoreError):
            continue
        for parent in child.parents:
            if (parent.dataset, parent.version) == (layout.dataset, layout.version):
                seals.add(parent.sha256)
    return seals


def _not_restored(layout: Layout, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{layout.manifest} is damaged and cannot be restored: {reason}. Nothing was changed. Restore it from a "
        "backup; or build the version again under another name, and remove this one with `tokenlake rm`",
        file=layout.manifest,
    )

"""A build's hold on its version: still ours, or swept while we slept; and from a claim to a commit.

What is guaranteed, whatever process dies, sleeps or is slow, and whatever the clocks say: of a build that commits and
a ``gc`` that sweeps the same version one succeeds and the other changes nothing that counts.

- ``gc`` deletes nothing before the claim says ``swept``, and a swept claim never changes again. A commit first turns
  the claim from the very bytes that it read into ``committing``. Both are compare-and-swap: where the commit's
  succeeds, nothing was deleted until then.
- From ``committing`` on the claim no longer stops anybody, as a process may sleep between its swap and its manifest
  longer than any grace period. So ``gc`` takes such a claim only after it created a closing note in the place of the
  manifest (:mod:`tokenlake.catalog.closing`). The manifest is created there, create-only: the note fails, or the
  manifest does.
- Equal builds of one version do the same swap and create the same manifest; the later one finds both done.

So a manifest that is visible names files that no sweep deletes, and a swept number never has a manifest.
"""

from __future__ import annotations

from tokenlake.catalog import Catalog, Claim
from tokenlake.catalog.closing import is_closing_note
from tokenlake.errors import NotFoundError, VersionConflictError
from tokenlake.manifest import Manifest
from tokenlake.storage.base import Store
from tokenlake.storage.layout import Layout


def require_held(store: Store, layout: Layout, fingerprint: str) -> tuple[Claim, bytes]:
    """Return the claim of our version, and its bytes.

    Raises:
        VersionConflictError: it is gone, another build's, or swept.
        IntegrityError: it is damaged.
    """
    found = Catalog(store).stored_claim(layout.dataset, layout.version)
    if found is None or found[0].fingerprint != fingerprint or found[0].state == "swept":
        raise _lost(layout)
    return found


def publish_manifest(store: Store, layout: Layout, manifest: Manifest) -> None:
    """Turn our claim into a commit, and make the version visible; what was done before is done.

    Raises:
        VersionConflictError: gc swept the version, or another writer committed something else.
    """
    claim, seen = require_held(store, layout, manifest.fingerprint)
    try:
        store.swap(layout.claim, claim.turned("committing").to_bytes(), seen)
    except VersionConflictError:
        # An equal build's swap says "equal" and comes not here.
        require_held(store, layout, manifest.fingerprint)
        raise
    try:
        store.put_new(layout.manifest, manifest.to_bytes())
    except VersionConflictError as error:
        if _is_closed(store, layout):
            raise _lost(layout) from error
        raise


def _is_closed(store: Store, layout: Layout) -> bool:
    try:
        return is_closing_note(store.read(layout.manifest), layout)
    except NotFoundError:
        return False


def _lost(layout: Layout) -> VersionConflictError:
    return VersionConflictError(
        f"{layout.claim} is gone, swept or another build's: nothing under {layout.prefix} changed for the grace period "
        "of gc, or somebody removed it. Nothing was committed; run the build again: it begins a new version.",
        key=layout.claim,
    )

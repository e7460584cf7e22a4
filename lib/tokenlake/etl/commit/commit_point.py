"""The commit of a version: its files are checked, and its manifest is published."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tokenlake.errors import (
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.etl.commit.manifest_draft import draft_manifest
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.reports.card import render_card
from tokenlake.etl.shared_plan.published import remove_plan
from tokenlake.runtime.store.base import Store, require_digest
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.claims import Claim, is_closing_note
from tokenlake.runtime.store.damage import require_sizes
from tokenlake.runtime.store.layout import DATA, LEDGER, QUARANTINE, TOKENIZER, Layout
from tokenlake.runtime.store.ledger import FileEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest


def require_held(store: Store, layout: Layout, fingerprint: str) -> tuple[Claim, bytes]:
    """Return the claim of a version, and its bytes.

    Args:
        store: Store of the version.
        layout: Layout of the version.
        fingerprint: Identity of the build that must hold the claim.

    Raises:
        VersionConflictError: The claim is gone, another build's, or swept.
        IntegrityError: It is damaged.
    """
    stored = Catalog(store).stored_claim(layout.dataset, layout.version)
    if stored is None:
        raise _lost(layout)
    claim, _ = stored
    if claim.fingerprint != fingerprint or claim.state == "swept":
        raise _lost(layout)
    return stored


def _lost(layout: Layout) -> VersionConflictError:
    """Return the error for a claim that this build has lost."""
    return VersionConflictError(
        f"{layout.claim} no longer exists or belongs to another build: gc removed it, because nothing under "
        f"{layout.prefix} changed during the grace period, or somebody else did. Nothing was committed; run the build "
        "again: it starts a new version.",
        key=layout.claim,
    )


def publish_preamble(store: Store, plan: Plan, layout: Layout) -> None:
    """Publish the files that workers and readers need besides the data."""
    for path, data in plan.preamble().items():
        # An interrupted run of another release may have left other bytes: the manifest
        # decides what counts.
        store.put_new(layout.key(path), data, replace_orphan=True)


def publish_manifest(store: Store, layout: Layout, manifest: Manifest) -> None:
    """Change the claim into a commit, and make the version visible.

    Steps that were done before are not repeated. The second copy of the manifest is
    written first: a version that is visible has both.

    Raises:
        VersionConflictError: gc swept the version, or another writer committed
            something else.
    """
    # 1. Claim: from here on, gc needs a closing note to sweep the version.
    claim, claim_bytes = require_held(store, layout, manifest.fingerprint)
    try:
        store.swap(layout.claim, claim.turned("committing").to_bytes(), claim_bytes)
    except VersionConflictError:
        # The swap of an equal build writes the same bytes, and raises nothing.
        require_held(store, layout, manifest.fingerprint)
        raise

    # 2. The copy, then the manifest, which is the commit.
    manifest_bytes = manifest.to_bytes()
    try:
        # An equal build of another release may have left its own copy here, or may have
        # committed.
        store.put_new(
            layout.manifest_copy,
            manifest_bytes,
            replace_orphan=lambda: not store.exists(layout.manifest),
        )
        store.put_new(layout.manifest, manifest_bytes)
    except VersionConflictError as error:
        # A closing note in the place of the manifest says that gc was first.
        with contextlib.suppress(NotFoundError):
            if is_closing_note(store.read(layout.manifest), layout):
                raise _lost(layout) from error
        raise

    # 3. The copy must be that of the manifest.
    if store.read(layout.manifest_copy) != manifest_bytes:
        # Another build replaced the copy between the two writes, and cannot commit any
        # more.
        store.put_new(layout.manifest_copy, manifest_bytes, replace_orphan=True)


def commit_version(
    store: Store,
    plan: Plan,
    layout: Layout,
    records: Sequence[UnitRecord],
    filed: Mapping[int, FileEntry] = MappingProxyType({}),
) -> Manifest:
    """Check the account of a build, and publish its card and its manifest.

    Args:
        store: Store of the version.
        plan: Plan of the build.
        layout: Layout of the version.
        records: Records of all units, in plan order.
        filed: Size and hash of the files of records, by unit, as far as they are known.

    Raises:
        AccountError: The account does not balance; nothing is visible.
        VersionConflictError: gc swept the version, or another writer committed
            something else.
    """
    require_held(store, layout, plan.fingerprint)
    try:
        written_files = _written_files(plan, layout, records, filed)
        return _commit(store, plan, layout, records, written_files)
    except (StoreError, IntegrityError):
        # A file that gc deleted causes many errors. The check of the claim raises the
        # one that names the cause.
        require_held(store, layout, plan.fingerprint)
        raise


def _commit(
    store: Store,
    plan: Plan,
    layout: Layout,
    records: Sequence[UnitRecord],
    written_files: Mapping[str, FileEntry],
) -> Manifest:
    """Check the files and the account, and publish card and manifest."""
    # 1. The files that the version consists of.
    remaining_files = _tidy(store, layout, written_files)
    # Temporary names again: a worker whose parent was killed outlives it by a moment,
    # perhaps past the first sweep.
    store.sweep_temp(layout.prefix)

    # 2. The manifest without the card, which is made from it. The shards are listed by
    #    their units.
    all_files = {**written_files, **remaining_files}
    other_paths = [path for path in all_files if not path.startswith(f"{DATA}/")]
    other_files = {path: all_files[path] for path in other_paths}
    draft = draft_manifest(plan, layout.version, records, _sorted(other_files))
    draft.check(layout.manifest)

    # 3. The card, and the manifest with its hash.
    card = render_card(draft).encode()
    # An equal build of another release may have committed meanwhile: its card stays.
    store.put_new(
        layout.card, card, replace_orphan=lambda: not store.exists(layout.manifest)
    )
    other_files[layout.path(layout.card)] = FileEntry.of(card)
    manifest = replace(draft, other_files=_sorted(other_files))
    publish_manifest(store, layout, manifest)

    # The version is visible, and nobody reads its shared plan any more.
    with contextlib.suppress(StoreError):
        remove_plan(store, layout)
    return manifest


def _sorted(files: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """Return files in the order of their paths, so that equal builds are equal."""
    return dict(sorted(files.items()))


def _written_files(
    plan: Plan,
    layout: Layout,
    records: Sequence[UnitRecord],
    filed: Mapping[int, FileEntry],
) -> dict[str, FileEntry]:
    """Return the size and hash of every file except card and manifest, by path.

    They are those of the bytes that were written.
    """
    files: dict[str, FileEntry] = {}
    for path, content in plan.preamble().items():
        files[path] = FileEntry.of(content)
    for record in records:
        for part in record.parts:
            files[part.path] = FileEntry(bytes=part.bytes, sha256=part.sha256)
        # A record that an earlier session filed has the bytes that it gives again.
        entry = filed.get(record.unit)
        if entry is None:
            entry = FileEntry.of(record.to_bytes())
        files[layout.path(layout.ledger(record.unit))] = entry
        if record.quarantine is not None:
            quarantine = record.quarantine
            files[quarantine.path] = FileEntry(
                bytes=quarantine.bytes, sha256=quarantine.sha256
            )
    return files


def _tidy(
    store: Store, layout: Layout, written_files: Mapping[str, FileEntry]
) -> dict[str, FileEntry]:
    """Compare the version's folders with the written files, and delete leftover data.

    A listing has names and sizes, which is enough: each object was read back when it
    was published. A file that the listing does not confirm is read. So is the preamble,
    the one thing that another release may have written over.

    Returns:
        Size and hash of the files that no unit of this build wrote, and that stay.

    Raises:
        NotFoundError, IntegrityError: A written file is missing, or was changed.
    """
    # 1. One listing of each folder.
    sizes: dict[str, int] = {}
    for folder in (DATA, QUARANTINE, LEDGER, TOKENIZER):
        for info in store.list(layout.key(folder)):
            sizes[layout.path(info.key)] = info.size

    # 2. Files that no unit wrote.
    remaining_files: dict[str, FileEntry] = {}
    for path in sizes.keys() - written_files.keys():
        if path.startswith((f"{DATA}/", f"{QUARANTINE}/")):
            # A unit that was built again wrote fewer files; another writer may have
            # deleted the rest already.
            with contextlib.suppress(NotFoundError):
                store.delete(layout.key(path))
        else:
            remaining_files[path] = store.digest(layout.key(path))

    # 3. Files that units wrote.
    for path, entry in written_files.items():
        was_read_back = path.startswith((f"{DATA}/", f"{QUARANTINE}/", f"{LEDGER}/"))
        if not was_read_back or sizes.get(path) != entry.bytes:
            require_digest(store, layout.key(path), entry)
    return remaining_files


def committed_manifest(catalog: Catalog, layout: Layout) -> Manifest:
    """Return the manifest of a committed version, and check the files by a listing.

    It has their names and sizes.

    Raises:
        IntegrityError: The manifest is damaged, or a file is missing or has another
            size.
    """
    # 1. The sizes that are there, and those that the manifest expects.
    manifest = catalog.manifest(layout.dataset, layout.version)
    require_sizes(catalog.store, manifest)
    return manifest

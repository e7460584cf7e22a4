"""The one commit point: everything else is in place, then the manifest appears."""

from __future__ import annotations

from collections.abc import Sequence

from tokenlake.build.holding import publish_manifest, require_held
from tokenlake.build.project import Project
from tokenlake.fingerprint import sha256_file
from tokenlake.manifest import FileEntry, Manifest, UnitRecord
from tokenlake.report.card import render_card
from tokenlake.storage.base import Store
from tokenlake.storage.layout import DATA, LEDGER, QUARANTINE, TOKENIZER, Layout


def publish_preamble(store: Store, project: Project, layout: Layout) -> None:
    """Publish what workers and readers need besides the data."""
    for path, data in project.preamble().items():
        # Left by an interrupted run of another release, if unequal: the manifest decides what counts.
        store.put_new(layout.key(path), data, replace_orphan=True)


def commit_version(store: Store, project: Project, layout: Layout, records: Sequence[UnitRecord]) -> Manifest:
    """Check the account and publish card and manifest.

    Raises:
        AccountError: the account does not close; nothing is visible.
        VersionConflictError: gc swept the version, or another writer committed something else.
    """
    require_held(store, layout, project.plan.fingerprint)
    _remove_strays(store, layout, records)
    # Again: a worker whose parent was killed outlives it by a moment, perhaps past the sweep when we began.
    store.sweep_temp(layout.prefix)
    draft = project.manifest(layout.version, records, _other_files(store, layout))
    draft.check(layout.manifest)
    store.put_new(layout.card, render_card(draft).encode(), replace_orphan=True)
    manifest = project.manifest(layout.version, records, _other_files(store, layout))
    publish_manifest(store, layout, manifest)
    return manifest


def _remove_strays(store: Store, layout: Layout, records: Sequence[UnitRecord]) -> None:
    """Delete what no record names: left where a unit was built again and wrote fewer files."""
    named = {layout.key(part.path) for record in records for part in record.parts}
    named |= {layout.key(record.quarantine.path) for record in records if record.quarantine is not None}
    for folder in (DATA, QUARANTINE):
        for info in list(store.list(layout.key(folder))):
            if info.key not in named:
                store.delete(info.key)


def _other_files(store: Store, layout: Layout) -> dict[str, FileEntry]:
    """Size and hash of every file that is not data: they are verified like the shards."""
    found: dict[str, FileEntry] = {}
    for folder in (TOKENIZER, LEDGER, QUARANTINE):
        for info in store.list(layout.key(folder)):
            found[layout.path(info.key)] = _entry(store, info.key)
    for key in (layout.config, layout.card):
        if store.exists(key):
            found[layout.path(key)] = _entry(store, key)
    return dict(sorted(found.items()))


def _entry(store: Store, key: str) -> FileEntry:
    path = store.local_path(key)
    return FileEntry(bytes=path.stat().st_size, sha256=sha256_file(path))

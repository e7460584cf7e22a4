"""The one commit point: everything else is in place, then the manifest appears.

What is guaranteed, whatever process dies, sleeps or is slow, and whatever the clocks say: of a build that commits and
a ``gc`` that sweeps the same version one succeeds and the other changes nothing that counts.

- ``gc`` deletes nothing before the claim says ``swept``, and a swept claim never changes again. A commit first turns
  the claim from the very bytes that it read into ``committing``. Both are compare-and-swap: where the commit's
  succeeds, nothing was deleted until then.
- From ``committing`` on the claim no longer stops anybody, as a process may sleep between its swap and its manifest
  longer than any grace period. So ``gc`` takes such a claim only after it created a closing note in the place of the
  manifest (:mod:`tokenlake.store.claims`). The manifest is created there, create-only: the note fails, or the
  manifest does.
- Equal builds of one version do the same swap and create the same manifest; the later one finds both done.

So a manifest that is visible names files that no sweep deletes, and a swept number never has a manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError, VersionConflictError
from tokenlake.etl.job import produced_by
from tokenlake.etl.plan.mixture import order_of
from tokenlake.etl.plan.parents import lineage
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.shared_plan import remove_plan
from tokenlake.reports.card import render_card
from tokenlake.store.base import Store, require_digest
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import Claim, is_closing_note
from tokenlake.store.draws import drawn_ids, share
from tokenlake.store.layout import DATA, LEDGER, QUARANTINE, TOKENIZER, Layout
from tokenlake.store.ledger import Account, FileEntry, InputFileEntry, UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.store.mixture import MixtureRecord

_OF_INPUT: Final = ("source", "path", "size", "token", "file_id")


def draft_manifest(
    plan: Plan, version: int, records: Sequence[UnitRecord], other_files: Mapping[str, FileEntry]
) -> Manifest:
    """Return the manifest of all units.

    Args:
        records: of all units, in plan order.
        other_files: of the version, beside the shards.

    Raises:
        ConfigError: a list of documents to leave out left nothing out.
    """
    names = plan.spec.lengths if plan.spec is not None else [source.name for source in plan.build.sources]
    accounts = _accounts_of(records, names)
    plan.missed(accounts)
    ids = ("eos_id", "pad_id", "append_eos")
    return Manifest(
        kind=plan.kind,
        dataset=plan.dataset,
        version=version,
        fingerprint=plan.fingerprint,
        seq_length=plan.width or None,
        config=dict(plan.config),
        tokenizer={
            name: {
                **planned.facts,
                "folder": plan.tokenizer_folders[name],
                **{of: getattr(planned, of) for of in ids},
            }
            for name, planned in plan.tokenizers.items()
        },
        files=tuple(part for record in records for part in record.parts),
        other_files=dict(other_files),
        inputs=tuple(
            file
            if isinstance(file, InputFileEntry)
            else InputFileEntry(**{name: getattr(file, name) for name in _OF_INPUT})
            for file in plan.inputs
        ),
        accounts=accounts,
        parents=lineage(plan.parents),
        mixture=_mixture_record(plan, accounts, records),
        produced_by=produced_by(),
    )


def _accounts_of(records: Iterable[UnitRecord], names: Iterable[str]) -> dict[str, Account]:
    """Return source -> account: those of `names` first, also where nothing came of them, then others of which did.

    A unit that was taken over from another version may name a source that had no weight there, and is not here.
    """
    found = {name: list[Account]() for name in names}
    for record in records:
        for source, account in record.by_source().items():
            if source in found or account.rows_read:
                found.setdefault(source, []).append(account)
    return {source: Account.total(accounts) for source, accounts in found.items()}


def _mixture_record(
    plan: Plan, accounts: Mapping[str, Account], records: Iterable[UnitRecord]
) -> MixtureRecord | None:
    """Return the record of a plan's mixture; None where nothing is mixed.

    What was drawn is what was counted, what should have been is in the plan: the manifest's check compares the two.

    Args:
        accounts: of the sources, summed over all units.
        records: of all units.
    """
    if plan.spec is None or plan.forecast is None or plan.build.mixture is None or plan.out is None:
        return None
    packed_here = plan.level == "documents" and plan.out.pack is not None
    ids = {name: drawn_ids(account, packed_here=packed_here) for name, account in accounts.items()}
    rows = {name: account.rows_read for name, account in accounts.items()}
    sources = {
        name: replace(
            planned,
            drawn_rows=rows[name],
            drawn_tokens=ids[name],
            achieved_rows=share(rows[name], sum(rows.values())),
            achieved_tokens=share(ids[name], sum(ids.values())),
        )
        for name, planned in plan.forecast.sources.items()
    }
    return MixtureRecord(
        level=plan.level,
        weights_by=plan.build.mixture.weights_by,
        order=order_of(plan.spec),
        rows=Account.total(record.account for record in records).of_rows,
        sources=sources,
    )


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
        with contextlib.suppress(NotFoundError):
            if is_closing_note(store.read(layout.manifest), layout):
                raise _lost(layout) from error
        raise


def _lost(layout: Layout) -> VersionConflictError:
    return VersionConflictError(
        f"{layout.claim} is gone, swept or another build's: nothing under {layout.prefix} changed for the grace period "
        "of gc, or somebody removed it. Nothing was committed; run the build again: it begins a new version.",
        key=layout.claim,
    )


def publish_preamble(store: Store, plan: Plan, layout: Layout) -> None:
    """Publish what workers and readers need besides the data."""
    for path, data in plan.preamble().items():
        # Left by an interrupted run of another release, if unequal: the manifest decides what counts.
        store.put_new(layout.key(path), data, replace_orphan=True)


def commit_version(
    store: Store,
    plan: Plan,
    layout: Layout,
    records: Sequence[UnitRecord],
    filed: Mapping[int, FileEntry] = MappingProxyType({}),
) -> Manifest:
    """Check the account and publish card and manifest.

    Args:
        filed: unit to size and hash of its record's file, of those that are known.

    Raises:
        AccountError: the account does not close; nothing is visible.
        VersionConflictError: gc swept the version, or another writer committed something else.
    """
    require_held(store, layout, plan.fingerprint)
    try:
        return _commit(store, plan, layout, records, _made(plan, layout, records, filed))
    except (StoreError, IntegrityError):
        # Files that gc deletes are missed in many ways; that they were swept says more.
        require_held(store, layout, plan.fingerprint)
        raise


def committed_manifest(catalog: Catalog, layout: Layout) -> Manifest:
    """Return the manifest of a version that is there, its files by one listing, and of their sizes.

    Raises:
        IntegrityError: the manifest is damaged, or a file is missing or has another size.
    """
    manifest = catalog.manifest(layout.dataset, layout.version)
    found = {layout.path(info.key): info.size for info in catalog.store.list(layout.prefix)}
    # What was copied from elsewhere has no claim, and its bad records stayed there.
    left_out = () if layout.path(layout.claim) in found else (f"{QUARANTINE}/",)
    wanted = {part.path: part.bytes for part in manifest.files}
    wanted |= {path: entry.bytes for path, entry in manifest.other_files.items()}
    wrong = [
        path for path, size in wanted.items() if found.get(path) != size and not path.startswith(left_out)
    ]
    if wrong:
        name, size = f"{layout.dataset}@v{layout.version}", found.get(wrong[0])
        was = "missing" if size is None else f"{size} bytes long, expected {wanted[wrong[0]]}"
        raise IntegrityError(
            f"{name} is committed, but {len(wrong)} of its {len(wanted)} files are missing or have another size; the "
            f"first: {wrong[0]} is {was}. `tokenlake repair {name}` repairs it",
            file=layout.key(wrong[0]),
        )
    return manifest


def _commit(
    store: Store, plan: Plan, layout: Layout, records: Sequence[UnitRecord], made: Mapping[str, FileEntry]
) -> Manifest:
    kept = _tidied(store, layout, made)
    # Again: a worker whose parent was killed outlives it by a moment, perhaps past the sweep when we began.
    store.sweep_temp(layout.prefix)
    others = {path: entry for path, entry in {**made, **kept}.items() if not path.startswith(f"{DATA}/")}
    draft = draft_manifest(plan, layout.version, records, dict(sorted(others.items())))
    draft.check(layout.manifest)
    card = render_card(draft).encode()
    # An equal build of another release may have committed meanwhile: its card stays.
    store.put_new(layout.card, card, replace_orphan=lambda: not store.exists(layout.manifest))
    others[layout.path(layout.card)] = FileEntry.of(card)
    manifest = replace(draft, other_files=dict(sorted(others.items())))
    publish_manifest(store, layout, manifest)
    with contextlib.suppress(StoreError):  # the version is there, and nobody reads the plan of it
        remove_plan(store, layout)
    return manifest


def _made(
    plan: Plan, layout: Layout, records: Sequence[UnitRecord], filed: Mapping[int, FileEntry]
) -> dict[str, FileEntry]:
    """Size and hash of every file of the version but card and manifest, by its path: of the bytes that were written."""
    made = {path: FileEntry.of(data) for path, data in plan.preamble().items()}
    for record in records:
        made |= {part.path: FileEntry(bytes=part.bytes, sha256=part.sha256) for part in record.parts}
        entry = filed.get(record.unit) or FileEntry.of(record.to_bytes())
        made[layout.path(layout.ledger(record.unit))] = entry
        if (held := record.quarantine) is not None:
            made[held.path] = FileEntry(bytes=held.bytes, sha256=held.sha256)
    return made


def _tidied(store: Store, layout: Layout, made: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """Compare the version's folders with what was made, and return what else is in them and stays there.

    A listing says names and sizes, which is enough: each object was read back when it was published. What a listing
    does not confirm is read, and so is the preamble, the one thing that another release may have written over.

    Raises:
        NotFoundError, IntegrityError: what was made is not there, or not as it was.
    """
    found = {
        layout.path(info.key): info.size
        for folder in (DATA, QUARANTINE, LEDGER, TOKENIZER)
        for info in store.list(layout.key(folder))
    }
    kept: dict[str, FileEntry] = {}
    for path in found.keys() - made.keys():
        if path.startswith((f"{DATA}/", f"{QUARANTINE}/")):
            # Left where a unit was built again and wrote fewer files; another writer may be faster than we.
            with contextlib.suppress(NotFoundError):
                store.delete(layout.key(path))
        else:
            kept[path] = store.digest(layout.key(path))
    for path, entry in made.items():
        if found.get(path) != entry.bytes or not path.startswith(
            (f"{DATA}/", f"{QUARANTINE}/", f"{LEDGER}/")
        ):
            require_digest(store, layout.key(path), entry)
    return kept

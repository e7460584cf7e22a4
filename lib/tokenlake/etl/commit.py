"""From records of units to a version: work that need not be done again, and the one commit point.

Finished units of this claim and equal units of other versions are found again. Once every unit has its record and
everything else is in place, the manifest appears.

What is guaranteed, whatever process dies, sleeps or is slow, and whatever the clocks say: of a build that commits and
a ``gc`` that sweeps the same version one succeeds and the other changes nothing that counts.

- ``gc`` deletes nothing before the claim says ``swept``, and a swept claim never changes again. A commit first turns
  the claim from the very bytes that it read into ``committing``. Both are compare-and-swap: where the commit's
  succeeds, nothing was deleted until then.
- From ``committing`` on the claim no longer stops anybody, as a process may sleep between its swap and its manifest
  longer than any grace period. So ``gc`` takes such a claim only after it created a closing note in the place of the
  manifest (:mod:`tokenlake.runtime.store.claims`). The manifest is created there, create-only: the note fails, or the
  manifest does.
- Equal builds of one version do the same swap and create the same manifest; the later one finds both done.

So a manifest that is visible names files that no sweep deletes, and a swept number never has a manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, final

from tokenlake.base.threads import in_order
from tokenlake.errors import IntegrityError, NotFoundError, StoreError, VersionConflictError
from tokenlake.etl.job import produced_by
from tokenlake.etl.plan.parents import lineage
from tokenlake.etl.plan.plan import Plan, PlannedUnit
from tokenlake.etl.reports.card import render_card
from tokenlake.etl.shared_plan import remove_plan
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import Link, ObjectInfo, Store, caught, require_digest
from tokenlake.runtime.store.catalog import Catalog, read_record
from tokenlake.runtime.store.claims import Claim, is_closing_note
from tokenlake.runtime.store.draws import drawn_ids, share
from tokenlake.runtime.store.layout import (
    DATA,
    LEDGER,
    QUARANTINE,
    TOKENIZER,
    Layout,
    ledger_path,
    ledger_unit,
    quarantine_path,
    shard_path,
)
from tokenlake.runtime.store.ledger import FileEntry, InputFileEntry, QuarantineEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import MixtureRecord

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
        order=plan.spec.order,
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

    The second copy of the manifest is written first: a version that is visible has both.

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
    data = manifest.to_bytes()
    try:
        # An equal build of another release may have left its own copy here, or may have committed.
        store.put_new(layout.manifest_copy, data, replace_orphan=lambda: not store.exists(layout.manifest))
        store.put_new(layout.manifest, data)
    except VersionConflictError as error:
        with contextlib.suppress(NotFoundError):
            if is_closing_note(store.read(layout.manifest), layout):
                raise _lost(layout) from error
        raise
    if store.read(layout.manifest_copy) != data:
        # Another build replaced the copy between the two writes, and cannot commit any more.
        store.put_new(layout.manifest_copy, data, replace_orphan=True)


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


#: Versions looked through for reusable units, newest first.
_VERSIONS_BACK: Final = 20

#: Units taken over together: so much is linked before it is recorded, and that much a crash may leave unrecorded.
_TOGETHER: Final = 256


def finished_records(
    catalog: Catalog, units: Sequence[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Yield the records of this claim whose unit is the plan's and whose files are intact.

    A record that is damaged, or whose files are, is deleted: its unit will be built again.
    """
    store, layout = catalog.writable, Layout(dataset, version)
    wanted = {unit.index: unit.fingerprint for unit in units}
    listed = _Listed(store, layout)

    def intact(index: int) -> UnitRecord | None:
        try:
            record = read_record(store, layout, index)
            if wanted.get(index) != record.fingerprint:
                raise IntegrityError(f"{layout.ledger(index)}: not a unit of this build")
            for file in _files(record):
                if listed.proof(file, index) is None:
                    require_digest(store, layout.key(file.path), file)
        except (IntegrityError, NotFoundError):
            store.delete(layout.ledger(index))
            return None
        return record

    found = in_order(intact, listed.units, store.at_once)
    return (record for record in found if record is not None)


def adopted_records(
    catalog: Catalog, pending: Iterable[PlannedUnit], dataset: str, version: int
) -> Iterator[UnitRecord]:
    """Take over pending units that other versions have built; yield their records as our ledger holds them.

    Older versions are looked at newest first. A unit whose record or files are damaged or gone is passed over.
    """
    wanted = {unit.fingerprint: unit.index for unit in pending}
    others = [info.version for info in catalog.versions(dataset) if info.version != version]
    for other in sorted(others, reverse=True)[:_VERSIONS_BACK]:
        if not wanted:
            return
        source = _Listed(catalog.writable, Layout(dataset, other))
        for start in range(0, len(source.units), _TOGETHER):
            if not wanted:
                return
            units = source.units[start : start + _TOGETHER]
            for record in _adopted(source, units, wanted, Layout(dataset, version)):
                del wanted[record.fingerprint]
                yield record


def _adopted(
    source: _Listed, units: Sequence[int], wanted: Mapping[str, int], target: Layout
) -> list[UnitRecord]:
    """Take over those of some units that are wanted: all their files, and when these are durable all records."""
    store = source.store
    read = in_order(
        lambda unit: caught(lambda: read_record(store, source.layout, unit)), units, store.at_once
    )
    found = {record.fingerprint: record for record in read if isinstance(record, UnitRecord)}
    records = [
        (record, renamed_record(record, wanted[key])) for key, record in found.items() if key in wanted
    ]
    links = {link: new.unit for old, new in records for link in source.links(old, new, target)}
    done = store.link_all(list(links))
    spoilt = {unit for unit, each in zip(links.values(), done, strict=True) if isinstance(each, Exception)}
    taken = [new for _, new in records if new.unit not in spoilt]
    store.put_all({target.ledger(record.unit): record.to_bytes() for record in taken})
    return taken


@final
class _Listed:
    """A version by what listings say of its files: a request for a thousand objects, and none for each."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store, self.layout = store, layout
        found = (info for folder in (LEDGER, DATA, QUARANTINE) for info in store.list(layout.key(folder)))
        self._infos = {layout.path(info.key): info for info in found}
        self.units = sorted(unit for unit in map(ledger_unit, self._infos) if unit is not None)

    def proof(self, file: ShardEntry | QuarantineEntry, unit: int) -> ObjectInfo | None:
        """Return what the storage says of a file of a unit where that proves its bytes; None: they must be read.

        A record is written after its files, and a bucket changes no object in place. So an object of the recorded size
        that is not younger than the record is the one that was checked when it was put. A folder tells nothing.
        """
        info, record = self._infos.get(file.path), self._infos.get(ledger_path(unit))
        if info is None or not info.token or info.size != file.bytes or record is None:
            return None
        old = info.modified is not None and record.modified is not None and info.modified <= record.modified
        return info if old else None

    def links(self, old: UnitRecord, new: UnitRecord, target: Layout) -> list[Link]:
        """Return what makes the files of a unit those of another version."""
        return [
            Link(
                source=self.layout.key(there.path),
                target=target.key(here.path),
                size=there.bytes,
                sha256=there.sha256,
                seen=self.proof(there, old.unit),
                orphan=lambda: not self.store.exists(target.ledger(new.unit)),
            )
            for there, here in zip(_files(old), _files(new), strict=True)
        ]


def _files(record: UnitRecord) -> list[ShardEntry | QuarantineEntry]:
    return [*record.parts, *([] if record.quarantine is None else [record.quarantine])]


def renamed_record(record: UnitRecord, unit: int) -> UnitRecord:
    """Return a record as it stands in another version, where the unit has another place."""
    parts = tuple(
        replace(part, unit=unit, path=shard_path(part.split, unit, part.part)) for part in record.parts
    )
    held = record.quarantine
    quarantine = None if held is None else replace(held, path=quarantine_path(unit))
    return replace(record, unit=unit, parts=parts, quarantine=quarantine)


def remove_record(store: Store, layout: Layout, unit: int) -> None:
    """Forget a unit, whose record may be gone already."""
    try:
        store.delete(layout.ledger(unit))
    except (NotFoundError, StoreError):
        if store.exists(layout.ledger(unit)):
            raise

"""Making again what is damaged: units, beside the version and compared with what was there; and the manifest.

Units are built in a store of their own, with the layout of the version, and the parents of a mixture are read where
they are. That store is a folder of this machine or, where other machines build, lies in the version's ``runs/``. What
comes out are the very bytes, or the same rows in other bytes, or neither: another release of a writer may write the
rows otherwise, or cut them into other files. So where bytes differ, rows are read in order and hashed anew in the
pieces that the manifest knows.

A damaged manifest is made again of the claim, the ledger, and the configuration planned once more. A manifest holds the
hashes of everything else, so nothing may be taken from files that only it could vouch for. The ledger records are
sealed, tokenizers and configuration come from the plan, the card follows; the plan's fingerprint must be the claim's.
Which releases wrote it is not identity and must be found, too: the seal of what is made is looked for in tags, in
versions that were made of this one, and in the damaged bytes.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Self, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.errors import (
    AccountError,
    EngineMismatchError,
    IntegrityError,
    NotFoundError,
    StoreError,
    TokenlakeError,
    WorkerDiedError,
)
from tokenlake.etl.commit import draft_manifest, publish_preamble
from tokenlake.etl.job import NO_ENGINE, REFERENCE, WorkJob, produced_by
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.planner import input_changes
from tokenlake.etl.pool import Pool
from tokenlake.integrity import repair_sources
from tokenlake.schema import LogicalHasher
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.base import ReadStore, Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import Claim, stored_tag
from tokenlake.store.layout import (
    CARD,
    LEDGER,
    RUNS,
    Layout,
    ledger_path,
    ledger_unit,
    quarantine_path,
    tag_of,
    tags_prefix,
)
from tokenlake.store.ledger import FileEntry, QuarantineEntry, ShardEntry, UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.threads import in_order

WORKSHOP: Final = f"{RUNS}/repair"
"""Path below a version of the store in which other machines build its units again."""
_TRIES: Final = 3
_FROM_INPUTS: Final = "from its inputs"
OnBytes = Callable[[int], None]


@final
@dataclass(frozen=True, slots=True)
class Workshop:
    """Where units of a version are built again.

    Attributes:
        plan: that has them.
        layout: of the version.
        address: of a store; what was built lies there, under the version's own keys.
        store: at that address.
    """

    plan: Plan
    layout: Layout
    address: StoreAddress
    store: Store

    @classmethod
    @contextmanager
    def opened(cls, plan: Plan, layout: Layout, beside: StoreAddress | None) -> Generator[Self]:
        """Have an empty workshop for as long as the context lasts.

        Args:
            beside: the store of the version, where other machines build; None: they do not.
        """
        with tempfile.TemporaryDirectory(prefix="tokenlake-repair-") as folder:
            address = StoreAddress(folder)
            if beside is not None:
                address = StoreAddress(f"{beside.url}/{layout.key(WORKSHOP)}", beside.options)
            store = open_store(address)
            _clear(store)  # of a repair that was killed
            try:
                yield cls(plan, layout, address, store)
            finally:
                _clear(store)

    def build(
        self, units: Mapping[int, tuple[int, str | None]], pool: Pool, on_bytes: OnBytes
    ) -> dict[int, UnitRecord | TokenlakeError]:
        """Build units.

        Args:
            units: unit of the version -> (index in the plan, engine that encoded it; None: not known).
            pool: whose workers build.
            on_bytes: told of input bytes worked through, from several threads.

        Returns:
            Unit -> its record as it is now, or why it could not be built.
        """
        publish_preamble(self.store, self.plan, self.layout)
        dataset, version = self.layout.dataset, self.layout.version
        claim = Claim(dataset=dataset, version=version, fingerprint=self.plan.fingerprint, meta={})
        self.store.put_new(self.layout.claim, claim.to_bytes())
        count = max(1, min(pool.workers, len(units)))
        pool.expect(len(units), lambda: [self._job(unit, *units[unit]) for unit in units])

        def one(unit: int) -> UnitRecord | TokenlakeError:
            index, engine = units[unit]
            failed = list[TokenlakeError]()
            for chosen in (engine, *[REFERENCE] * (_TRIES - 1)):
                job = self._job(unit, index, chosen)
                try:
                    done = pool.run(job, lambda fields: on_bytes(fields.get("bytes", 0)))
                    return UnitRecord.from_bytes(done.encode())
                except (WorkerDiedError, EngineMismatchError) as error:
                    failed.append(error)
                except TokenlakeError as error:
                    return error
            return failed[-1]

        try:
            return dict(zip(units, in_order(one, list(units), count), strict=True))
        except BaseException:
            pool.cancel()
            raise

    def _job(self, unit: int, index: int, engine: str | None) -> WorkJob:
        # The engine of then, if it is there, and else the reference: which one it is changes no id.
        known = engine is not None and (engine == NO_ENGINE or importlib.util.find_spec(engine) is not None)
        chosen = engine if engine and known else REFERENCE
        job = self.plan.job(self.plan.units[index], self.address, self.layout, chosen)
        # Files are named by the unit's place in the version, which may be another one in the plan.
        return replace(job, unit=unit)


def _clear(store: Store) -> None:
    for info in list(store.list("")):
        with suppress(NotFoundError):
            store.delete(info.key)


def other_rows(
    store: ReadStore, layout: Layout, wanted: Sequence[ShardEntry], built: Sequence[ShardEntry]
) -> list[str]:
    """Return a clause for each file of a unit whose rows came out otherwise; none if all rows are the same.

    Args:
        store: where `built` lies.
        wanted: the parts of the unit, as the manifest has them.
    """
    found: list[str] = []
    for split in dict.fromkeys(part.split for part in [*wanted, *built]):
        ours = sorted((part for part in built if part.split == split), key=lambda part: part.part)
        theirs = sorted((part for part in wanted if part.split == split), key=lambda part: part.part)
        got, expected = sum(part.rows for part in ours), sum(part.rows for part in theirs)
        if got != expected:
            found.append(f"split {split} came out with {got} rows; expected {expected}")
            continue
        pieces = _hashed(_tables(store, layout, ours), [part.rows for part in theirs])
        for part, logical in zip(theirs, pieces, strict=True):
            found += (
                f"the rows of {part.path} came out with the logical hash {logical.get(name)} of {name}; "
                f"expected {wanted_hash}"
                for name, wanted_hash in sorted(part.logical.items())
                if part.rows and logical.get(name) != wanted_hash
            )
    return found


def _tables(store: ReadStore, layout: Layout, parts: Sequence[ShardEntry]) -> Iterator[pa.Table]:
    for part in parts:
        with store.open(layout.key(part.path)) as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            for index in range(file.metadata.num_row_groups):
                yield file.read_row_group(index, use_threads=False)


def _hashed(tables: Iterator[pa.Table], sizes: Sequence[int]) -> Iterator[dict[str, str]]:
    """Yield the logical hash of each piece of so many rows."""
    rest: pa.Table | None = None
    for size in sizes:
        hasher, left = LogicalHasher(), size
        while left:
            table = rest if rest is not None and rest.num_rows else next(tables)
            taken = table.slice(0, left)
            hasher.update(taken.combine_chunks())
            rest = table.slice(taken.num_rows)
            left -= taken.num_rows
        yield hasher.digest()


def judge(
    workshop: ReadStore,
    layout: Layout,
    manifest: Manifest,
    built: UnitRecord | TokenlakeError,
    others: Mapping[int, UnitRecord],
    files: Sequence[repair_sources.DamagedFile],
) -> None:
    """Note of each damaged file of one unit where its good bytes are, or why there are none.

    A file that came out in other bytes, with the same rows, has neither: it is for a new version.

    Args:
        workshop: where the unit was built.
        layout: of the version, there as well.
        built: what came out.
        others: unit -> ledger record, of those that are intact.
    """
    if isinstance(built, TokenlakeError):
        lost = f"it could not be built again: {built}"
    elif unlike := _unlike(workshop, layout, manifest, built, others.get(built.unit)):
        lost = "it came out with other rows, so that nothing was changed: " + "; ".join(unlike[:3])
    else:
        held = () if built.quarantine is None else (built.quarantine,)
        came = {part.path: part.sha256 for part in (*built.parts, *held)}
        for file in files:
            sha256 = file.damage.sha256
            if came.get(file.path) == sha256:
                file.good = repair_sources.Good(
                    "rebuilt", _FROM_INPUTS, key=file.damage.key, workshop=workshop
                )
            elif file.path == ledger_path(built.unit):
                record = repair_sources.exact(_as_listed(built, manifest), others.values(), sha256)
                file.good = record and repair_sources.Good("rebuilt", _FROM_INPUTS, data=record.to_bytes())
        return
    for file in files:
        file.lost = lost


def _unlike(
    workshop: ReadStore, layout: Layout, manifest: Manifest, built: UnitRecord, before: UnitRecord | None
) -> list[str]:
    """Return a clause for everything that came out otherwise, bytes aside."""
    wanted = [shard for shard in manifest.files if shard.unit == built.unit]
    same = {(part.path, part.sha256) for part in wanted} == {(part.path, part.sha256) for part in built.parts}
    found = [] if same else other_rows(workshop, layout, wanted, built.parts)
    listed = quarantine_path(built.unit) in manifest.other_files
    if listed != (built.quarantine is not None):
        came, expected = ("no", "some") if listed else ("some", "none")
        found.append(f"{came} bad records came out; expected {expected}")
    if before is not None and before.account != built.account:
        found.append(f"its account is {built.account}; expected {before.account}")
    return found


def _as_listed(built: UnitRecord, manifest: Manifest) -> UnitRecord:
    """Return a record with the files as the manifest has them, which hold the same rows."""
    parts = tuple(shard for shard in manifest.files if shard.unit == built.unit)
    held, entry = built.quarantine, manifest.other_files.get(quarantine_path(built.unit))
    if held is not None and entry is not None:
        held = QuarantineEntry(path=held.path, bytes=entry.bytes, sha256=entry.sha256, rows=held.rows)
    return replace(built, parts=parts, quarantine=held)


#: Bytes that damage may have changed in a manifest that is otherwise known well: a seal, or less.
_NEARLY: Final = 80


@final
@dataclass(frozen=True, slots=True)
class LostManifest:
    """A manifest that cannot be read, and what is known of it.

    Attributes:
        layout: of its version.
        damaged: the bytes that are there.
        fingerprint: of the build, by the claim.
        records: unit -> ledger record, of those that can be read.
    """

    layout: Layout
    damaged: bytes
    fingerprint: str
    records: Mapping[int, UnitRecord]

    @property
    def inputs(self) -> frozenset[tuple[str, str]]:
        """(source, path) of the files that were read."""
        entries = [entry for record in self.records.values() for entry in record.inputs]
        return frozenset((entry.source, entry.path) for entry in entries)

    @classmethod
    def look(cls, store: ReadStore, layout: Layout) -> LostManifest:
        """Collect what is there.

        Raises:
            IntegrityError: the claim is damaged or gone, so that nobody knows what was built here.
        """
        claim = Catalog(store).read_claim(layout.dataset, layout.version)
        if claim is None:
            raise IntegrityError(
                f"{layout.manifest} is damaged and {layout.claim} is gone: nothing says what was built here. Build the "
                "version again under another name, and restore this one from a backup",
                file=layout.manifest,
            )
        paths = [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
        units = [unit for unit in map(ledger_unit, paths) if unit is not None]
        damaged, records = store.read(layout.manifest), repair_sources.readable_records(store, layout, units)
        return cls(layout, damaged, claim.fingerprint, records)

    def again(self, store: ReadStore, plan: Plan, names: Mapping[str, str], *, fewer: bool) -> Manifest:
        """Make the manifest.

        Args:
            names: of tokenizers as they are in the plan -> as they were given.
            fewer: the plan leaves out files that no record names; one of them may have been there, empty.

        Raises:
            IntegrityError: it would not be the one that was committed, or nobody could tell; says why.
        """
        if plan.fingerprint != self.fingerprint:
            entries = [entry for record in self.records.values() for entry in record.inputs]
            known = {(entry.source, entry.path): entry.file for entry in entries}
            changes = "; ".join(input_changes(known.values(), plan.inputs, added=True))
            raise self._refused(
                "the configuration and its inputs are not what the claim was for: "
                + (changes or f"their fingerprint is {plan.fingerprint}; expected {self.fingerprint}")
            )
        missing = [unit.index for unit in plan.units if unit.index not in self.records]
        if missing:
            raise self._refused(
                f"{len(missing)} ledger records are damaged as well (first: {ledger_path(missing[0])})"
            )
        records = [self.records[unit.index] for unit in plan.units]
        for record, unit in zip(records, plan.units, strict=True):
            if record.fingerprint != unit.fingerprint:
                raise self._refused(f"{ledger_path(record.unit)} is of another unit than the plan's")
        return self._chosen(store, list(self._candidates(plan, records, names)), fewer)

    def _chosen(self, store: ReadStore, made: Sequence[Manifest], fewer: bool) -> Manifest:
        """Return the one of several forms that was committed."""
        wanted = _recorded_seals(store, self.layout)
        recorded = [manifest for manifest in made if manifest.sha256 in wanted]
        if wanted and not recorded:
            raise self._refused(
                f"the manifest that was made again has sha256 {made[0].sha256}; expected "
                f"{' or '.join(sorted(wanted))}, by tags or by versions made of it"
            )
        sealed = [manifest for manifest in made if manifest.sha256.encode() in self.damaged]
        if recorded or sealed:
            return (recorded or sealed)[0]
        alike = [repair_sources.common(manifest.to_bytes(), self.damaged) for manifest in made]
        best = max(alike)
        if fewer and best < len(made[0].to_bytes()) - _NEARLY:
            raise self._refused(
                "files were added to its inputs, and too little is left of it to tell which were there"
            )
        if len(made) == 1:
            return made[0]
        if alike.count(best) > 1:
            raise self._refused("too little is left of it to tell which release of which writer committed it")
        return made[alike.index(best)]

    def _candidates(
        self, plan: Plan, records: Sequence[UnitRecord], names: Mapping[str, str]
    ) -> Iterator[Manifest]:
        """Yield the manifest as each release that is known here would have written it."""
        writers = [
            {name: version for name, version in record.produced_by.items() if name != record.engine}
            for record in records
        ] or [produced_by()]
        others = {path: FileEntry.of(data) for path, data in plan.preamble().items()}
        others |= {ledger_path(record.unit): FileEntry.of(record.to_bytes()) for record in records}
        for record in records:
            if (held := record.quarantine) is not None:
                others[held.path] = FileEntry(bytes=held.bytes, sha256=held.sha256)
        plain = draft_manifest(plan, self.layout.version, records, dict(sorted(others.items())))
        try:
            plain.check(self.layout.manifest)
        except AccountError as error:
            raise self._refused(str(error)) from error
        tokenizers = {
            source: {**facts, "name": names.get(str(facts.get("name")), facts.get("name"))}
            for source, facts in plain.tokenizer.items()
        }
        for writer in dict.fromkeys(tuple(sorted(each.items())) for each in [*writers, produced_by()]):
            draft = replace(plain, tokenizer=tokenizers, produced_by=dict(writer))
            card = FileEntry.of(repair_sources.rendered(draft, CARD) or b"")
            yield replace(draft, other_files=dict(sorted({**draft.other_files, CARD: card}.items())))

    def _refused(self, why: str) -> IntegrityError:
        return IntegrityError(
            f"{self.layout.manifest} is damaged and cannot be made again: {why}. Nothing was changed. Restore it from "
            "a backup, or build the version again under another name",
            file=self.layout.manifest,
        )


def _recorded_seals(store: ReadStore, layout: Layout) -> set[str]:
    """Return the seals that tags and versions made of this one remember."""
    found: set[str] = set()
    for info in store.list(tags_prefix(layout.dataset)):
        try:
            tag = stored_tag(store, layout.dataset, tag_of(info.key) or "")
        except (IntegrityError, StoreError):
            continue
        if tag is not None and tag[0].version == layout.version:
            found.add(tag[0].manifest_sha256)
    for _, child in repair_sources.manifests(store):
        for parent in child.parents:
            if (parent.dataset, parent.version) == (layout.dataset, layout.version):
                found.add(parent.sha256)
    return found

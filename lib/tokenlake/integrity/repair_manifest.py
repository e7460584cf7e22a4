"""A damaged manifest, made again: of the claim, the ledger, and the configuration planned once more.

A manifest holds the hashes of everything else, so nothing may be taken from files that only it could vouch for. The
ledger records are sealed, tokenizers and configuration come from the plan, the card follows; the plan's fingerprint
must be the claim's. Which releases wrote it is not identity and must be found, too: the seal of what is made is looked
for in tags, in versions that were made of this one, and in the damaged bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from tokenlake.errors import AccountError, IntegrityError, StoreError
from tokenlake.etl.commit import draft_manifest
from tokenlake.etl.job import produced_by
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.retokenize import input_changes
from tokenlake.integrity.repair_sources import common, manifests, readable_records, rendered
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog
from tokenlake.store.entries import FileEntry
from tokenlake.store.layout import CARD, LEDGER, Layout, ledger_path, ledger_unit, tag_of, tags_prefix
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.store.tags import stored_tag

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
        return frozenset(
            (entry.source, entry.path) for record in self.records.values() for entry in record.inputs
        )

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
        return cls(
            layout,
            store.read(layout.manifest),
            claim.fingerprint,
            readable_records(store, layout, _units(store, layout)),
        )

    def again(self, store: ReadStore, plan: Plan, names: Mapping[str, str], *, fewer: bool) -> Manifest:
        """Make the manifest.

        Args:
            names: of tokenizers as they are in the plan -> as they were given.
            fewer: the plan leaves out files that no record names; one of them may have been there, empty.

        Raises:
            IntegrityError: it would not be the one that was committed, or nobody could tell; says why.
        """
        self._check_plan(plan)
        missing = [unit.index for unit in plan.units if unit.index not in self.records]
        if missing:
            raise self._refused(
                f"{len(missing)} ledger records are damaged as well (first: {ledger_path(missing[0])})"
            )
        records = [self.records[unit.index] for unit in plan.units]
        strange = [
            record.unit
            for record, unit in zip(records, plan.units, strict=True)
            if record.fingerprint != unit.fingerprint
        ]
        if strange:
            raise self._refused(f"{ledger_path(strange[0])} is of another unit than the plan's")
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
        alike = [common(manifest.to_bytes(), self.damaged) for manifest in made]
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

    def _check_plan(self, plan: Plan) -> None:
        if plan.fingerprint == self.fingerprint:
            return
        known = {
            (entry.source, entry.path): entry.file
            for record in self.records.values()
            for entry in record.inputs
        }
        changes = input_changes(known.values(), plan.inputs, added=True)
        raise self._refused(
            "the configuration and its inputs are not what the claim was for: "
            + ("; ".join(changes) or f"their fingerprint is {plan.fingerprint}; expected {self.fingerprint}")
        )

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
            yield _with_card(replace(plain, tokenizer=tokenizers, produced_by=dict(writer)))

    def _refused(self, why: str) -> IntegrityError:
        return IntegrityError(
            f"{self.layout.manifest} is damaged and cannot be made again: {why}. Nothing was changed. Restore it from "
            "a backup, or build the version again under another name",
            file=self.layout.manifest,
        )


def _units(store: ReadStore, layout: Layout) -> Iterator[int]:
    """Yield the units of which there is a file in the ledger."""
    for info in store.list(layout.key(LEDGER)):
        if (unit := ledger_unit(layout.path(info.key))) is not None:
            yield unit


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
    for _, child in manifests(store):
        named = ((parent.dataset, parent.version, parent.sha256) for parent in child.parents)
        found |= {
            sha256
            for dataset, version, sha256 in named
            if (dataset, version) == (layout.dataset, layout.version)
        }
    return found


def _with_card(draft: Manifest) -> Manifest:
    card = rendered(draft, CARD) or b""
    return replace(draft, other_files=dict(sorted({**draft.other_files, CARD: FileEntry.of(card)}.items())))

"""Stored versions to a new one as a session builds it: a mixture, or the same documents packed again.

What the manifest of a mixture says of it: the order as it was planned, and what was counted of each source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, final

from tokenlake.errors import TokenlakeError
from tokenlake.etl.events import Watcher
from tokenlake.etl.job import MixJob, RepackJob, store_address
from tokenlake.etl.mixture import MixtureSpec
from tokenlake.etl.plan.mixture import SourceForecast
from tokenlake.etl.plan.parents import FoundParent, lineage, merged_tokenizers, read_tokenizer
from tokenlake.etl.plan.stored import MixPlan
from tokenlake.etl.plan.stored_units import RangeUnit, order_identity, rows_identity
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.run_log import RunLog
from tokenlake.etl.text_project import config_yaml
from tokenlake.store.account import Account
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.entries import FileEntry
from tokenlake.store.layout import CONFIG, TOKENIZER, Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Kind, Manifest
from tokenlake.store.mixture import MixedSource, MixtureOrder, MixtureRecord, WeightPoint, drawn_ids, share


def accounts_of(records: Iterable[UnitRecord], names: Iterable[str] = ()) -> dict[str, Account]:
    """Return source -> account: those of `names` first, also where nothing came of them, then others of which did.

    A unit that was taken over from another version may name a source that had no weight there, and is not here.
    """
    found = {name: list[Account]() for name in names}
    for record in records:
        for source, account in record.by_source().items():
            if source in found or account.rows_read:
                found.setdefault(source, []).append(account)
    return {source: Account.total(accounts) for source, accounts in found.items()}


def mixture_record(
    plan: MixPlan, accounts: Mapping[str, Account], records: Iterable[UnitRecord]
) -> MixtureRecord | None:
    """Return the record of a plan's mixture; None where nothing is mixed.

    What was drawn is what was counted, what should have been is in the plan: the manifest's check compares the two.

    Args:
        accounts: of the sources, summed over all units.
        records: of all units.
    """
    if plan.spec is None or plan.forecast is None or plan.build.mixture is None:
        return None
    packed_here = plan.level == "documents" and plan.out.pack is not None
    ids = {name: drawn_ids(account, packed_here=packed_here) for name, account in accounts.items()}
    all_rows = sum(account.rows_read for account in accounts.values())
    sources = {
        parent.name: _source(
            parent,
            plan.forecast.sources[parent.name],
            rows=accounts[parent.name].rows_read,
            tokens=ids[parent.name],
            of_rows=all_rows,
            of_tokens=sum(ids.values()),
        )
        for parent in plan.parents
    }
    whole = Account.total(record.account for record in records)
    return MixtureRecord(
        level=plan.level,
        weights_by=plan.build.mixture.weights_by,
        order=_order(plan.spec),
        rows=Account(sequences=whole.sequences, slots=whole.slots, pad=whole.pad),
        sources=sources,
    )


def _source(
    parent: FoundParent, planned: SourceForecast, *, rows: int, tokens: int, of_rows: int, of_tokens: int
) -> MixedSource:
    return MixedSource(
        dataset=parent.manifest.dataset,
        version=parent.manifest.version,
        split=parent.split,
        window=parent.window,
        rows=parent.rows,
        tokens=parent.tokens,
        drawn_rows=rows,
        drawn_tokens=tokens,
        full_epochs=planned.full_epochs,
        unread_rows=planned.unread_rows,
        asked=planned.asked,
        asked_tokens=planned.asked_tokens,
        achieved_rows=share(rows, of_rows),
        achieved_tokens=share(tokens, of_tokens),
    )


def _order(spec: MixtureSpec) -> MixtureOrder:
    return MixtureOrder(
        lanes=spec.lanes,
        batch_size=spec.batch_size,
        block_size=spec.block_size,
        step_rows=spec.step_rows,
        seed=spec.seed,
        stop=spec.stop,
        rows=spec.rows or 0,
        points=tuple(WeightPoint(step, weights) for step, weights in spec.points),
        interpolation=spec.interpolation,
        version=spec.order,
    )


@final
class MixProject:
    """A plan of a mixture, or of packing again, and what its version says of itself."""

    def __init__(self, plan: MixPlan) -> None:
        self.plan = plan

    @property
    def dataset(self) -> str:
        return self.plan.build.name

    @property
    def store(self) -> StoreAddress:
        return store_address(self.plan.build)

    @property
    def kind(self) -> Kind:
        """What the rows of the new version are."""
        return "tokens" if self.plan.out.seq_length is None else "packed"

    def preamble(self) -> dict[str, bytes]:
        """The tokenizers of the parents, verified, and the configuration without paths of the machine.

        Raises:
            IntegrityError: a tokenizer's file of a parent is not what its manifest says.
        """
        store, files = open_store(self.store), dict[str, bytes]()
        folders = {
            facts["folder"]: (parent, source)
            for source, (parent, facts) in merged_tokenizers(self.plan.parents).items()
        }
        for folder, (parent, source) in folders.items():
            below = f"{TOKENIZER}/{folder}" if folder else TOKENIZER
            files |= {f"{below}/{name}": data for name, data in read_tokenizer(store, parent, source).items()}
        return files | {CONFIG: config_yaml(self._config())}

    def manifest(
        self, version: int, records: Sequence[UnitRecord], other_files: Mapping[str, FileEntry]
    ) -> Manifest:
        """Return the manifest; `records` of all units, in plan order."""
        plan = self.plan
        names = () if plan.spec is None else tuple(plan.spec.lengths)
        accounts = accounts_of(records, names)
        return Manifest(
            kind=self.kind,
            dataset=self.dataset,
            version=version,
            fingerprint=plan.fingerprint,
            seq_length=plan.out.seq_length,
            config=self._config(),
            tokenizer=self._tokenizers(),
            files=tuple(part for record in records for part in record.parts),
            other_files=dict(other_files),
            inputs=plan.inputs,
            accounts=accounts,
            parents=lineage(plan.parents),
            mixture=mixture_record(plan, accounts, records),
            produced_by=produced_by(),
        )

    def begin(self, store: StoreAddress, layout: Layout, log: RunLog, watcher: Watcher) -> MixWork:
        return MixWork(self.plan, store, self.store, layout)

    def commits(self) -> Mapping[str, Mapping[str, str]]:
        """None: the Hub was read when the parents were built."""
        return {}

    def _config(self) -> dict[str, Any]:
        """What identity sees of the configuration, and what is known of the sources that the texts came from."""
        plan = self.plan
        build = {
            "kind": self.kind,
            **rows_identity(plan.out),
            "around": {
                "prefix": list(plan.out.prefix),
                "suffix": list(plan.out.suffix),
                "whole": bool(plan.out.whole),
            },
        }
        mix: dict[str, Any] = {}
        if plan.spec is not None and plan.build.mixture is not None:
            weights_by = plan.build.mixture.weights_by
            splits = {parent.name: parent.split for parent in plan.parents}
            order = {**order_identity(plan.spec), "rows": plan.spec.rows}
            mix = {"mix": {"level": plan.level, "weights_by": weights_by, "splits": splits, **order}}
        return {"build": build, **mix, "sources": _sources(plan.parents)}

    def _tokenizers(self) -> dict[str, Any]:
        """The tokenizer of each source of the original texts; where rows are packed here, with the ids for that."""
        out = self.plan.out
        packed = {"eos_id": out.eos_id, "pad_id": out.pad_id, "append_eos": out.append_eos}
        return {
            source: facts | (packed if out.pack is not None else {})
            for source, (_, facts) in merged_tokenizers(self.plan.parents).items()
        }


@final
class MixWork:
    """The jobs of a plan; nothing is tokenized, so that there are neither engines nor bad records."""

    def __init__(
        self, plan: MixPlan, store: StoreAddress, parents_store: StoreAddress, layout: Layout
    ) -> None:
        self._plan, self._store, self._layout = plan, store, layout
        self._parents_store = parents_store
        self._parents = tuple(parent.version for parent in plan.parents)

    def job(self, unit: int, pool: WorkerPool) -> dict[str, Any]:
        """The unit's work."""
        plan, planned = self._plan, self._plan.units[unit]
        common: dict[str, Any] = {
            "store": self._store,
            "parents_store": self._parents_store,
            "dataset": self._layout.dataset,
            "version": self._layout.version,
            "unit": unit,
            "fingerprint": planned.fingerprint,
            "out": plan.out,
        }
        if not isinstance(planned, RangeUnit):
            return RepackJob(
                parent=planned.parent, parent_unit=planned.parent_unit, source=planned.source, **common
            ).to_json()
        return MixJob(
            level=plan.level,
            parents=self._parents,
            mixture=cast("MixtureSpec", plan.spec),  # ranges are of one
            start=planned.start,
            stop=planned.stop,
            **common,
        ).to_json()

    def stands(self, record: UnitRecord) -> bool:
        return True

    def redo(
        self, error: TokenlakeError, job: Mapping[str, Any], records: Mapping[int, UnitRecord]
    ) -> list[int] | None:
        return None

    def add(self, record: UnitRecord) -> None:
        pass

    def remove(self, record: UnitRecord) -> None:
        pass

    def require_hope(self) -> None:
        pass

    def judge(self) -> None:
        """The account is checked with the manifest."""


def _sources(parents: Sequence[FoundParent]) -> dict[str, Any]:
    """What the parents say of the sources of the texts; two that are called alike and differ both stay."""
    found: dict[str, Any] = {}
    for parent in parents:
        for name, source in parent.sources.items():
            free = name if found.get(name, source) == source else f"{parent.name}/{name}"
            found[free] = source
    return found

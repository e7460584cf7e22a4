"""Stored versions to a new one as a session builds it: a mixture, or the same documents packed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from tokenlake.build.address import store_address
from tokenlake.build.events import Watcher
from tokenlake.build.mixing.job import MixJob, RepackJob
from tokenlake.build.mixing.outcome import accounts_of, mixture_record
from tokenlake.build.mixing.planning.identity import order_identity, rows_identity
from tokenlake.build.mixing.planning.parents import FoundParent, lineage
from tokenlake.build.mixing.planning.plan import MixPlan
from tokenlake.build.mixing.planning.planned import RangeUnit
from tokenlake.build.mixing.planning.tokenizerfiles import merged_tokenizers, read_tokenizer
from tokenlake.build.mixing.spec import MixtureSpec
from tokenlake.build.pool import WorkerPool
from tokenlake.build.produced import produced_by
from tokenlake.build.runlog import RunLog
from tokenlake.build.textproject import config_yaml
from tokenlake.errors import TokenlakeError
from tokenlake.manifest import FileEntry, Kind, Manifest, UnitRecord
from tokenlake.storage import Layout, StoreAddress, open_store
from tokenlake.storage.layout import CONFIG, TOKENIZER


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

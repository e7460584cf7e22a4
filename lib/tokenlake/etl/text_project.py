"""Text to tokens as a session builds it: a tokenizer for each source, engines that may be found wrong, bad records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import yaml

from tokenlake.config.identity import identity, source_identity
from tokenlake.errors import EngineMismatchError, TokenlakeError
from tokenlake.etl.bad_record_budget import BadRecordBudget
from tokenlake.etl.engines import Engines
from tokenlake.etl.events import EngineCondemned, Watcher
from tokenlake.etl.job import UnitJob, store_address
from tokenlake.etl.plan.text import Plan
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.run_log import RunLog
from tokenlake.sources.hub.repo import hub_commits
from tokenlake.store.account import Account
from tokenlake.store.address import StoreAddress
from tokenlake.store.entries import FileEntry, InputFileEntry
from tokenlake.store.layout import CONFIG, TOKENIZER, Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest

_CONFIG_HEADER: Final = """\
# What this version was built with, every default worked out. Nothing of the machine is here, so that equal
# builds are equal bytes: the inputs are in manifest.json, the tokenizer is in tokenizer/, the configuration
# as it was written is in runs/.
"""


@final
class TextProject:
    """A plan of texts, and what its version says of itself."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def dataset(self) -> str:
        return self.plan.build.name

    @property
    def store(self) -> StoreAddress:
        return store_address(self.plan.build)

    def preamble(self) -> dict[str, bytes]:
        """Tokenizers, and the resolved configuration without paths of the machine."""
        found = {
            f"{TOKENIZER}/{folder}/{name}" if folder else f"{TOKENIZER}/{name}": data
            for folder, files in tokenizer_folders(self.plan).values()
            for name, data in files.items()
        }
        return found | {CONFIG: config_yaml(self._config())}

    def manifest(
        self, version: int, records: Sequence[UnitRecord], other_files: Mapping[str, FileEntry]
    ) -> Manifest:
        """Return the manifest; `records` of all units, in plan order."""
        build = self.plan.build
        accounts = {
            source.name: Account.total(record.account for record in records if record.source == source.name)
            for source in build.sources
        }
        self.plan.missed(accounts)
        return Manifest(
            kind=build.kind,
            dataset=build.name,
            version=version,
            fingerprint=self.plan.fingerprint,
            seq_length=build.pack.seq_length if build.pack else None,
            config=self._config(),
            tokenizer=self._tokenizers(),
            files=tuple(part for record in records for part in record.parts),
            other_files=dict(other_files),
            inputs=tuple(
                InputFileEntry(
                    source=file.source, path=file.path, size=file.size, token=file.token, file_id=file.file_id
                )
                for file in self.plan.inputs
            ),
            accounts=accounts,
            produced_by=produced_by(),
        )

    def begin(self, store: StoreAddress, layout: Layout, log: RunLog, watcher: Watcher) -> TextWork:
        return TextWork(self.plan, store, layout, log, watcher)

    def commits(self) -> Mapping[str, Mapping[str, str]]:
        return hub_commits(self.plan.inputs)

    def _config(self) -> dict[str, Any]:
        """What identity sees of the configuration."""
        build = self.plan.build
        return {
            "build": identity(build),
            "sources": {source.name: source_identity(source) for source in build.sources},
        }

    def _tokenizers(self) -> dict[str, Any]:
        folders = tokenizer_folders(self.plan)
        return {
            name: {
                **planned.facts,
                "folder": folders[name][0],
                "eos_id": planned.eos_id,
                "pad_id": planned.pad_id,
                "append_eos": planned.append_eos,
            }
            for name, planned in self.plan.tokenizers.items()
        }


@final
class TextWork:
    """The jobs of a plan of texts, the engines they run with, and the bad records they may have."""

    def __init__(
        self, plan: Plan, store: StoreAddress, layout: Layout, log: RunLog, watcher: Watcher
    ) -> None:
        self._plan = plan
        self._store = store
        self._layout = layout
        self._emit = watcher
        prefixes = {
            name: layout.tokenizer(folder) if folder else layout.key(TOKENIZER)
            for name, (folder, _) in tokenizer_folders(plan).items()
        }
        self._engines = Engines(plan, store, prefixes, watcher)
        self._budget = BadRecordBudget(plan)
        self._log = log

    def job(self, unit: int, pool: WorkerPool) -> dict[str, Any]:
        """The unit's work with the engine of its source, which the gate chooses at the first unit of each."""
        return self.job_with(unit, self._engines.choose(self._plan.units[unit], pool)).to_json()

    def job_with(self, index: int, engine: str) -> UnitJob:
        """The self-contained description of one unit's work."""
        plan = self._plan
        unit, build = plan.units[index], plan.build
        tokenizer = plan.tokenizers[unit.source]
        return UnitJob(
            store=self._store,
            dataset=self._layout.dataset,
            version=self._layout.version,
            unit=index,
            fingerprint=unit.fingerprint,
            source=plan.source(unit.source),
            ranges=unit.ranges,
            pack=build.pack,
            tokenizer=self._engines.tokenizer_prefix(unit.source),
            tokenizer_files=tokenizer.facts["files"],
            engine=engine,
            eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id,
            append_eos=tokenizer.append_eos,
            max_shard_size=build.max_shard_size,
            excluded=unit.excluded,
            bad_budget=self._budget.most_in_one_unit(unit),
            loss_mask=build.loss_mask,
            attention_mask=build.attention_mask,
            kept=build.kept,
            files=unit.files,
        )

    def stands(self, record: UnitRecord) -> bool:
        return not self._engines.is_condemned(record.engine)

    def redo(
        self, error: TokenlakeError, job: Mapping[str, Any], records: Mapping[int, UnitRecord]
    ) -> list[int] | None:
        """An engine that was wrong once is never used again: what it built is to be built by the reference."""
        if not isinstance(error, EngineMismatchError):
            return None
        engine = str(job["engine"])
        if not self._engines.condemn(engine):
            return []
        self._log.condemned(engine, error)
        self._emit(EngineCondemned(engine, str(error)))
        return [index for index, record in records.items() if record.engine == engine]

    def add(self, record: UnitRecord) -> None:
        self._budget.add(record)

    def remove(self, record: UnitRecord) -> None:
        self._budget.remove(record)

    def require_hope(self) -> None:
        self._budget.require_hope()

    def judge(self) -> None:
        self._budget.judge()


def config_yaml(config: Mapping[str, Any]) -> bytes:
    """Return ``config.yaml``: what identity sees of a configuration."""
    text = yaml.safe_dump(dict(config), sort_keys=True, allow_unicode=True)
    return (_CONFIG_HEADER + text).encode()


def tokenizer_folders(plan: Plan) -> dict[str, tuple[str, dict[str, bytes]]]:
    """Source name to (folder below ``tokenizer/``, files); the folder is "" when all sources share one.

    A single tokenizer lies directly in ``tokenizer/``, where every other tool looks for it.
    """
    digests = {name: _digest(planned.facts) for name, planned in plan.tokenizers.items()}
    alone = len(set(digests.values())) == 1
    return {
        name: ("" if alone else digests[name][:16], dict(planned.files.files))
        for name, planned in plan.tokenizers.items()
    }


def _digest(facts: dict[str, Any]) -> str:
    """One hash over the hashes of a tokenizer's files."""
    return hashlib.sha256(repr(sorted(facts["files"].items())).encode()).hexdigest()

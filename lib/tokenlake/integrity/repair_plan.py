"""Planning once more what a version was built from, and why a unit cannot be built again as it was.

The configuration is that of the version's newest run, or the user's. ``runs/`` lies in the store, and whoever writes a
store may write there that a function is to run, or that a variable of this machine is a password to be sent to a
server. Inputs are compared with the manifest's fingerprints; for the rest the user gives the configuration, and with
it the word that it may be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, last_step, tokens_name
from tokenlake.config.stores import is_local
from tokenlake.errors import ConfigError
from tokenlake.etl import planner
from tokenlake.etl.events import Watcher
from tokenlake.etl.plan.left_out import Precedent
from tokenlake.etl.plan.parents import lineage
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.planner import Configuration, input_changes
from tokenlake.etl.run_log import recorded
from tokenlake.store.address import StoreAddress
from tokenlake.store.base import Store
from tokenlake.store.diff import changes_between
from tokenlake.store.entries import Parent
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest


@final
@dataclass(frozen=True, slots=True)
class Replanned:
    """A plan, its configuration, and the names of its tokenizers as they were given, of those made absolute."""

    plan: Plan
    config: PipelineConfig
    names: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What is to be planned again.

    Attributes:
        store: where it is; its options go before those that a configuration has.
        layout, fingerprint: of the version.
        parents: that the version was made of: a configuration may have said "the newest", which is another by now.
        config: in place of the newest run's; None: that.
        overrides: ``key=value`` texts on top of either.
        again: as the version was planned, whatever was added since.
    """

    store: StoreAddress
    layout: Layout
    fingerprint: str
    parents: tuple[Parent, ...]
    again: Precedent
    config: Configuration | None = None
    overrides: Sequence[str] = ()

    @classmethod
    def of(
        cls, store: StoreAddress, manifest: Manifest, config: Configuration | None, overrides: Sequence[str]
    ) -> Self:
        """Return the request for what a manifest is of."""
        layout, again = Layout(manifest.dataset, manifest.version), Precedent.of(manifest)
        return cls(store, layout, manifest.fingerprint, manifest.parents, again, config, overrides)

    def plan(self, store: Store, on_event: Watcher) -> Replanned:
        """Plan what the version was built from, as its inputs are now.

        Raises:
            ConfigError: there is no configuration of it.
            SourceError, TokenizerError: an input or a tokenizer cannot be read.
        """
        loaded, names = self._loaded(store)
        whole = _step(loaded, self.layout.dataset, self.parents)
        # Not those of a record: they could lead this machine's credentials to another server.
        own = {} if self.config is None or is_local(self.store.url) else whole.save.storage_options
        options = self.store.options or own or None
        save = whole.save.model_copy(update={"output_dir": self.store.url, "storage_options": options})
        changes = {
            "name": self.layout.dataset,
            "save": save,
            "datasets": _pinned(whole.datasets, self.parents),
        }
        config = whole.model_copy(update=changes)
        return Replanned(planner.plan(config, on_event, again=self.again), config, names)

    def _loaded(self, store: Store) -> tuple[PipelineConfig, dict[str, str]]:
        """Return the configuration, and what was made of names of tokenizers -> what they were."""
        if self.config is not None:
            return load_config(self.config, self.overrides), {}
        asked, found = recorded(
            store,
            self.layout,
            self.fingerprint,
            "give the configuration with --config FILE (in Python config=...)",
        )
        names = dict(zip(_tokenizers(found), _tokenizers(asked), strict=True))
        return load_config(found, self.overrides), names


def _tokenizers(config: Mapping[str, Any]) -> list[str]:
    """Return the names of tokenizers in a configuration, in a fixed order."""
    sections = [config, config.get("tokenize") or {}]
    found = [section.get("default_tokenizer") for section in sections]
    found += [entry.get("tokenizer") for entry in config.get("datasets") or ()]
    return [str(each["name_or_path"] if isinstance(each, Mapping) else each) for each in found]


def _step(whole: PipelineConfig, dataset: str, parents: Sequence[Parent]) -> PipelineConfig:
    """Return the one build of a configuration that made a dataset: a mixture of text is several."""
    steps = first_steps(whole)
    if not steps:
        return whole
    for step in steps.values():
        if step.name == dataset:
            return step
    versions = {parent.dataset: parent.version for parent in parents}
    datasets = {dataset.name or "": dataset for dataset in whole.datasets}
    names = {source: tokens_name(whole, datasets[source]) for source in steps}
    missing = [name for name in names.values() if name not in versions]
    if missing:
        made = ", ".join([*names.values(), whole.name or ""])
        raise ConfigError(
            f"the configuration makes {made}, and {dataset} was made from none of these. Give its own with --config"
        )
    return last_step(whole, {source: versions[name] for source, name in names.items()})


def _pinned(datasets: Sequence[DatasetConfig], parents: Sequence[Parent]) -> tuple[DatasetConfig, ...]:
    """Name the versions of stored datasets that were the newest ones then."""
    named = {dataset.dataset for dataset in datasets}
    left = [parent for parent in parents if f"{parent.dataset}@v{parent.version}" not in named]
    newest = {parent.dataset: f"{parent.dataset}@v{parent.version}" for parent in left}
    return tuple(
        dataset.model_copy(update={"dataset": newest[dataset.dataset]})
        if dataset.dataset in newest
        else dataset
        for dataset in datasets
    )


_SHOWN = 5  # inputs that a message names


def planned_unit(plan: Plan, manifest: Manifest, unit: int, record: UnitRecord | None) -> int | None:
    """Return the index in a plan of the unit that built a version's unit; None if the plan has no such unit.

    Units are found by what they are, not by where they stand: a file that was added since moves others.
    """
    if record is not None:
        found = (planned.index for planned in plan.units if planned.fingerprint == record.fingerprint)
        return next(found, None)
    return unit if plan.fingerprint == manifest.fingerprint and unit < len(plan.units) else None


def why_not(plan: Plan, manifest: Manifest, record: UnitRecord | None) -> str:
    """Say what of a plan is not what a version, or one unit of which there is a record, was built from."""
    wanted = manifest.inputs if record is None else tuple(entry.file for entry in record.inputs)
    inputs = input_changes(wanted, plan.inputs)
    if inputs:
        return "its inputs are not what they were: " + "; ".join(inputs)
    if record is None and (others := input_changes(manifest.inputs, plan.inputs, added=True)):
        return (
            "the list of inputs is not what it was, and its ledger record is damaged as well: "
            + "; ".join(others)
        )
    now = lineage(plan.parents)
    wrong = [
        f"its parent {one.dataset}@v{one.version} is another one"
        for one in manifest.parents
        if one not in now
    ]
    wrong += [
        f"{one.key} is {one.b!r}; expected {one.a!r}"
        for one in changes_between("", manifest.config, dict(plan.config))
    ]
    shown = (
        "; ".join(wrong[:_SHOWN])
        or "other units, another tokenizer, other files to exclude or other functions"
    )
    return f"the configuration is not what it was built with: {shown}; give the one of then with --config"

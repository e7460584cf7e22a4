"""Planning of a version once more, from its configuration and its inputs as they are.

The plan of a repair must be that of the build. It takes the size of units and the
choice of files from the manifest, and the versions of parents by their numbers: files
and versions that were added since are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import (
    first_steps,
    is_tokens_of,
    last_step,
    resolve_source,
)
from tokenlake.errors import ConfigError
from tokenlake.etl import planner
from tokenlake.etl.events import Event
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.precedent import Precedent
from tokenlake.etl.planner import Configuration
from tokenlake.etl.run_log import recorded
from tokenlake.etl.sources.allowed import require_allowed_inputs
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.allowed import INPUTS, AllowedPlaces
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import Parent
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.schemes import is_local

_REMEDY = "give the configuration with --config FILE (in Python config=...)"


@final
@dataclass(frozen=True, slots=True)
class Replanned:
    """A version that was planned again.

    Attributes:
        plan: Plan, with the inputs as they are now.
        config: Configuration that was planned.
    """

    plan: Plan
    config: PipelineConfig


def replan(
    store: Store,
    address: StoreAddress,
    manifest: Manifest,
    *,
    config: Configuration | None,
    overrides: Sequence[str],
    on_event: Callable[[Event], None],
) -> Replanned:
    """Plan a version again, as it was planned, without anything that was added since.

    Args:
        store: Store of the version.
        address: Address of the store.
        manifest: Manifest of the version.
        config: Configuration given by the user; None: that of the version's newest run.
        overrides: Texts ``key=value`` that change the configuration.
        on_event: Function that receives the events of planning.

    Raises:
        ConfigError: There is no configuration of the version.
        SourceError, TokenizerError: An input or a tokenizer cannot be read.
    """
    # The build of the configuration that made this dataset, with the store that is
    # repaired.
    loaded = _loaded_config(store, manifest, config, overrides)
    step = step_of(loaded, manifest.dataset, manifest.parents)
    # Storage options of a record are not used: they could send this machine's
    # credentials to another server.
    options: dict[str, Any] | None = dict(address.options) or None
    if options is None and config is not None and not is_local(address.url):
        options = step.save.storage_options or None
    save = step.save.model_copy(
        update={"output_dir": address.url, "storage_options": options}
    )
    # Parents are named with their versions, and the manifest decides about all that a
    # first build would choose.
    changes = {
        "name": manifest.dataset,
        "save": save,
        "datasets": _with_versions(step, manifest.parents),
    }
    planned_config = step.model_copy(update=changes)
    plan = planner.plan(planned_config, on_event, again=Precedent.of(manifest))
    return Replanned(plan, planned_config)


def _loaded_config(
    store: Store,
    manifest: Manifest,
    config: Configuration | None,
    overrides: Sequence[str],
) -> PipelineConfig:
    """Return the user's configuration, or that of the version's newest run."""
    if config is not None:
        return load_config(config, overrides)
    layout = Layout(manifest.dataset, manifest.version)
    loaded = load_config(
        recorded(store, layout, manifest.fingerprint, _REMEDY), overrides
    )
    # The store names these inputs, and not the person who runs the command.
    places = AllowedPlaces.of(os.environ, INPUTS)
    for dataset in loaded.datasets:
        if dataset.data_files:
            require_allowed_inputs(resolve_source(loaded, dataset), places)
    return loaded


def _with_versions(
    config: PipelineConfig, parents: Sequence[Parent]
) -> tuple[Any, ...]:
    """Return the datasets of a configuration, with the version of each stored one.

    A configuration may name the newest version of a stored dataset, which is another
    one by now.
    """
    # An exact reference in the configuration is kept as it is.
    configured_references = {dataset.dataset for dataset in config.datasets}
    reference_by_dataset: dict[str, str] = {}
    for parent in parents:
        reference = f"{parent.dataset}@v{parent.version}"
        if reference not in configured_references:
            reference_by_dataset[parent.dataset] = reference
    datasets: list[Any] = []
    for dataset in config.datasets:
        if dataset.dataset in reference_by_dataset:
            reference = reference_by_dataset[dataset.dataset]
            dataset = dataset.model_copy(update={"dataset": reference})
        datasets.append(dataset)
    return tuple(datasets)


def step_of(
    config: PipelineConfig, dataset: str, parents: Sequence[Parent]
) -> PipelineConfig:
    """Return the one build of a configuration that made a dataset.

    A mixture of text is several builds: one for the tokens of each source, and the last
    one for the mixture.

    Args:
        config: Configuration.
        dataset: Name of the dataset.
        parents: Versions that the dataset was made from.

    Raises:
        ConfigError: The configuration makes other datasets.
    """
    steps = first_steps(config)
    if not steps:
        return config
    for step in steps.values():
        if step.name == dataset:
            return step
    # The last build reads the tokens of all sources. They are those of the version's
    # parents.
    tokens_by_source: dict[str, str] = {}
    for source, step in steps.items():
        parent = _tokens_of(source, step.name or "", parents)
        if parent is not None:
            tokens_by_source[source] = f"{parent.dataset}@v{parent.version}"
    if len(tokens_by_source) < len(steps):
        built_names = [step.name or "" for step in steps.values()]
        built_names.append(config.name or "")
        raise ConfigError(
            f"the configuration makes {', '.join(built_names)}, and {dataset} was made from none of these. "
            "Give its own with --config"
        )
    return last_step(config, tokens_by_source)


def _tokens_of(source: str, name: str, parents: Sequence[Parent]) -> Parent | None:
    """Return the parent with the tokens of a source.

    It has the name that the configuration gives it, or another one: the dataset may
    have been renamed in the configuration since.
    """
    for parent in parents:
        if parent.dataset == name:
            return parent
    for parent in parents:
        if is_tokens_of(parent.dataset, source):
            return parent
    return None

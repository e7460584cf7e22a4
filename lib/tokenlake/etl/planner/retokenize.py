"""Plan of `retokenize`: the text of a stored version is tokenized again.

The version knows its inputs: its manifest has their paths and hashes, and the record of
its run says how they were read. From both, a configuration of texts is made and planned
like any other. The inputs must still be the same. Files that were added since are left
alone, and documents that the version holds out of training are held out again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Protocol

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.config.stages import TokenizerChoice
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.events import Watcher
from tokenlake.etl.plan.parents import FoundParent, find_parents
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.precedent import Precedent
from tokenlake.etl.planner.changed_inputs import input_changes
from tokenlake.etl.run_log import recorded
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout

_OPTIONS_OF_TOKENS: Final = (
    "tokenizer_kwargs",
    "long_documents",
    "truncation_strategy",
    "truncation_side",
    "num_shards",
    "save_path",
    "save_format",
    "shard_column",
    "cache_path",
)
"""Options of a dataset about its tokens and files, which get their defaults."""

_OPTIONS_OF_READING: Final = ("on_bad_record", "max_bad_fraction", "splits")
"""Options of a dataset that the section `source` has too."""


class _MakePlan(Protocol):
    """Function that plans a resolved build.

    See :func:`tokenlake.etl.planner.make_plan`.
    """

    def __call__(
        self, build: ResolvedBuild, *, on_event: Watcher, again: Precedent | None
    ) -> Plan: ...


def plan_again(
    config: PipelineConfig,
    dataset: DatasetConfig,
    make_plan: _MakePlan,
    on_event: Watcher,
    again: Precedent | None,
) -> Plan:
    """Return the plan that tokenizes the text of a stored version again.

    Args:
        config: Configuration with a single dataset.
        dataset: That dataset, which names the stored version.
        make_plan: Function that plans a resolved build.
        on_event: Function that receives progress.
        again: Version that is planned again, as if no inputs had been added since; None
            for that of the text.

    Raises:
        ConfigError: The version was not built from text, its configuration was not
            recorded, or its inputs changed.
        IntegrityError: Its manifest is damaged.
    """
    # 1. The configuration of the text, with the tokenizer of the new one.
    stored = resolve(config)
    catalog = Catalog(open_store(address_of_build(stored)))
    (parent,) = find_parents(catalog, stored.parents, stored.name)
    original = _configuration_of(catalog, parent, config)
    datasets = _with_tokenizer(original, config.tokenizer_of(dataset))
    update = {"datasets": datasets, "source": original.source}
    build = resolve(config.model_copy(update=update))

    # 2. The plan, of the inputs that the version had.
    if again is None:
        # The numbers of versions of another dataset mean nothing here.
        again = replace(Precedent.of(parent.manifest), version=None)
    try:
        plan = make_plan(build, on_event=on_event, again=again)
    except SourceNotFoundError as error:
        raise _text_changed(parent, str(error)) from error

    # 3. The inputs must be the same.
    changes = input_changes(parent.manifest.inputs, plan.inputs, added=True)
    if changes:
        raise _text_changed(parent, "; ".join(changes))
    tokenizer_names = {source.tokenizer.name_or_path for source in build.sources}
    note = (
        f"{parent.name}: the text of {parent.reference} is tokenized again, by "
        f"{', '.join(tokenizer_names)}"
    )
    return replace(plan, parents=(parent,), notes=(note, *plan.notes))


def _text_changed(parent: FoundParent, changes: str) -> ConfigError:
    """Return the error for inputs that are no longer those of the version."""
    return parent.wrong(
        f"the text of {parent.reference} has changed: {changes}. Restore it; or build {parent.manifest.dataset} "
        "again, whose next version has the present text; or write data_files instead of dataset",
        ".retokenize",
    )


def _configuration_of(
    catalog: Catalog, parent: FoundParent, config: PipelineConfig
) -> PipelineConfig:
    """Return the configuration by which a version was built from text.

    A version that was tokenized again itself names a version of the same store, whose
    configuration is the one of the text.

    Args:
        catalog: Catalog of the store.
        parent: Version whose text is tokenized again.
        config: Configuration of the new build.
    """
    # 1. Versions without text of their own.
    manifest = parent.manifest
    if "around" in manifest.config.get("build", {}):
        references = ", ".join(
            f"{version.dataset}@v{version.version}" for version in manifest.parents
        )
        raise parent.wrong(
            f"{parent.reference} was made of {references}, and not of text; name the versions that were built from "
            "text",
            ".retokenize",
        )
    if manifest.kind == "preference":
        raise parent.wrong(
            f"{parent.reference} contains preferences, which can be neither packed nor mixed",
            ".retokenize",
        )

    # 2. The recorded configuration.
    layout = Layout(manifest.dataset, manifest.version)
    recorded_fields = recorded(
        catalog.store,
        layout,
        manifest.fingerprint,
        "write data_files in place of dataset",
    )
    original = load_config(recorded_fields)
    retokenized = original.retokenized
    if retokenized is None:
        return original

    # 3. It names a version in turn: that one's configuration has the text, and this one
    #    the tokenizer.
    original = original.model_copy(update={"save": config.save})
    stored = resolve(original)
    (earlier_parent,) = find_parents(catalog, stored.parents, stored.name)
    texts = _configuration_of(catalog, earlier_parent, config)
    datasets = _with_tokenizer(texts, original.tokenizer_of(retokenized))
    return original.model_copy(update={"datasets": datasets, "source": texts.source})


def _with_tokenizer(
    texts: PipelineConfig, choice: TokenizerChoice | None
) -> tuple[DatasetConfig, ...]:
    """Return the datasets of a configuration of texts with another tokenizer.

    Options of its sections that are about reading become options of each dataset.
    """
    datasets: list[DatasetConfig] = []
    for dataset in texts.datasets:
        update: dict[str, Any] = {}
        for option in _OPTIONS_OF_TOKENS:
            update[option] = DatasetConfig.model_fields[option].get_default()
        for option in _OPTIONS_OF_READING:
            setting = getattr(dataset, option)
            if setting is None:
                setting = getattr(texts.source, option)
            update[option] = setting
        # The default of the section is not written into the dataset, so that the
        # identity of the build stays.
        special_tokens = dataset.special_tokens_in_text
        if not special_tokens:
            special_tokens = texts.tokenize.special_tokens_in_text
        if dataset.special_tokens_in_text is None and special_tokens == "literal":
            special_tokens = None
        update["special_tokens_in_text"] = special_tokens
        update["tokenizer"] = choice
        datasets.append(dataset.model_copy(update=update))
    return tuple(datasets)

"""Tokens made again, by another tokenizer, of the text that a stored version was built from.

A version knows its inputs: the manifest has paths and hashes, the record of its run how they were read. From both a
build of text is made like any other, with another tokenizer. Its inputs must still be what they were; what was added
since is left alone, and what the version holds out of training is held out again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.config.stages import TokenizerChoice
from tokenlake.errors import ConfigError
from tokenlake.etl.plan.held_out import Precedent
from tokenlake.etl.plan.parents import FoundParent, find_parents
from tokenlake.etl.run_log import recorded
from tokenlake.sources.inputs import InputFile
from tokenlake.store.address import address_of_build, open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.entries import InputFileEntry
from tokenlake.store.layout import Layout

_OF_TOKENS: Final = (
    *("tokenizer_kwargs", "long_documents", "truncation_strategy", "truncation_side", "num_shards"),
    *("save_path", "save_format", "shard_column", "cache_path"),
)
"""Options of a dataset that are about its tokens and files, which are made anew."""

_OF_READING: Final = ("on_bad_record", "max_bad_fraction", "splits")
"""Options of a dataset that the section `source` has, too."""


@final
@dataclass(frozen=True, slots=True)
class TextAgain:
    """The text of a stored version, to be tokenized again.

    Attributes:
        parent: the version.
        build: of its text.
        precedent: what of it is as it was.
    """

    parent: FoundParent
    build: ResolvedBuild
    precedent: Precedent

    @classmethod
    def of(cls, config: PipelineConfig, dataset: DatasetConfig) -> TextAgain:
        """Return what a configuration wants made of the text of `dataset`, its only one.

        Raises:
            ConfigError: the version was not built from text, or its run's configuration is not kept or not used.
            IntegrityError: its manifest is damaged.
        """
        asked = resolve(config)
        catalog = Catalog(open_store(address_of_build(asked)))
        (parent,) = find_parents(catalog, asked.parents, asked.name)
        whole = _of_text(catalog, parent, config)
        choice = config.tokenizer_of(dataset)
        texts = tuple(_made_again(each, whole, choice) for each in whole.datasets)
        build = resolve(config.model_copy(update={"datasets": texts, "source": whole.source}))
        return cls(parent, build, Precedent.again(parent.manifest))

    @property
    def note(self) -> str:
        """What a plan says of it."""
        names = {source.tokenizer.name_or_path for source in self.build.sources}
        return f"{self.parent.name}: the text of {self.parent.reference} is tokenized again, by {', '.join(names)}"

    def require_same(self, inputs: Iterable[InputFile | InputFileEntry]) -> None:
        """Raise ConfigError unless these inputs are those that the version was built from."""
        if changes := input_changes(self.parent.manifest.inputs, inputs, added=True):
            raise self.changed("; ".join(changes))

    def changed(self, why: str) -> ConfigError:
        """Return the error of inputs that are not what they were."""
        name = self.parent.manifest.dataset
        return self.parent.wrong(
            f"the text of {self.parent.reference} is not what it was: {why}. Restore it; or build {name} again, whose "
            "next version is of what there is now; or write data_files in place of dataset",
            ".retokenize",
        )


def _of_text(catalog: Catalog, parent: FoundParent, config: PipelineConfig) -> PipelineConfig:
    """Return the configuration by which a version was built from text."""
    manifest = parent.manifest
    if "around" in manifest.config.get("build", {}):
        made_of = ", ".join(f"{each.dataset}@v{each.version}" for each in manifest.parents)
        raise parent.wrong(
            f"{parent.reference} was made of {made_of}, and not of text; name the versions that were built from text",
            ".retokenize",
        )
    if manifest.kind == "preference":
        raise parent.wrong(
            f"{parent.reference} holds preferences, which are neither packed nor mixed", ".retokenize"
        )
    where, remedy = Layout(manifest.dataset, manifest.version), "write data_files in place of dataset"
    _, found = recorded(catalog.store, where, manifest.fingerprint, remedy)
    whole = load_config(found)
    if (before := whole.retokenized) is None:
        return whole
    # It was tokenized again itself, of a version of the same store.
    whole = whole.model_copy(update={"save": config.save})
    asked = resolve(whole)
    (first,) = find_parents(catalog, asked.parents, asked.name)
    texts = _of_text(catalog, first, config)
    again = tuple(_made_again(each, texts, whole.tokenizer_of(before)) for each in texts.datasets)
    return whole.model_copy(update={"datasets": again, "source": texts.source})


def _made_again(
    dataset: DatasetConfig, whole: PipelineConfig, choice: TokenizerChoice | None
) -> DatasetConfig:
    """Return a source as it was read, with another tokenizer; what its sections said, it says itself."""
    own: dict[str, Any] = {name: getattr(dataset, name) for name in _OF_READING}
    said = {name: getattr(whole.source, name) if value is None else value for name, value in own.items()}
    spelled = dataset.special_tokens_in_text or whole.tokenize.special_tokens_in_text
    usual = dataset.special_tokens_in_text is None and spelled == "literal"
    return dataset.model_copy(
        update={
            **{name: DatasetConfig.model_fields[name].get_default() for name in _OF_TOKENS},
            **said,
            "special_tokens_in_text": None if usual else spelled,
            "tokenizer": choice,
        }
    )


Identified: TypeAlias = InputFile | InputFileEntry
"""An input file as identity knows it: by source, path, size and token."""

_SHOWN: Final = 5  # inputs that a message names


def input_changes(
    wanted: Iterable[Identified], got: Iterable[Identified], *, added: bool = False
) -> list[str]:
    """Return a clause for each input that changed or vanished; with `added` also for those that are new."""
    there = {(file.source, file.path): file for file in got}
    known = {(file.source, file.path): file for file in wanted}
    found: list[str] = []
    for name, file in known.items():
        now = there.get(name)
        if now is None:
            found.append(f"{_name(file)} is gone; expected {_what(file)}")
        elif (now.size, now.token) != (file.size, file.token):
            found.append(f"{_name(file)} is {_what(now)}; expected {_what(file)}")
    if added:
        found += [f"{_name(file)} is new" for name, file in there.items() if name not in known]
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {more} more"] if more > 0 else found


def _name(file: Identified) -> str:
    return f"{file.path} of {file.source}"


def _what(file: Identified) -> str:
    return f"{file.size} bytes, {file.token}"

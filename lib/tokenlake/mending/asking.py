"""From how a run was asked to the project that it built, planned once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast, final

from tokenlake.build.asked import newest_asked
from tokenlake.build.events import Watcher
from tokenlake.build.project import Project
from tokenlake.build.projects import Configuration, plan_project
from tokenlake.config import DatasetConfig, PipelineConfig, load_config
from tokenlake.config.steps import first_steps, last_step, tokens_name
from tokenlake.config.stores import is_local
from tokenlake.errors import ConfigError
from tokenlake.manifest import Manifest, Parent
from tokenlake.mending.trust import check_record
from tokenlake.storage import Layout, Store, StoreAddress

_HUB = ("hf", "huggingface")


@final
@dataclass(frozen=True, slots=True)
class Planned:
    """A project, and the names of its tokenizers as they were given, of those whose paths were made absolute."""

    project: Project
    names: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned again.

    Attributes:
        store: where it is; its options go before those that a configuration has.
        layout, fingerprint: of the version.
        parents: that the version was made of: a configuration may have said "the newest", which is another by now.
        config: instead of how the newest run was asked; None: that.
        overrides: ``key=value`` texts on top of either.
        inputs: (source, path) of the files that it was built from, whatever was added since; None: not known.
    """

    store: StoreAddress
    layout: Layout
    fingerprint: str
    parents: tuple[Parent, ...]
    inputs: frozenset[tuple[str, str]] | None = None
    config: Configuration | None = None
    overrides: Sequence[str] = ()

    @classmethod
    def of(
        cls, store: StoreAddress, manifest: Manifest, config: Configuration | None, overrides: Sequence[str]
    ) -> Self:
        """Return the question that a manifest answers."""
        inputs = frozenset((file.source, file.path) for file in manifest.inputs)
        layout = Layout(manifest.dataset, manifest.version)
        return cls(store, layout, manifest.fingerprint, manifest.parents, inputs, config, overrides)

    def plan(self, store: Store, on_event: Watcher) -> Planned:
        """Plan what the version was built from, as its inputs are now.

        Raises:
            ConfigError: nobody says how it was asked, or what was said is no configuration of it.
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
        return Planned(plan_project(whole.model_copy(update=changes), on_event, only=self.inputs), names)

    def _loaded(self, store: Store) -> tuple[PipelineConfig, dict[str, str]]:
        """Return the configuration, and what was made of names of tokenizers -> what they were."""
        if self.config is not None:
            return load_config(self.config, self.overrides), {}
        asked = newest_asked(store, self.layout, self.fingerprint)
        if asked is None or asked.config is None:
            why = "no run of it says how it was asked" if asked is None else "it was not kept with the run"
            reason = f" ({asked.left_out})" if asked is not None and asked.left_out else ""
            raise ConfigError(
                f"{self.layout.dataset}@v{self.layout.version}: its configuration is needed to build anything again, "
                f"and {why}{reason}; give it with --config FILE (in Python config=...)"
            )
        check_record(asked.config, f"{self.layout.dataset}@v{self.layout.version}")
        found = rooted(asked.config, asked.directory)
        names = dict(zip(_tokenizers(found), _tokenizers(asked.config), strict=True))
        return load_config(found, self.overrides), names


def rooted(config: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return a configuration whose relative paths, which refer to a folder, are absolute.

    In that folder it stays as it is. What may be a path or an id of the Hub is a path if it is there.
    """
    found = dict(config)
    if not directory or Path(directory) == Path.cwd():
        return found
    root = Path(directory)
    found["datasets"] = [_rooted_dataset(entry, root) for entry in config.get("datasets") or ()]
    found["default_tokenizer"] = _tokenizer(config.get("default_tokenizer"), root)
    if tokenize := config.get("tokenize"):
        named = _tokenizer(tokenize.get("default_tokenizer"), root)
        found["tokenize"] = {**tokenize, "default_tokenizer": named}
    return found


def _rooted_dataset(entry: Mapping[str, Any], root: Path) -> dict[str, Any]:
    found = {**entry, "tokenizer": _tokenizer(entry.get("tokenizer"), root)}
    files = entry.get("data_files")
    if files is not None and entry.get("type") not in _HUB:
        found["data_files"] = (
            _absolute(files, root) if isinstance(files, str) else [_absolute(each, root) for each in files]
        )
    if entry.get("exclude"):
        found["exclude"] = _absolute(entry["exclude"], root)
    chat = entry.get("chat")
    if chat and chat.get("template") and "{" not in chat["template"]:
        found["chat"] = {**chat, "template": _if_there(chat["template"], root)}
    return found


def _tokenizer(value: Any, root: Path) -> Any:
    if isinstance(value, str):
        return _if_there(value, root)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {**fields, "name_or_path": _if_there(fields["name_or_path"], root)}
    return value


def _tokenizers(config: Mapping[str, Any]) -> list[str]:
    """Return the names of tokenizers in a configuration, in a fixed order."""
    sections = [config, config.get("tokenize") or {}]
    found = [section.get("default_tokenizer") for section in sections]
    found += [entry.get("tokenizer") for entry in config.get("datasets") or ()]
    return [str(each["name_or_path"] if isinstance(each, Mapping) else each) for each in found]


def _absolute(path: str, root: Path) -> str:
    """Join, and nothing more: a glob is no path, and ``~`` is for whoever opens it."""
    return path if "://" in path or path.startswith(("/", "~")) else f"{root}/{path}"


def _if_there(path: str, root: Path) -> str:
    found = _absolute(path, root)
    return found if found != path and Path(found).exists() else path


def _step(whole: PipelineConfig, dataset: str, parents: Sequence[Parent]) -> PipelineConfig:
    """Return the one build of a configuration that made a dataset: a mixture of text is several."""
    steps = first_steps(whole)
    if not steps:
        return whole
    for step in steps.values():
        if step.name == dataset:
            return step
    versions = {parent.dataset: parent.version for parent in parents}
    names = {source: tokens_name(whole, _of(whole, source)) for source in steps}
    missing = [name for name in names.values() if name not in versions]
    if missing:
        made = ", ".join([*names.values(), whole.name or ""])
        raise ConfigError(
            f"the configuration makes {made}; {dataset} was made of none of it. Give its own with --config"
        )
    return last_step(whole, {source: versions[name] for source, name in names.items()})


def _of(whole: PipelineConfig, source: str) -> DatasetConfig:
    return next(dataset for dataset in whole.datasets if (dataset.name or "") == source)


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

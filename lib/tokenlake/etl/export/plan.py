"""What a configuration wants to have beside its version: flat directories and a push to the Hub, after the commit.

No export is part of a version or of its fingerprint. Each says which version it is of, so that a second run finds it
made, and one that was interrupted is made again. Flat directories are pushed, too: searched for secrets, sent, visible
by one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import unquote, urlsplit

from tokenlake.base.secrets import resolve_options
from tokenlake.base.section import BlockSecret, plain_options
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import raise_problems
from tokenlake.config.resolve import first_steps, is_tokens_of, store_of, tokens_name
from tokenlake.config.stages import SaveStageConfig, TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.export.directory import Target, require_apart, target_of
from tokenlake.etl.export.flat_manifest import FileFormat
from tokenlake.etl.export.version import ExportOptions, exported
from tokenlake.etl.publish import push_to_hub
from tokenlake.etl.publish.repository import HubRepository
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.schemes import scheme_of

EXPORTS: Final = "_exports"
"""Folder of a store for exports that have no path of their own; no dataset has such a name."""


@final
@dataclass(frozen=True, slots=True)
class Export:
    """A flat directory to be made after the commit.

    Attributes:
        key: the option that asks for it.
        dataset: of the store, whose newest version of this build it holds.
        output_path: where; in the store, the folder of its versions.
        in_store: whether that is the store's own folder, in which nothing is anybody else's.
        source: Name of the source whose tokens it holds; "" where it holds rows of the whole.
    """

    key: str
    dataset: str
    output_path: str
    form: FileFormat
    options: ExportOptions
    in_store: bool = False
    source: str = ""

    def is_of(self, dataset: str) -> bool:
        """Whether a dataset of the store is what it holds: also tokens that a configuration of another name made."""
        return dataset == self.dataset or (self.source != "" and is_tokens_of(dataset, self.source))

    def target(self, config: PipelineConfig, manifest: Manifest | None = None) -> Target:
        """Return where the export of a version goes; None: where those of all versions go."""
        given, store = config.save.storage_options, store_of(config)
        options = plain_options(given) if given and scheme_of(store) == scheme_of(self.output_path) else None
        number = f"/v{manifest.version}" if manifest and self.in_store else ""
        return target_of(self.output_path + number, options, self.key, in_store=self.in_store)

    def replaces(self, target: Target, config: PipelineConfig) -> bool:
        """Return whether what lies at the target may go: an older export of the same rows, or whatever was allowed."""
        found = target.manifest()
        made_of: Mapping[str, Any] = found.made_of.get("export", {}) if found else {}
        older = self.is_of(str(made_of.get("dataset"))) and made_of.get("source") == self.options.source
        return self.in_store or config.save.overwrite or older


def exports_of(config: PipelineConfig) -> list[Export]:
    """Return the flat directories that a configuration asks for; none for what the store holds itself.

    That is zstd Parquet, of texts in any number of files; a mixture of stored rows has as many as its units make.

    Raises:
        ConfigError: a format and a compression do not go together.
    """
    save = config.save
    found = [_of_dataset(config, dataset) for dataset in config.datasets if dataset.save_path]
    form = FileFormat.of(save.format, save.compression)
    counted = save.num_shards is not None and not config.is_text_build
    if counted or form != FileFormat("parquet", "zstd"):
        masks = all(_has_mask(config, dataset) for dataset in config.datasets)
        options = ExportOptions(
            save.num_shards, None if save.num_shards else save.max_shard_size, attention_mask=masks
        )
        folder, name = _store_folder(config), config.name or ""
        found.append(Export("save.format", name, f"{folder}/{EXPORTS}/{name}", form, options, in_store=True))
    return found


def wanted_beside(config: PipelineConfig) -> list[dict[str, Any]]:
    """Return what :func:`make_exports` would make, a record each: the option, the dataset, the form and the place.

    Raises:
        ConfigError: a format and a compression do not go together.
    """
    found: list[dict[str, Any]] = [
        {
            "option": export.key,
            "dataset": export.dataset,
            "form": f"{export.form.format}, {export.form.compression}",
            "place": export.target(config).url + ("/vN" if export.in_store else ""),
        }
        for export in exports_of(config)
    ]
    if config.save.push_to_hub:
        form = "private repository" if config.save.hub_private else "public repository"
        place = f"https://huggingface.co/datasets/{config.save.hub_repo_id}"
        found.append({"option": "save.push_to_hub", "dataset": config.name, "form": form, "place": place})
    return found


def _store_folder(config: PipelineConfig) -> str:
    """Return the path or URL of the store; of a ``file://`` URL the path."""
    store = store_of(config).rstrip("/")
    return unquote(urlsplit(store).path) if scheme_of(store) == "file" else store


def _of_dataset(config: PipelineConfig, dataset: DatasetConfig) -> Export:
    """Return the export of one source; where sources are mixed, of its tokens before that."""
    save, name = config.save, dataset.name or ""
    format, by_value = dataset.save_format or save.format, dataset.shard_column is not None
    num_shards = None if by_value else dataset.num_shards or save.num_shards
    # The section's compression is that of its format: a dataset of another one has the usual.
    form = FileFormat.of(format, save.compression if format == save.format else None)
    alone = bool(first_steps(config)) or len(config.datasets) == 1
    options = ExportOptions(
        num_shards=num_shards,
        max_shard_size=None if num_shards else save.max_shard_size,
        source=None if alone else name,
        attention_mask=_has_mask(config, dataset),
        shard_column=dataset.shard_column,
    )
    key, path = f"datasets.{name}.save_path", dataset.save_path or ""
    if not first_steps(config):
        return Export(key, config.name or "", path, form, options)
    return Export(key, tokens_name(config, dataset), path, form, options, source=name)


def _has_mask(config: PipelineConfig, dataset: DatasetConfig) -> bool:
    choice = config.tokenizer_of(dataset)
    return not isinstance(choice, TokenizerConfig) or choice.return_attention_mask


def _by_value_problems(dataset: DatasetConfig) -> Iterator[str]:
    """Yield what files by the values of a column need and lack."""
    column, path = dataset.shard_column, f"datasets.{dataset.name}"
    if column is None:
        return
    if not dataset.save_path:
        yield (
            f"{path}.shard_column: {column!r}, but there is no save_path; units write the store's files, so that files "
            "by value are an export: set it, or run `tokenlake export --shard-column` later"
        )
    if column not in (dataset.additional_fields or ()):
        yield f"{path}.shard_column: {column!r} is none of additional_fields, which are the columns beside the tokens"
    if dataset.num_shards is not None:
        yield f"{path}.shard_column: set beside num_shards, but each value has files of its own; leave one of them out"


def check_exports(config: PipelineConfig) -> None:
    """Look, before anything is built, whether the exports can be made; change nothing.

    Raises:
        ConfigError: files by value lack a folder or their column; a target is not empty and no older export, holds an
            input or another target; the Hub's repository is none, or there is no token.
        NotAvailableError: a target is a URL of something else.
        MissingExtraError: a package is missing.
    """
    raise_problems(ConfigError, [each for dataset in config.datasets for each in _by_value_problems(dataset)])
    wanted = {export.key: (export, export.target(config)) for export in exports_of(config)}
    for (key, (_, target)), (other, (_, place)) in permutations(wanted.items(), 2):
        if target.is_within(place.url):
            told = f"{target.url} lies in {place.url} of {other}; give each a folder of its own"
            raise ConfigError(f"{key}: {told}")
    folder = _store_folder(config)
    store = folder if scheme_of(folder) else str(Path(folder).expanduser().resolve())
    for export, target in wanted.values():
        if export.in_store:
            continue
        if store == target.url or store.startswith(f"{target.url}/"):
            raise ConfigError(f"{export.key}: {target.url} holds the store {store}; give a folder of its own")
        if target.is_within(store):  # which may not exist yet, so that looking at it would find nothing
            raise ConfigError(
                f"{export.key}: {target.url} lies in the store {store}; give a folder outside of it"
            )
        for dataset in config.datasets:
            require_apart(export.key, target, dataset.all_files)
        target.check(overwrite=export.replaces(target, config))
    if config.save.push_to_hub and not isinstance(config.save.hub_token, BlockSecret):
        HubRepository(config.save.hub_repo_id or "", token=hub_token(config.save))


def make_exports(config: PipelineConfig, manifest: Manifest) -> tuple[str, ...]:
    """Make the exports that are not there yet, and return where all are: paths, and URLs.

    Args:
        config: the whole configuration, of all steps.
        manifest: of its committed version.

    Raises:
        TokenlakeError: see :func:`tokenlake.etl.export.version.export_version` and
            :func:`tokenlake.etl.publish.push_to_hub`. The version is there; a rerun makes what is missing.
    """
    made: list[str] = []
    address, options = store_of(config), plain_options(config.save.storage_options or {})
    for export in exports_of(config):
        store, version = open_read_store(address, storage_options=options), manifest
        if export.dataset != manifest.dataset:  # what the committed version was mixed of
            exact = [parent for parent in manifest.parents if parent.dataset == export.dataset]
            alike = [parent for parent in manifest.parents if export.is_of(parent.dataset)]
            (parent, *_) = [*exact, *alike]
            version = Catalog(store).manifest(parent.dataset, parent.version)
        target = export.target(config, version)
        overwrite = export.replaces(target, config)
        exported(store, version, target, export.form, export.options, overwrite=overwrite)
        made.append(target.url)
    if config.save.push_to_hub:
        report = push_to_hub(
            address,
            config.save.hub_repo_id or "",
            name=f"{manifest.dataset}@v{manifest.version}",
            public=not config.save.hub_private,
            token=hub_token(config.save),
            storage_options=options,
        )
        made.append(report.url)
    return tuple(made)


def hub_token(save: SaveStageConfig) -> str | None:
    """Return the token that section `save` holds or refers to; ConfigError where that is not there."""
    given = save.hub_token
    return None if given is None else resolve_options(plain_options({"token": given}))["token"]

"""What a configuration wants to have beside its version: flat directories and a push to the Hub, after the commit.

No export is part of a version or of its fingerprint. Each says which version it is of, so that a second run finds it
made, and one that was interrupted is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import unquote, urlsplit

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import raise_problems
from tokenlake.config.secret import BlockSecret, plain_options
from tokenlake.config.stages import TokenizerConfig
from tokenlake.config.steps import first_steps, tokens_name
from tokenlake.config.stores import scheme_of, store_of
from tokenlake.errors import ConfigError
from tokenlake.export.directory import Target, require_apart, target_of
from tokenlake.export.manifest import FileFormat
from tokenlake.store.address import open_read_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.manifest import Manifest

if TYPE_CHECKING:  # and imported where something is exported: most builds ask for nothing
    from tokenlake.export.version import ExportOptions

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
    """

    key: str
    dataset: str
    output_path: str
    form: FileFormat
    options: ExportOptions
    in_store: bool = False

    def target(self, config: PipelineConfig, manifest: Manifest | None = None) -> Target:
        """Return where the export of a version goes; None: where those of all versions go."""
        given, store = config.save.storage_options, store_of(config)
        options = plain_options(given) if given and scheme_of(store) == scheme_of(self.output_path) else None
        number = f"/v{manifest.version}" if manifest and self.in_store else ""
        return target_of(self.output_path + number, options, self.key)

    def replaces(self, target: Target, config: PipelineConfig) -> bool:
        """Return whether what lies at the target may go: an older export of the same rows, or whatever was allowed."""
        found = target.manifest()
        made_of: Mapping[str, Any] = found.made_of.get("export", {}) if found else {}
        older = (made_of.get("dataset"), made_of.get("source")) == (self.dataset, self.options.source)
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
        from tokenlake.export.version import ExportOptions

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
        seen = "private" if config.save.hub_private else "public"
        place = f"https://huggingface.co/datasets/{config.save.hub_repo_id}"
        push = {"option": "save.push_to_hub", "dataset": config.name, "form": f"{seen} repository"}
        found.append(push | {"place": place})
    return found


def _store_folder(config: PipelineConfig) -> str:
    """Return the path or URL of the store; of a ``file://`` URL the path."""
    store = store_of(config).rstrip("/")
    return unquote(urlsplit(store).path) if scheme_of(store) == "file" else store


def _of_dataset(config: PipelineConfig, dataset: DatasetConfig) -> Export:
    """Return the export of one source; where sources are mixed, of its tokens before that."""
    from tokenlake.export.version import ExportOptions

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
    stored = tokens_name(config, dataset) if first_steps(config) else config.name or ""
    return Export(f"datasets.{name}.save_path", stored, dataset.save_path or "", form, options)


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
            raise ConfigError(
                f"{key}: {target.url} lies in {place.url} of {other}; give each a folder of its own"
            )
    folder = _store_folder(config)
    store = folder if scheme_of(folder) else str(Path(folder).expanduser().resolve())
    for export, target in wanted.values():
        if export.in_store:
            continue
        if store == target.url or store.startswith(f"{target.url}/"):
            raise ConfigError(f"{export.key}: {target.url} holds the store {store}; give a folder of its own")
        for dataset in config.datasets:
            require_apart(export.key, target, dataset.data_files or ())
        target.check(overwrite=export.replaces(target, config))
    if config.save.push_to_hub and not isinstance(config.save.hub_token, BlockSecret):
        from tokenlake.export.push import hub_token
        from tokenlake.publish.repository import HubRepository, HubTarget

        HubRepository(HubTarget(config.save.hub_repo_id or "", token=hub_token(config.save)))


def make_exports(config: PipelineConfig, manifest: Manifest) -> tuple[str, ...]:
    """Make the exports that are not there yet, and return where all are: paths, and URLs.

    Args:
        config: the whole configuration, of all steps.
        manifest: of its committed version.

    Raises:
        TokenlakeError: see :func:`tokenlake.export.version.export_version` and
            :func:`tokenlake.publish.push.push_to_hub`. The version is there; a rerun makes what is missing.
    """
    made: list[str] = []
    address, options = store_of(config), plain_options(config.save.storage_options or {})
    for export in exports_of(config):
        from tokenlake.export.version import exported

        store = open_read_store(address, storage_options=options)
        version = _version_of(Catalog(store), export, manifest)
        target = export.target(config, version)
        overwrite = export.replaces(target, config)
        exported(store, version, target, export.form, export.options, overwrite=overwrite)
        made.append(target.url)
    if config.save.push_to_hub:
        from tokenlake.export.push import hub_token
        from tokenlake.publish.push import push_to_hub

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


def _version_of(catalog: Catalog, export: Export, manifest: Manifest) -> Manifest:
    """Return the version that an export is of: the committed one, or what that was mixed of."""
    if export.dataset == manifest.dataset:
        return manifest
    number = next(parent.version for parent in manifest.parents if parent.dataset == export.dataset)
    return catalog.manifest(export.dataset, number)

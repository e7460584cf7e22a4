"""Exports of a configuration, made after the commit.

They are flat directories and a push to the Hub.

No export is part of a version or of its fingerprint. Each one names its version, so
that a second run leaves it as it is, and makes one again that was interrupted. Pushed
flat directories are searched for secrets, uploaded, and made visible by one commit.
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
from tokenlake.config.contradictions import raise_problems
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, is_tokens_of, store_of, tokens_name
from tokenlake.config.stages import SaveStageConfig, TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.export.directory import Target, require_apart, target_of
from tokenlake.etl.export.flat_manifest import FileFormat
from tokenlake.etl.export.options import ExportOptions
from tokenlake.etl.export.trainers import WITHOUT_LOSS_MASK, require_package
from tokenlake.etl.export.version import exported
from tokenlake.etl.publish import HubRepository, push_to_hub
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.schemes import scheme_of

EXPORTS: Final = "_exports"
"""Folder of a store for exports that have no path of their own; no dataset has such
a name.
"""


@final
@dataclass(frozen=True, slots=True)
class Export:
    """A flat directory to make after the commit.

    Attributes:
        key: Option that asks for it.
        dataset: Name of the dataset in the store; its newest version of this build is
            exported.
        output_path: Path of the directory; in the store, of the folder with a directory
            for each version.
        form: Format of the files.
        options: Rows and their division into files.
        in_store: True if the path is the store's own folder for exports, which holds
            nothing else.
        source: Name of the source whose tokens are exported; empty for rows of the
            whole.
    """

    key: str
    dataset: str
    output_path: str
    form: FileFormat
    options: ExportOptions
    in_store: bool = False
    source: str = ""

    def is_of(self, dataset: str) -> bool:
        """Return True for an export of a dataset.

        Its tokens may have been built under another configuration's name.
        """
        if dataset == self.dataset:
            return True
        return self.source != "" and is_tokens_of(dataset, self.source)

    def target(
        self, config: PipelineConfig, manifest: Manifest | None = None
    ) -> Target:
        """Return the place of the export.

        Args:
            config: Configuration.
            manifest: Manifest of the version; None: the place for all versions.
        """
        # The store's options are those of the export if both are in buckets of one
        # kind.
        options = None
        store_options = config.save.storage_options
        if store_options and scheme_of(store_of(config)) == scheme_of(self.output_path):
            options = plain_options(store_options)
        # The store keeps an export of each version, any other path the newest alone.
        output_path = self.output_path
        if manifest is not None and self.in_store:
            output_path += f"/v{manifest.version}"
        return target_of(output_path, options, self.key, in_store=self.in_store)

    def replaces(self, target: Target, config: PipelineConfig) -> bool:
        """Return True if the contents of the target may be replaced.

        They may be an older export of the same rows, or any if `overwrite` is set.
        """
        if self.in_store or config.save.overwrite:
            return True
        # A directory that another program or another dataset wrote has other facts.
        flat_manifest = target.manifest()
        if flat_manifest is None:
            return False
        return self._is_older(flat_manifest.made_of.get("export", {}))

    def replaces_interrupted(self, target: Target) -> bool:
        """Return True if an interrupted export's files may be discarded.

        It must be an older export of the same rows.
        """
        export_facts = target.interrupted_export()
        return export_facts is not None and self._is_older(export_facts)

    def _is_older(self, facts: Mapping[str, Any]) -> bool:
        """Return True if an export, by its facts, has the rows of this one."""
        is_of_same_dataset = self.is_of(str(facts.get("dataset")))
        return is_of_same_dataset and facts.get("source") == self.options.source


def exports_of(config: PipelineConfig) -> list[Export]:
    """Return the flat directories that a configuration asks for.

    The store itself holds zstd Parquet. Texts fill any number of its files; a mixture
    of stored rows has as many files as its units make, so that another number needs an
    export.

    Raises:
        ConfigError: A format and a compression do not go together.
    """
    # 1. The sources that have a path of their own.
    save = config.save
    exports = [
        _export_of(config, dataset) for dataset in config.datasets if dataset.save_path
    ]
    # 2. The whole version in another form than that of the store.
    file_format = FileFormat.of(save.format, save.compression)
    needs_file_count = save.num_shards is not None and not config.is_text_build
    if needs_file_count or file_format != FileFormat("parquet", "zstd"):
        dataset_name = config.name or ""
        # Packed rows have EOS already, and files of rows hold them as they are stored.
        can_append_eos = not file_format.is_of_rows and not config.pack.enabled
        # Sources share the columns of the export, so that one without a mask decides.
        has_mask = all(_has_mask(config, dataset) for dataset in config.datasets)
        options = ExportOptions(
            num_shards=save.num_shards,
            max_shard_size=_max_shard_size(save, file_format, save.num_shards),
            append_eos=save.append_eos and can_append_eos,
            attention_mask=has_mask,
        )
        whole_export = Export(
            key="save.format",
            dataset=dataset_name,
            output_path=f"{_store_folder(config)}/{EXPORTS}/{dataset_name}",
            form=file_format,
            options=options,
            in_store=True,
        )
        exports.append(whole_export)
    return exports


def wanted_beside(config: PipelineConfig) -> list[dict[str, Any]]:
    """Return a record of each output that :func:`make_exports` would make.

    Its keys are the option, the dataset, the form and the place.

    Raises:
        ConfigError: A format and a compression do not go together.
    """
    # 1. Flat directories. The version has no number before the build.
    records: list[dict[str, Any]] = []
    for export in exports_of(config):
        target_url = export.target(config).url
        if export.in_store:
            target_url += "/vN"
        record = {
            "option": export.key,
            "dataset": export.dataset,
            "form": f"{export.form.format}, {export.form.compression}",
            "place": target_url,
        }
        records.append(record)
    # 2. The push. Its visibility is stated before anything is uploaded.
    if config.save.push_to_hub:
        visibility = "private" if config.save.hub_private else "public"
        record = {
            "option": "save.push_to_hub",
            "dataset": config.name,
            "form": f"{visibility} repository",
            "place": f"https://huggingface.co/datasets/{config.save.hub_repo_id}",
        }
        records.append(record)
    return records


def _store_folder(config: PipelineConfig) -> str:
    """Return the path or URL of the store; the path of a ``file://`` URL."""
    # Targets are paths, which have no percent-encoding as a URL has.
    store_url = store_of(config).rstrip("/")
    if scheme_of(store_url) == "file":
        return unquote(urlsplit(store_url).path)
    return store_url


def _export_of(config: PipelineConfig, dataset: DatasetConfig) -> Export:
    """Return the export of one source; if sources are mixed, of its own tokens."""
    save = config.save
    source_name = dataset.name or ""
    is_mixed = bool(first_steps(config))
    # 1. Format: the section's compression is that of its format, and other formats are
    #    compressed as usual.
    format = dataset.save_format or save.format
    compression = None
    if format == save.format:
        compression = save.compression
    # 2. Number and size of files. Files by value are limited by their size alone.
    num_shards = None
    if dataset.shard_column is None:
        num_shards = dataset.num_shards or save.num_shards
    # 3. Rows: those of one source, unless it is the only one of its dataset.
    exported_source: str | None = source_name
    if is_mixed or len(config.datasets) == 1:
        exported_source = None
    # 4. EOS: tokens of a source that are mixed later are not packed yet.
    file_format = FileFormat.of(format, compression)
    is_packed = config.pack.enabled and not is_mixed
    can_append_eos = not file_format.is_of_rows and not is_packed
    options = ExportOptions(
        num_shards=num_shards,
        max_shard_size=_max_shard_size(save, file_format, num_shards),
        append_eos=save.append_eos and can_append_eos,
        source=exported_source,
        attention_mask=_has_mask(config, dataset),
        shard_column=dataset.shard_column,
    )
    # 5. The dataset: before a mixture each source is one of its own.
    dataset_name = config.name or ""
    tokens_source = ""
    if is_mixed:
        dataset_name = tokens_name(config, dataset)
        tokens_source = source_name
    return Export(
        key=f"datasets.{source_name}.save_path",
        dataset=dataset_name,
        output_path=dataset.save_path or "",
        form=file_format,
        options=options,
        source=tokens_source,
    )


def _max_shard_size(
    save: SaveStageConfig, form: FileFormat, num_shards: int | None
) -> int | None:
    """Return the largest size of an export's files.

    None: that of the format, or no limit beside `num_shards`.
    """
    if num_shards is not None:
        return None
    # The default of the option is that of files of rows; formats of trainers have their
    # own.
    if not form.is_of_rows and "max_shard_size" not in save.model_fields_set:
        return None
    return save.max_shard_size


def _has_mask(config: PipelineConfig, dataset: DatasetConfig) -> bool:
    """Return True if exports of a dataset have an attention mask."""
    # A tokenizer without options of its own has the default, which is true.
    tokenizer = config.tokenizer_of(dataset)
    return not isinstance(tokenizer, TokenizerConfig) or tokenizer.return_attention_mask


def _by_value_problems(dataset: DatasetConfig) -> Iterator[str]:
    """Yield the reasons why files by the values of a column cannot be made."""
    column = dataset.shard_column
    if column is None:
        return
    # All reasons are reported together, so that one correction is enough.
    option = f"datasets.{dataset.name}.shard_column"
    if not dataset.save_path:
        yield (
            f"{option}: {column!r}, but there is no save_path; files by value are an export, because units write the "
            "files of the store: set save_path, or run `tokenlake export --shard-column` later"
        )
    if column not in (dataset.additional_fields or ()):
        yield f"{option}: {column!r} is not one of additional_fields, the columns that are stored with the tokens"
    if dataset.num_shards is not None:
        yield f"{option}: set together with num_shards, but each value has separate files; leave one of them out"


def _trainer_problems(config: PipelineConfig, export: Export) -> Iterator[str]:
    """Yield the reasons why a format of a trainer cannot hold the rows.

    They are those that the options show before anything is built.
    """
    # Files of rows can hold any columns.
    format_name = export.form.format
    if export.form.is_of_rows:
        return
    source_name = export.source or export.options.source
    for dataset in config.datasets:
        if source_name not in (None, dataset.name):
            continue
        # Formats of trainers hold one list of ids in a row.
        if dataset.preference is not None:
            yield (
                f"{export.key}: {format_name!r}, but {dataset.name} makes preference pairs, which have several columns "
                "of ids; choose parquet, arrow or jsonl"
            )
        # A mask that is lost would make a trainer learn the prompts.
        has_loss_mask = dataset.chat is not None or dataset.prompt is not None
        if has_loss_mask and format_name in WITHOUT_LOSS_MASK:
            yield (
                f"{export.key}: {format_name!r}, which cannot hold the loss mask of {dataset.name}; choose npy, mds, "
                "litdata or array_record, or run `tokenlake export --drop-loss-mask` later"
            )
        if export.options.append_eos and _stores_mask(config, dataset):
            yield (
                f"save.append_eos: set, but rows of {dataset.name} have an attention mask, because they are padded to "
                "one length and have no room for EOS; leave it out, or set padding: false in the tokenizer"
            )


def _stores_mask(config: PipelineConfig, dataset: DatasetConfig) -> bool:
    """Return True if documents are stored with an attention mask.

    They have one if they are padded, or if the option is set.
    """
    tokenizer = config.tokenizer_of(dataset)
    if not isinstance(tokenizer, TokenizerConfig):
        return False
    is_padded = tokenizer.padding in ("max_length", "longest")
    is_set = "return_attention_mask" in tokenizer.model_fields_set
    return tokenizer.return_attention_mask and (is_padded or is_set)


def check_exports(config: PipelineConfig) -> None:
    """Check, before anything is built, whether the exports can be made; change nothing.

    Raises:
        ConfigError: Files by value lack a folder or their column; a format of a trainer
            cannot hold the rows; a target is not empty and no older export, holds an
            input or another target; the Hub's repository does not exist, or there is no
            token.
        NotAvailableError: A target is a URL of an unsupported kind.
        MissingExtraError: A package is missing.
    """
    # 1. Options that exclude each other, all in one message.
    problems: list[str] = []
    for dataset in config.datasets:
        problems += _by_value_problems(dataset)
    exports = exports_of(config)
    if config.save.append_eos and all(export.form.is_of_rows for export in exports):
        problems.append(
            "save.append_eos: set, but no export has a format of a trainer; set save.format or save_format of a dataset"
        )
    for export in exports:
        problems += _trainer_problems(config, export)
    raise_problems(ConfigError, problems)
    # 2. Packages of formats.
    for export in exports:
        require_package(export.form.format)
    # 3. Targets: apart from each other, from the store and from the inputs, and empty.
    targets = {export.key: export.target(config) for export in exports}
    for (option, target), (other_option, other_target) in permutations(
        targets.items(), 2
    ):
        if target.is_within(other_target.url):
            raise ConfigError(
                f"{option}: {target.url} lies in {other_target.url} of {other_option}; use a separate folder for each"
            )
    for export in exports:
        if not export.in_store:
            _check_target(config, export, targets[export.key])
    # 4. The Hub. The token of a Prefect block is known in its flow alone.
    if config.save.push_to_hub and not isinstance(config.save.hub_token, BlockSecret):
        HubRepository(config.save.hub_repo_id or "", token=hub_token(config.save))


def _check_target(config: PipelineConfig, export: Export, target: Target) -> None:
    """Check that a target may be written, apart from the store and all inputs."""
    # 1. The store. It is resolved as targets are, so that a link hides neither.
    store_url = _store_folder(config)
    if not scheme_of(store_url):
        store_url = str(Path(store_url).expanduser().resolve())
    if store_url == target.url or store_url.startswith(f"{target.url}/"):
        raise ConfigError(
            f"{export.key}: {target.url} holds the store {store_url}; use a separate folder"
        )
    # The store may not exist yet, so that it cannot be found by looking.
    if target.is_within(store_url):
        raise ConfigError(
            f"{export.key}: {target.url} lies in the store {store_url}; use a folder outside of it"
        )
    # 2. The inputs, which an export would replace.
    for dataset in config.datasets:
        require_apart(export.key, target, dataset.all_files)
    # 3. The contents of the target, and the files of an interrupted export.
    target.check(overwrite=export.replaces(target, config))
    interrupted = target.interrupted_export()
    is_replaced = config.save.overwrite or export.replaces_interrupted(target)
    if interrupted is not None and not is_replaced:
        raise ConfigError(
            f"{export.key}: an interrupted export of {interrupted.get('dataset')} to {target.url} has finished files. "
            "Repeat it, use another folder, or discard its files (save.overwrite: true)",
            path=target.url,
        )


def make_exports(config: PipelineConfig, manifest: Manifest) -> tuple[str, ...]:
    """Make the exports that are missing, and return the paths and URLs of all.

    Args:
        config: Whole configuration, of all steps.
        manifest: Manifest of its committed version.

    Raises:
        TokenlakeError: As of :func:`tokenlake.etl.export.version.export_version` and
            :func:`tokenlake.etl.publish.push_to_hub`. The version is committed; a rerun
            makes the missing exports.
    """
    # 1. Flat directories, each of the committed version, or of one that was mixed into
    #    it.
    places: list[str] = []
    address = store_of(config)
    options = plain_options(config.save.storage_options or {})
    for export in exports_of(config):
        read_store = open_read_store(address, storage_options=options)
        version = _exported_version(read_store, export, manifest)
        target = export.target(config, version)
        exported(
            read_store,
            version,
            target,
            export.form,
            export.options,
            overwrite=export.replaces(target, config),
            # A run that finds everything done must stay quick, whatever its size.
            with_hashes=config.save.overwrite,
            discard_interrupted=export.replaces_interrupted(target),
        )
        places.append(target.url)
    # 2. The push of the version itself.
    if config.save.push_to_hub:
        report = push_to_hub(
            address,
            config.save.hub_repo_id or "",
            name=f"{manifest.dataset}@v{manifest.version}",
            public=not config.save.hub_private,
            token=hub_token(config.save),
            storage_options=options,
        )
        places.append(report.url)
    return tuple(places)


def _exported_version(store: ReadStore, export: Export, manifest: Manifest) -> Manifest:
    """Return the manifest of the version that is exported.

    It is the committed version, or one that was mixed into it.
    """
    if export.dataset == manifest.dataset:
        return manifest
    # A parent of exactly this name comes before one with the same tokens under another
    # name.
    parents = [
        parent for parent in manifest.parents if parent.dataset == export.dataset
    ]
    parents += [parent for parent in manifest.parents if export.is_of(parent.dataset)]
    return Catalog(store).manifest(parents[0].dataset, parents[0].version)


def hub_token(save: SaveStageConfig) -> str | None:
    """Return the token of section `save`; ConfigError for a dangling reference."""
    if save.hub_token is None:
        return None
    return resolve_options(plain_options({"token": save.hub_token}))["token"]

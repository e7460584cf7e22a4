"""What a configuration wants to have beside its version: flat directories and a push to the Hub, after the commit.

No export is part of a version or of its fingerprint. Each says which version it is of, so that a second run finds it
made, and one that was interrupted is made again. Flat directories are pushed, too: searched for secrets, sent, visible
by one commit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import unquote, urlsplit

from tokenlake import numbers
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.references import resolve_options
from tokenlake.config.refusals import raise_problems
from tokenlake.config.resolve import first_steps, is_tokens_of, store_of, tokens_name
from tokenlake.config.section import BlockSecret, plain_options
from tokenlake.config.stages import SaveStageConfig, TokenizerConfig
from tokenlake.config.values import scheme_of
from tokenlake.errors import ConfigError, VersionConflictError
from tokenlake.export.directory import Target, require_apart, target_of
from tokenlake.export.flat_manifest import FOLDER, MANIFEST, FileFormat, FlatManifest
from tokenlake.export.version import ExportOptions, exported
from tokenlake.publish import commit_all, groups_of, push_to_hub
from tokenlake.publish.detector import Detector
from tokenlake.publish.files import PublishedFile, differing, require_none, scan_texts
from tokenlake.publish.repository import HubRepository
from tokenlake.reports.croissant import CROISSANT, RowFiles, metadata
from tokenlake.store.address import open_read_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.layout import CARD, QUARANTINE
from tokenlake.store.manifest import Manifest

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
        TokenlakeError: see :func:`tokenlake.export.version.export_version` and
            :func:`tokenlake.publish.push_to_hub`. The version is there; a rerun makes what is missing.
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


_GIT: Final = ".gitattributes"  # the Hub's own
_IN_GIT: Final = 10 << 20  # bytes; larger files are never in git itself


def push_directories(
    folders: Mapping[str, str | os.PathLike[str]],
    repo: str,
    *,
    public: bool = False,
    token: str | None = None,
) -> str:
    """Upload flat directories to a dataset repository, private unless `public`, and return its URL.

    They go up in one commit, in the place of those that were pushed before, with a card by which `load_dataset` finds
    them, and a `croissant.json` with their hashes and columns. Bad records that were set aside stay here. Pushing again
    what is there changes nothing.

    Args:
        folders: name to folder of this machine; a single one lies in the repository itself, several in folders of
            their names, each a configuration of `load_dataset`.
        repo: ``org/name``; created where there is none.
        public: create a public repository, or push to one that is public.
        token: with write access; None: ``HF_TOKEN``, then the saved login.

    Raises:
        ConfigError: something looks like a secret, the repository is public, or the token may not write.
        VersionConflictError: the repository holds what was not pushed from flat directories.
        StoreError: the Hub could not be reached; nothing is visible.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    places = {"" if len(folders) == 1 else f"{name}/": Path(folder) for name, folder in folders.items()}
    manifests = {prefix: FlatManifest.of(folder) for prefix, folder in places.items()}
    groups = [RowFiles(prefix, each.format, each.columns, each.files) for prefix, each in manifests.items()]
    facts = metadata(repo, _said(manifests), groups, url=f"https://huggingface.co/datasets/{repo}")
    texts = [_text(CARD, _card(manifests, repo)), _text(CROISSANT, json.dumps(facts, indent=2).encode())]
    data: dict[PublishedFile, Path] = {}
    for prefix, folder in places.items():
        for path in sorted((folder / FOLDER).rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not name.startswith(f"{FOLDER}/{QUARANTINE}/"):
                texts.append(_text(f"{prefix}{name}", path.read_bytes()))
        for file in manifests[prefix].files:
            path = folder / file.path
            # The Hub may keep small ones in git itself, and lists these by git's hash of the bytes.
            held = path.read_bytes() if file.bytes <= _IN_GIT else None
            data[PublishedFile(f"{prefix}{file.path}", file.bytes, file.sha256, held)] = path
    require_none(scan_texts(texts, Detector(os.environ)), "the directory's files hold")
    hub = HubRepository(repo, token=token)
    state = hub.state() or hub.created(public=public)
    if not public:
        hub.require_private(state, "the rows", "say hub_private: false")
    files, there = [*texts, *data], hub.files(state.head or "")
    others = partial(differing, files, ours=_GIT.__ne__)
    if others(there):
        mine = any(path.endswith(f"{FOLDER}/{MANIFEST}") for path in there)
        if not mine and (foreign := sorted(there.keys() - {_GIT})):  # a push would remove them
            raise VersionConflictError(
                f"{repo} holds {', '.join(foreign[:5])}, which no flat directory was pushed with; remove them there, "
                "or push to a repository of its own",
                repo=repo,
                files=foreign[:100],
            )

        def send() -> list[Any]:
            sent = [
                each for group in groups_of(list(data)) for each in hub.upload([(f, data[f]) for f in group])
            ]
            return sent + hub.upload([(text, None) for text in texts])

        told = ("Saved rows", "Flat directories, pushed by tokenlake.")
        gone = sorted(there.keys() - {file.path for file in files} - {_GIT})
        commit_all(hub, state, gone, told, send, others)
    return hub.url


def hub_token(save: SaveStageConfig) -> str | None:
    """Return the token that section `save` holds or refers to; ConfigError where that is not there."""
    given = save.hub_token
    return None if given is None else resolve_options(plain_options({"token": given}))["token"]


def _text(path: str, data: bytes) -> PublishedFile:
    return PublishedFile(path, len(data), hashlib.sha256(data).hexdigest(), data)


def _said(manifests: Mapping[str, FlatManifest]) -> str:
    """``2 rows (tokens), saved by tokenlake.``."""
    rows = sum(manifest.rows for manifest in manifests.values())
    kinds = ", ".join(dict.fromkeys(manifest.kind for manifest in manifests.values()))
    return f"{numbers.plural(rows, 'row')} ({kinds}), saved by tokenlake."


def _card(manifests: Mapping[str, FlatManifest], repo: str) -> bytes:
    """Return a card whose header names the files of each split, for the Hub's viewer and `load_dataset`."""
    lines = ["---", "configs:"]
    for prefix, manifest in manifests.items():
        lines += [f"- config_name: {json.dumps(prefix.rstrip('/') or 'default')}", "  data_files:"]
        for split in dict.fromkeys(file.split for file in manifest.files):
            paths = [f"{prefix}{file.path}" for file in manifest.files if file.split == split]
            lines += [f"  - split: {json.dumps(split)}", f"    path: {json.dumps(paths)}"]
    head = "\n".join([*lines, "tags:", "- tokenlake", "---"])
    # How the first directory is read, by `datasets`, JAX and PyTorch; of Parquet also by DuckDB and Polars.
    prefix, manifest = next(iter(manifests.items()))
    split = next((file.split for file in manifest.files), "train")
    name = prefix.rstrip("/") or "default"
    told = f"{json.dumps(repo)}, {json.dumps(name)}, split={json.dumps(split)}"
    reading = (
        f"```python\nfrom datasets import load_dataset\n\nrows = load_dataset({told})\n"
        'for_jax = rows.with_format("jax")\nfor_torch = rows.with_format("torch")\n```\n'
    )
    if manifest.format == "parquet":
        url = json.dumps(f"hf://datasets/{repo}/{prefix}*.parquet")
        reading += (
            f"\n```python\nimport polars as pl\n\nrows = pl.scan_parquet({url})\n```\n\n"
            "```sql\n-- DuckDB; a private repository needs a secret of type huggingface\n"
            f"select count(*) from read_parquet('{url[1:-1].replace(chr(39), 2 * chr(39))}');\n```\n"
        )
    return f"{head}\n\n{_said(manifests)}\n\n## Reading it\n\n{reading}".encode()

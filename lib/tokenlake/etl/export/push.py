"""Pushing flat directories to one dataset repository on the Hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.errors import VersionConflictError
from tokenlake.etl.export.flat_manifest import FOLDER, MANIFEST, FlatManifest
from tokenlake.etl.publish import (
    Detector,
    HubRepository,
    PublishedFile,
    commit_all,
    differing,
    groups_of,
    require_none,
    scan_texts,
)
from tokenlake.etl.reports import RowFiles, metadata
from tokenlake.etl.reports.croissant import CROISSANT
from tokenlake.runtime.store.layout import CARD, QUARANTINE

_GIT_ATTRIBUTES: Final = ".gitattributes"
"""File that the Hub itself writes."""

_IN_GIT_BYTES: Final = 10 << 20
"""Largest size of a file that the Hub may keep in git itself."""

_NAMED: Final = 5
"""Files that a message names."""


def push_directories(
    folders: Mapping[str, str | os.PathLike[str]],
    repo: str,
    *,
    public: bool = False,
    token: str | None = None,
) -> str:
    """Upload flat directories to a dataset repository, and return its URL.

    The repository is private unless `public` is set.

    They are uploaded in one commit, which replaces those that were pushed before, with
    a card by which `load_dataset` finds them, and a `croissant.json` with their hashes
    and columns. Bad records that were set aside are not uploaded. Pushing the same
    directories again changes nothing.

    Args:
        folders: Name -> folder of this machine. A single one lies in the repository
            itself, several in folders of their names, each a configuration of
            `load_dataset`.
        repo: Name of the repository, ``org/name``; it is created if it does not exist.
        public: True to create a public repository, or push to one that is public.
        token: Token with write access; None: ``HF_TOKEN``, then the saved login.

    Raises:
        ConfigError: A file may hold a secret, the repository is public, or the token
            may not write.
        VersionConflictError: The repository holds files that were not pushed from flat
            directories.
        StoreError: The Hub could not be reached; nothing is visible.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    # 1. Files to upload: texts, which are searched for secrets, and data.
    places: dict[str, Path] = {}
    for configuration, folder in folders.items():
        prefix = "" if len(folders) == 1 else f"{configuration}/"
        places[prefix] = Path(folder)
    manifests = {prefix: FlatManifest.of(folder) for prefix, folder in places.items()}
    text_files = _texts(places, manifests, repo)
    data_files = _data_files(places, manifests)
    require_none(
        scan_texts(text_files, Detector(os.environ)), "the directory's files hold"
    )
    # 2. The repository. Rows never become public because a repository already was.
    repository = HubRepository(repo, token=token)
    repository_state = repository.state() or repository.created(public=public)
    if not public:
        repository.require_private(
            repository_state, "the rows", "say hub_private: false"
        )
    # 3. Upload, if anything differs: a commit without changes would be one more entry
    #    in the history.
    published_files = [*text_files, *data_files]
    existing = repository.files(repository_state.head or "")
    differing_files = partial(differing, published_files, ours=_GIT_ATTRIBUTES.__ne__)
    if differing_files(existing):
        _require_ours(existing, repo)
        upload = partial(_uploaded, repository, text_files, data_files)
        # Files of the previous push go in the same commit, so that no state of the
        # repository mixes two pushes.
        published_paths = {file.path for file in published_files}
        removed_paths = sorted(existing.keys() - published_paths - {_GIT_ATTRIBUTES})
        message = ("Saved rows", "Flat directories, pushed by tokenlake.")
        commit_all(
            repository,
            repository_state,
            removed_paths,
            message,
            upload,
            differing_files,
        )
    return repository.url


def _uploaded(
    repository: HubRepository,
    text_files: Sequence[PublishedFile],
    data_files: Mapping[PublishedFile, Path],
) -> list[Any]:
    """Upload all files, and return the operations of their commit.

    Args:
        repository: Repository.
        text_files: Files whose contents are in memory.
        data_files: Data files, and their paths on this machine.
    """
    # Data goes up in groups of bounded size; nothing is visible before the commit.
    operations: list[Any] = []
    for file_group in groups_of(list(data_files)):
        group_paths = [(data_file, data_files[data_file]) for data_file in file_group]
        operations += repository.upload(group_paths)
    operations += repository.upload([(text_file, None) for text_file in text_files])
    return operations


def _texts(
    places: Mapping[str, Path], manifests: Mapping[str, FlatManifest], repo: str
) -> list[PublishedFile]:
    """Return card, croissant.json and the files below ``_tokenlake/``."""
    # Croissant describes the columns and hashes of all directories in one document.
    groups: list[RowFiles] = []
    for prefix, manifest in manifests.items():
        groups.append(
            RowFiles(prefix, manifest.format, manifest.columns, manifest.files)
        )
    hub_url = f"https://huggingface.co/datasets/{repo}"
    croissant = metadata(repo, _summary(manifests), groups, url=hub_url)
    text_files = [
        _text(CARD, _card(manifests, repo)),
        _text(CROISSANT, json.dumps(croissant, indent=2).encode()),
    ]
    # Bad records that were set aside may hold what must not be published.
    for prefix, folder in places.items():
        for file_path in sorted((folder / FOLDER).rglob("*")):
            file_name = file_path.relative_to(folder).as_posix()
            is_bad_records = file_name.startswith(f"{FOLDER}/{QUARANTINE}/")
            if file_path.is_file() and not is_bad_records:
                text_files.append(_text(f"{prefix}{file_name}", file_path.read_bytes()))
    return text_files


def _text(path: str, data: bytes) -> PublishedFile:
    return PublishedFile(path, len(data), hashlib.sha256(data).hexdigest(), data)


def _data_files(
    places: Mapping[str, Path], manifests: Mapping[str, FlatManifest]
) -> dict[PublishedFile, Path]:
    """Return the data files, and their paths on this machine."""
    data_files: dict[PublishedFile, Path] = {}
    for prefix, folder in places.items():
        for file in manifests[prefix].files:
            file_path = folder / file.path
            # The Hub may keep small files in git itself, and lists these by git's hash
            # of the bytes.
            content: bytes | None = None
            if file.bytes <= _IN_GIT_BYTES:
                content = file_path.read_bytes()
            published_file = PublishedFile(
                f"{prefix}{file.path}", file.bytes, file.sha256, content
            )
            data_files[published_file] = file_path
    return data_files


def _require_ours(existing: Mapping[str, Any], repo: str) -> None:
    """Raise VersionConflictError if a push would remove files of others."""
    # A manifest anywhere says that an earlier push wrote the repository.
    if any(path.endswith(f"{FOLDER}/{MANIFEST}") for path in existing):
        return
    foreign = sorted(existing.keys() - {_GIT_ATTRIBUTES})
    if foreign:
        raise VersionConflictError(
            f"{repo} holds {', '.join(foreign[:_NAMED])}, which were not pushed with a flat directory; remove them "
            "there, or push to a separate repository",
            repo=repo,
            files=foreign[:100],
        )


def _summary(manifests: Mapping[str, FlatManifest]) -> str:
    """Return a sentence such as ``2 rows (tokens), saved by tokenlake.``."""
    rows = sum(manifest.rows for manifest in manifests.values())
    kinds = _distinct(manifest.kind for manifest in manifests.values())
    return f"{numbers.plural(rows, 'row')} ({', '.join(kinds)}), saved by tokenlake."


def _distinct(names: Iterable[str]) -> list[str]:
    """Return each name once, in order."""
    return list(dict.fromkeys(names))


def _card(manifests: Mapping[str, FlatManifest], repo: str) -> bytes:
    """Return the card.

    Its header names the files of each split, for the Hub's viewer and `load_dataset`.
    """
    header = "\n".join(_card_header(manifests))
    reading = "\n".join(_reading_examples(manifests, repo))
    return f"{header}\n\n{_summary(manifests)}\n\n## Reading it\n\n{reading}".encode()


def _card_header(manifests: Mapping[str, FlatManifest]) -> Sequence[str]:
    """Return the YAML header of the card."""
    # Each directory is a configuration of `load_dataset`. JSON strings are YAML strings,
    # whatever a name contains.
    lines = ["---", "configs:"]
    for prefix, manifest in manifests.items():
        configuration = prefix.rstrip("/") or "default"
        lines += [f"- config_name: {json.dumps(configuration)}", "  data_files:"]
        # Files are named one by one: their names are free, so that no pattern divides
        # the splits.
        for split in _distinct(file.split for file in manifest.files):
            file_paths: list[str] = []
            for file in manifest.files:
                if file.split == split:
                    file_paths.append(f"{prefix}{file.path}")
            lines += [
                f"  - split: {json.dumps(split)}",
                f"    path: {json.dumps(file_paths)}",
            ]
    return [*lines, "tags:", "- tokenlake", "---"]


def _reading_examples(
    manifests: Mapping[str, FlatManifest], repo: str
) -> Sequence[str]:
    """Return code that reads the first directory.

    It uses `datasets`; for Parquet also Polars and DuckDB.
    """
    # One directory is enough: the others differ in the configuration's name alone.
    prefix, manifest = next(iter(manifests.items()))
    configuration = prefix.rstrip("/") or "default"
    split = manifest.files[0].split if manifest.files else "train"
    # Names are quoted as JSON, which is also the syntax of Python's strings.
    arguments = (
        f"{json.dumps(repo)}, {json.dumps(configuration)}, split={json.dumps(split)}"
    )
    lines = [
        "```python",
        "from datasets import load_dataset",
        "",
        f"rows = load_dataset({arguments})",
        'for_jax = rows.with_format("jax")',
        'for_torch = rows.with_format("torch")',
        "```",
        "",
    ]
    # Polars and DuckDB read Parquet from the Hub by its address.
    if manifest.format == "parquet":
        url = json.dumps(f"hf://datasets/{repo}/{prefix}*.parquet")
        sql_url = url[1:-1].replace("'", "''")
        lines += [
            "```python",
            "import polars as pl",
            "",
            f"rows = pl.scan_parquet({url})",
            "```",
            "",
            "```sql",
            "-- DuckDB; a private repository needs a secret of type huggingface",
            f"select count(*) from read_parquet('{sql_url}');",
            "```",
            "",
        ]
    return lines

"""Pushing the directories of versions to one dataset repository on the Hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.errors import VersionConflictError
from tokenlake.etl.export.flat_manifest import FOLDER, MANIFEST, FlatManifest
from tokenlake.etl.publish import commit_all, groups_of
from tokenlake.etl.publish.detector import Detector
from tokenlake.etl.publish.files import PublishedFile, differing, require_none, scan_texts
from tokenlake.etl.publish.repository import HubRepository
from tokenlake.etl.reports.croissant import CROISSANT, RowFiles, metadata
from tokenlake.runtime.store.layout import CARD, QUARANTINE

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

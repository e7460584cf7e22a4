"""Flat directories on the Hugging Face Hub: searched for secrets, sent, visible by one commit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tokenlake import numbers
from tokenlake.config.references import resolve_options
from tokenlake.config.secret import plain_options
from tokenlake.config.stages import SaveStageConfig
from tokenlake.errors import ConfigError, VersionConflictError
from tokenlake.export.manifest import FOLDER, MANIFEST, FlatFile, FlatManifest
from tokenlake.publish.files import PublishedFile
from tokenlake.publish.push import commit_all, groups_of
from tokenlake.publish.repository import HubRepository, HubState, HubTarget
from tokenlake.publish.secrets import Detector, require_none, scan_texts
from tokenlake.reports.card import CROISSANT, RowFiles, metadata
from tokenlake.store.layout import CARD, QUARANTINE

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
    texts = [_text(CARD, _card(manifests, repo)), _text(CROISSANT, _croissant(manifests, repo))]
    for prefix, folder in places.items():
        texts += [_text(f"{prefix}{path}", data) for path, data in _beside(folder)]
    require_none(scan_texts(texts, Detector(os.environ)), "the directory's files hold")
    data = {
        _data(prefix, file, places[prefix] / file.path): places[prefix] / file.path
        for prefix, manifest in manifests.items()
        for file in manifest.files
    }
    hub = HubRepository(HubTarget(repo, token=token))
    state = _present(hub, public=public)
    wanted, there = {file.path: file for file in [*texts, *data]}, hub.files(state.head or "")
    if _differing(wanted, there):
        _require_ours(repo, there)
        told = ("Saved rows", "Flat directories, pushed by tokenlake.")
        gone = sorted(there.keys() - wanted.keys() - {_GIT})
        commit_all(hub, state, gone, told, partial(_send, hub, texts, data), partial(_differing, wanted))
    return hub.url


def hub_token(save: SaveStageConfig) -> str | None:
    """Return the token that section `save` holds or refers to; ConfigError where that is not there."""
    given = save.hub_token
    return None if given is None else resolve_options(plain_options({"token": given}))["token"]


def _send(
    hub: HubRepository, texts: Sequence[PublishedFile], data: Mapping[PublishedFile, Path]
) -> list[Any]:
    additions: list[Any] = []
    for group in groups_of(list(data)):
        additions += hub.upload([(file, data[file]) for file in group])
    return additions + hub.upload([(text, None) for text in texts])


def _present(hub: HubRepository, *, public: bool) -> HubState:
    state = hub.state()
    if state is None:
        hub.create(private=not public)
        state = hub.present()
    if not state.private and not public:
        raise ConfigError(
            f"{hub.target.repo} is public: everybody would see the rows. Push to another repository, make it private "
            "in its settings, or say hub_private: false if that is what you want"
        )
    return state


def _require_ours(repo: str, there: Mapping[str, Any]) -> None:
    """Raise VersionConflictError for a repository of somebody else's files, which a push would remove."""
    mine = any(path.endswith(f"{FOLDER}/{MANIFEST}") for path in there)
    if not mine and (others := sorted(there.keys() - {_GIT})):
        raise VersionConflictError(
            f"{repo} holds {', '.join(others[:5])}, which no flat directory was pushed with; remove them there, or "
            "push to a repository of its own",
            repo=repo,
            files=others[:100],
        )


def _differing(wanted: Mapping[str, PublishedFile], there: Mapping[str, Any]) -> list[str]:
    wrong = {path for path, file in wanted.items() if path not in there or not file.is_same(there[path])}
    return sorted(wrong | (there.keys() - wanted.keys() - {_GIT}))


def _beside(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files in ``_tokenlake/`` by path, but for bad records."""
    for path in sorted((folder / FOLDER).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(f"{FOLDER}/{QUARANTINE}/"):
            yield name, path.read_bytes()


def _data(prefix: str, file: FlatFile, path: Path) -> PublishedFile:
    # The Hub may keep small ones in git itself, and lists these by git's hash of the bytes.
    held = path.read_bytes() if file.bytes <= _IN_GIT else None
    return PublishedFile(f"{prefix}{file.path}", file.bytes, file.sha256, held)


def _text(path: str, data: bytes) -> PublishedFile:
    return PublishedFile(path, len(data), hashlib.sha256(data).hexdigest(), data)


def _croissant(manifests: Mapping[str, FlatManifest], repo: str) -> bytes:
    groups = [RowFiles(prefix, each.format, each.columns, each.files) for prefix, each in manifests.items()]
    url = f"https://huggingface.co/datasets/{repo}"
    return json.dumps(metadata(repo, _said(manifests), groups, url=url), indent=2).encode()


def _said(manifests: Mapping[str, FlatManifest]) -> str:
    """``2 rows (tokens), saved by tokenlake.``."""
    rows = sum(manifest.rows for manifest in manifests.values())
    kinds = ", ".join(dict.fromkeys(manifest.kind for manifest in manifests.values()))
    return f"{numbers.plural(rows, 'row')} ({kinds}), saved by tokenlake."


def _reading(manifests: Mapping[str, FlatManifest], repo: str) -> str:
    """Return how the first directory is read, by `datasets`, JAX and PyTorch; of Parquet also by DuckDB and Polars."""
    prefix, manifest = next(iter(manifests.items()))
    split = next((file.split for file in manifest.files), "train")
    name = prefix.rstrip("/") or "default"
    told = f"{json.dumps(repo)}, {json.dumps(name)}, split={json.dumps(split)}"
    text = (
        f"```python\nfrom datasets import load_dataset\n\nrows = load_dataset({told})\n"
        'for_jax = rows.with_format("jax")\nfor_torch = rows.with_format("torch")\n```\n'
    )
    if manifest.format != "parquet":
        return text
    url = json.dumps(f"hf://datasets/{repo}/{prefix}*.parquet")
    return (
        f"{text}\n```python\nimport polars as pl\n\nrows = pl.scan_parquet({url})\n```\n\n"
        f"```sql\n-- DuckDB; a private repository needs a secret of type huggingface\n"
        f"select count(*) from read_parquet('{url[1:-1].replace(chr(39), 2 * chr(39))}');\n```\n"
    )


def _card(manifests: Mapping[str, FlatManifest], repo: str) -> bytes:
    """Return a card whose header names the files of each split, for the Hub's viewer and `load_dataset`."""
    lines = ["---", "configs:"]
    for prefix, manifest in manifests.items():
        lines += [f"- config_name: {json.dumps(prefix.rstrip('/') or 'default')}", "  data_files:"]
        for split in dict.fromkeys(file.split for file in manifest.files):
            paths = [f"{prefix}{file.path}" for file in manifest.files if file.split == split]
            lines += [f"  - split: {json.dumps(split)}", f"    path: {json.dumps(paths)}"]
    lines += [
        "tags:",
        "- tokenlake",
        "---",
        "",
        _said(manifests),
        "",
        "## Reading it",
        "",
        _reading(manifests, repo),
    ]
    return "\n".join(lines).encode()

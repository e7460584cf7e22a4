"""Datasets on the Hub: from an id, a subset and a split to files of one commit.

A branch or tag is resolved to a commit once per listing, and everything after that names the commit, so a
branch that moves while a build runs changes nothing. The tokens are hashes of content: the same file at two
commits is the same input.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.fingerprint import file_id
from tokenlake.sources.formats import Format, belongs, compression_of, format_for
from tokenlake.sources.hub.layout import matches
from tokenlake.sources.hub.repo import HubClient, HubFile, HubId, HubRepo, parse_id, parse_url
from tokenlake.sources.hub.selection import HubSelection, list_repo, listed, select
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.stream import LOOK, has_lines, plain

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource, SourceType

_THREADS: Final = 8
_MAGIC: Final = re.compile(r"[*?\[]")


def list_hub(source: ResolvedSource) -> list[InputFile]:
    """List the files of datasets on the Hub, sorted by path, at commits that their URLs name.

    `path` is the path in the repository, with the dataset's id before it where there are several.

    Raises:
        SourceNotFoundError: no such dataset, revision or files.
        ConfigError: the subset or split is not there, or must be named; the message lists them.
        SourceError: the dataset is gated, or the Hub cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    selections = select_hub(source)
    several = len({selection.listing.repo.id.repo for selection in selections}) > 1
    found: list[InputFile] = []
    for chosen in selections:
        repo = chosen.listing.repo
        before = f"{repo.id.repo}/" if several else ""
        named = [(before + file.path, file) for file in chosen.files]
        found += _input_files(source, repo, named, None, origin=str(chosen))
    return sorted(found, key=lambda file: file.path)


def select_hub(source: ResolvedSource) -> list[HubSelection]:
    """Choose the files of every id of a source; raises like :func:`list_hub`."""
    client = HubClient(source.storage_options)
    ids = dict.fromkeys(_id(entry) for entry in source.data_files)
    twice = [name for name, count in Counter(dataset.repo for dataset in ids).items() if count > 1]
    if twice:
        raise ConfigError(
            f"source {source.name!r}: data_files name {twice[0]!r} at two revisions; make them two sources",
            source=source.name,
        )
    return [select(list_repo(client, dataset), source.subset, source.split) for dataset in ids]


def _id(entry: str) -> HubId:
    if entry.startswith((".", "/", "~")) or Path(entry).exists():
        raise ConfigError(
            f"data_files: {entry!r} is a path of this machine, but `type: huggingface` makes it the id of a "
            "dataset on the Hub. Leave `type` out to read files; a dataset of the Hub that bears the name of a "
            f"local file is written hf://datasets/{entry.strip('./~')}.",
            got=entry,
        )
    return parse_id(entry)


def list_hub_urls(source: ResolvedSource) -> list[InputFile]:
    """List what ``hf://datasets/org/name[@revision]/path`` URLs stand for: files, folders and globs.

    Every entry of `data_files` is such a URL. `path` is as in :func:`list_hub`.

    Raises: like :func:`list_hub`.
    """
    client = HubClient(source.storage_options)
    entries = [parse_url(url) for url in source.data_files]
    several = len({dataset.repo for dataset, _ in entries}) > 1
    found: dict[str, InputFile] = {}
    for dataset in dict.fromkeys(dataset for dataset, _ in entries):
        repo = HubRepo(client, dataset)
        files = {file.path: file for file in repo.files()}
        wanted = [path for where, path in entries if where == dataset]
        chosen = sorted({hit for path in wanted for hit in _expand(repo, files, path, source.type)})
        repo.require_access()
        before = f"{dataset.repo}/" if several else ""
        named = [(before + path, files[path]) for path in chosen]
        origin = f"{repo}: {len(named)} files of commit {repo.commit} ({dataset.revision})"
        for file in _input_files(source, repo, named, source.type, origin=origin):
            if found.setdefault(file.path, file).token != file.token:
                raise ConfigError(
                    f"source {source.name!r}: data_files name {file.path!r} at two revisions; make them two sources",
                    source=source.name,
                )
    return [found[path] for path in sorted(found)]


def _expand(repo: HubRepo, files: Mapping[str, HubFile], path: str, wanted: SourceType | None) -> list[str]:
    path = path.strip("/")
    if path in files:
        return [path]
    if _MAGIC.search(path):
        hits = matches(path, files)
    else:
        below = f"{path}/" if path else ""
        hits = [name for name in matches("**", files) if name.startswith(below) and belongs(name, wanted)]
    if not hits:
        raise SourceNotFoundError(
            f"{repo}: nothing matches {path!r} at commit {repo.commit} ({repo.id.revision})"
            f"{did_you_mean(path, files)}; it holds {listed(files, 8)}",
            repo=repo.id.repo,
            got=path,
        )
    return hits


def _input_files(
    source: ResolvedSource,
    repo: HubRepo,
    named: Sequence[tuple[str, HubFile]],
    wanted: SourceType | None,
    *,
    origin: str,
) -> list[InputFile]:
    """Return the inputs for (path of identity, file) pairs."""
    formats: dict[str, Format] = {
        file.path: format_for(file.path, repo.url(file.path), wanted) for _, file in named
    }
    doubtful = [file for _, file in named if formats[file.path] == "json" and file.size]
    with ThreadPoolExecutor(_THREADS) as pool:
        starts = pool.map(lambda file: repo.start(file.path, min(file.size, LOOK)), doubtful)
        for file, start in zip(doubtful, starts, strict=True):
            formats[file.path] = "jsonl" if has_lines(plain(start, file.path)) else "json"
    return [
        replace(_input_file(source, name, repo.url(file.path), file, formats[file.path]), origin=origin)
        for name, file in named
    ]


def _input_file(source: ResolvedSource, name: str, url: str, file: HubFile, format_: Format) -> InputFile:
    return InputFile(
        source=source.name,
        path=name,
        url=url,
        size=file.size,
        token=file.token,
        stat=(),
        format=format_,
        compression=compression_of(name),
        file_id=file_id(source.name, name),
        text_mode=source.text_mode,
    )

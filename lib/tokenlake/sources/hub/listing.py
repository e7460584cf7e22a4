"""Datasets on the Hub: from an id, a subset and a split to files of one commit.

A branch or tag is resolved to a commit once per listing, and everything after that names the commit, so a
branch that moves while a build runs changes nothing. The tokens are hashes of content: the same file at two
commits is the same input.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.fingerprint import file_id
from tokenlake.sources.formats import Format, belongs, compression_of, format_for
from tokenlake.sources.hub.layout import (
    PARTIAL,
    HubLayout,
    converted_layout,
    foreign,
    layout_of,
    loader_script,
    matches,
)
from tokenlake.sources.hub.repo import CONVERTED, HubClient, HubFile, HubId, HubRepo, parse_id, parse_url
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.stream import LOOK, has_lines, plain

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource, SourceType

_THREADS: Final = 8
_MAGIC: Final = re.compile(r"[*?\[]")
_CARD: Final = "README.md"


@dataclass(frozen=True, slots=True)
class HubListing:
    """A dataset's repository as it is at one commit, and what its files mean.

    Attributes:
        repo: at the commit that `files` are of.
        files: path to file.
        layout: subsets and splits.
        because: why the converted branch is read though nobody named it, else "".
    """

    repo: HubRepo
    files: Mapping[str, HubFile]
    layout: HubLayout
    because: str = ""

    def __str__(self) -> str:
        if not self.because:
            return str(self.repo)
        return f"{self.repo} (the Hub's own conversion to Parquet, {CONVERTED}, because {self.because})"


@dataclass(frozen=True, slots=True)
class HubSelection:
    """What an id, a subset and a split stand for; `files` are sorted by path, at least one, and readable."""

    listing: HubListing
    subset: str
    split: str
    files: tuple[HubFile, ...]

    def __str__(self) -> str:
        repo = self.listing.repo
        return (
            f"{self.listing}, subset {self.subset!r}, split {self.split!r}: {len(self.files)} files of commit "
            f"{repo.commit} ({repo.id.revision})"
        )


def list_repo(client: HubClient, dataset: HubId) -> HubListing:
    """Resolve a dataset to a commit and find its subsets and splits.

    Raises:
        SourceNotFoundError: no such dataset or revision.
        ConfigError: the card is of no use, or nothing in the repository can be read.
        SourceError: the Hub refuses, or cannot be reached.
    """
    repo = HubRepo(client, dataset)
    files = {file.path: file for file in repo.files()}
    paths = list(files)
    if dataset.revision == CONVERTED:
        return HubListing(repo, files, converted_layout(paths))
    layout = layout_of(paths, repo.text(_CARD) if _CARD in files else None, dataset.repo)
    script = loader_script(paths, repo.name)
    if layout is None or (script and layout.origin == "names"):
        # Files beside a script are what the script reads, not what it makes of them.
        why = f"its loader script {script} is never run" if script else "it holds no data files"
        return _converted(HubListing(repo, files, HubLayout({}, None)), why)
    return HubListing(repo, files, layout)


def select(listing: HubListing, subset: str | None, split: str) -> HubSelection:
    """Choose the files of a split; a split of formats that are not read here is taken from the converted branch.

    Args:
        subset: None for the default one.

    Raises:
        ConfigError: the subset or split is not there, or must be named.
        SourceNotFoundError: the card names files for it that are not there.
        SourceError: the dataset is gated, or the Hub cannot be reached.
    """
    name, paths = _paths(listing, subset, split)
    strange = [path for path in paths if foreign(path)]
    if strange:
        why = f"files such as {strange[0]} are not read by this release"
        listing = _converted(listing, why)
        name, paths = _paths(listing, subset, split)
    listing.repo.require_access()
    return HubSelection(listing, name, split, tuple(listing.files[path] for path in sorted(paths)))


def _converted(listing: HubListing, why: str) -> HubListing:
    branch = listing.repo.at(CONVERTED)
    files = {file.path: file for file in branch.files()} if branch else {}
    layout = converted_layout(list(files))
    if branch is None or not layout.subsets:
        raise _unreadable(listing, why)
    return HubListing(branch, files, layout, because=why)


def _unreadable(listing: HubListing, why: str) -> ConfigError:
    repo = listing.repo
    kinds = Counter(PurePosixPath(path).suffix or PurePosixPath(path).name for path in listing.files)
    listed = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(6)) or "nothing"
    remedy = (
        "Where you trust the script, run it once with an older release of `datasets` and save the result as Parquet"
        if loader_script(list(listing.files), repo.name)
        else f"Name files that can be read (data_files: hf://datasets/{repo.id.repo}/PATTERN), or convert them to "
        "Parquet or JSON Lines"
    )
    return ConfigError(
        f"{repo} at commit {repo.commit} cannot be read: {why}, and the Hub has no conversion of it to Parquet "
        f"({CONVERTED}). The repository holds {listed}. {remedy}.",
        repo=repo.id.repo,
        commit=repo.commit,
    )


def _paths(listing: HubListing, subset: str | None, split: str) -> tuple[str, list[str]]:
    name = _subset(listing, subset)
    paths = listing.layout.subsets[name].get(split)
    if paths is None:
        raise _no_split(listing, name, split)
    if not paths:
        raise SourceNotFoundError(
            f"{listing}, subset {name!r}, split {split!r}: the card names files for it, but none of them is in the "
            f"repository at commit {listing.repo.commit}. Name the files yourself: "
            f"data_files: hf://datasets/{listing.repo.id.repo}/PATTERN",
            repo=listing.repo.id.repo,
        )
    return name, list(paths)


def _subset(listing: HubListing, asked: str | None) -> str:
    subsets = listing.layout.subsets
    if asked is None and listing.layout.default is not None:
        return listing.layout.default
    if asked is not None and asked in subsets:
        return asked
    what = "has several subsets and no default one" if asked is None else f"has no subset {asked!r}"
    raise ConfigError(
        f"{listing} {what}; set `subset` to one of {listed(subsets)}{_suggestion(asked, subsets)}",
        repo=listing.repo.id.repo,
        subsets=list(subsets),
    )


def _no_split(listing: HubListing, subset: str, split: str) -> ConfigError:
    repo, splits = listing.repo.id.repo, listing.layout.subsets[subset]
    what = f"{listing}, subset {subset!r}"
    if "[" in split:
        message = f"{what}: {split!r} is a slice; write the split's name alone and use num_rows or where"
    elif PARTIAL + split in splits:
        message = (
            f"{what}: of split {split!r} the Hub converted only the beginning. To read just that, set "
            f"split: {PARTIAL}{split}; for all of it name the files that are not converted: "
            f"data_files: hf://datasets/{repo}/PATTERN"
        )
    else:
        message = f"{what} has no split {split!r}; set `split` to one of {listed(splits)}{_suggestion(split, splits)}"
    return ConfigError(message, repo=repo, splits=list(splits))


def _suggestion(word: str | None, known: Iterable[str]) -> str:
    return "" if word is None else did_you_mean(word, known)


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Return names for a message, the first `limit` of them."""
    all_of_them = list(names)
    more = f", ... ({len(all_of_them)} in all)" if len(all_of_them) > limit else ""
    return ", ".join(all_of_them[:limit]) + more


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

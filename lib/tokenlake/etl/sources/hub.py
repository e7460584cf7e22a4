"""Datasets on the Hub: from an id, a subset and a split to files of one commit.

A branch or tag is resolved to a commit once per listing, and everything after that names the commit, so a
branch that moves while a build runs changes nothing. The tokens are hashes of content: the same file at two
commits is the same input.

A repository may hold any files. Its card (``configs:`` in the front matter of README.md) says what they
mean; where it does not, their names do, by the rules of the Hub's own viewer and the `datasets` library.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.sources.descriptions import without_descriptions
from tokenlake.etl.sources.formats import belongs, has_wildcard, static_folder
from tokenlake.etl.sources.hub_client import HubClient
from tokenlake.etl.sources.hub_id import CONVERTED, HubId, parse_id, parse_url
from tokenlake.etl.sources.hub_layout import layout_of
from tokenlake.etl.sources.hub_repo import HubFile, HubRepo
from tokenlake.etl.sources.inputs import InputFile, planned
from tokenlake.etl.sources.layout import CARD, DEFAULT, FolderLayout, foreign, matches
from tokenlake.etl.sources.saved_layout import saved_layout
from tokenlake.etl.sources.split_choice import Choice, FilesEntry, Select, choose, notes_of

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


PARTIAL: Final = "partial-"
"""Before the name of a split of which the Hub converted only the beginning."""


def converted_layout(paths: Sequence[str]) -> FolderLayout:
    """Return the layout of the converted branch: ``SUBSET/SPLIT/0000.parquet``, big splits in ``SPLIT-part0``."""
    subsets: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        folders = PurePosixPath(path).parts
        if len(folders) < 3 or not path.endswith(".parquet"):
            continue
        split = re.sub(r"-part[0-9]+$", "", folders[1])
        if len(folders) == 4 and folders[1] == PARTIAL.rstrip("-"):  # an older form
            split = PARTIAL + folders[2]
        subsets.setdefault(folders[0], {}).setdefault(split, []).append(path)
    default = next(iter(subsets)) if len(subsets) == 1 else DEFAULT if DEFAULT in subsets else None
    return FolderLayout(subsets, default, "converted")


def loader_script(paths: Sequence[str], name: str) -> str | None:
    """Return the script that old releases of `datasets` ran to load the dataset, None without one."""
    return f"{name}.py" if f"{name}.py" in paths else None


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
    layout: FolderLayout
    because: str = ""

    def __str__(self) -> str:
        if not self.because:
            return str(self.repo)
        return f"{self.repo} (the Hub's own conversion to Parquet, {CONVERTED}, because {self.because})"


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
    data = without_descriptions(paths, paths, repo.text)
    layout = saved_layout(data, paths, repo.text)
    if layout is None:
        layout = layout_of(data, repo.text(CARD) if CARD in files else None, dataset.repo)
    script = loader_script(paths, repo.name)
    if layout is None or (script and layout.origin == "names"):
        # Files beside a script are what the script reads, not what it makes of them.
        why = f"its loader script {script} is never run" if script else "it holds no data files"
        return _converted(HubListing(repo, files, FolderLayout({}, None)), why)
    return HubListing(repo, files, layout)


def _select(listing: HubListing, subset: str | None, split: str) -> tuple[HubListing, str, list[str]]:
    """Return the subset that is meant and the paths of a split, in the listing where they can be read.

    A split of formats that are not read here is taken from the converted branch.
    """
    name, paths = _paths(listing, subset, split)
    if strange := [path for path in paths if foreign(path)]:
        listing = _converted(listing, f"files such as {strange[0]} are not read by this release")
        name, paths = _paths(listing, subset, split)
    return listing, name, paths


def _converted(listing: HubListing, why: str) -> HubListing:
    branch, repo = listing.repo.at(CONVERTED), listing.repo
    files = {file.path: file for file in branch.files()} if branch else {}
    layout = converted_layout(list(files))
    if branch is not None and layout.subsets:
        return HubListing(branch, files, layout, because=why)
    kinds = Counter(PurePosixPath(path).suffix or PurePosixPath(path).name for path in listing.files)
    held = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(6)) or "nothing"
    remedy = (
        "Where you trust the script, run it once with an older release of `datasets` and save the result as Parquet"
        if loader_script(list(listing.files), repo.name)
        else f"Name files that can be read (data_files: hf://datasets/{repo.id.repo}/PATTERN), or convert them to "
        "Parquet or JSON Lines"
    )
    raise ConfigError(
        f"{repo} at commit {repo.commit} cannot be read: {why}, and the Hub has no conversion of it to Parquet "
        f"({CONVERTED}). The repository holds {held}. {remedy}.",
        repo=repo.id.repo,
        commit=repo.commit,
    )


def _paths(listing: HubListing, subset: str | None, split: str) -> tuple[str, list[str]]:
    subsets, repo = listing.layout.subsets, listing.repo
    name = listing.layout.default if subset is None else subset
    if name is None or name not in subsets:
        what = "has several subsets and no default one" if subset is None else f"has no subset {subset!r}"
        hint = "" if subset is None else did_you_mean(subset, subsets)
        raise ConfigError(
            f"{listing} {what}; set `subset` to one of {listed(subsets)}{hint}",
            repo=repo.id.repo,
            subsets=list(subsets),
        )
    splits, what = subsets[name], f"{listing}, subset {name!r}"
    pattern = f"data_files: hf://datasets/{repo.id.repo}/PATTERN"
    if split not in splits:
        if "[" in split:
            told = f"{what}: {split!r} is a slice; write the split's name alone and use num_rows or where"
        elif PARTIAL + split in splits:
            told = (
                f"{what}: of split {split!r} the Hub converted only the beginning. To read just that, set "
                f"split: {PARTIAL}{split}; for all of it name the files that are not converted: {pattern}"
            )
        else:
            near = did_you_mean(split, splits)
            told = f"{what} has no split {split!r}; set `split` to one of {listed(splits)}{near}"
        raise ConfigError(told, repo=repo.id.repo, splits=list(splits))
    if not splits[split]:
        raise SourceNotFoundError(
            f"{what}, split {split!r}: the card names files for it, but none of them is in the "
            f"repository at commit {repo.commit}. Name the files yourself: {pattern}",
            repo=repo.id.repo,
        )
    return name, list(splits[split])


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Return names for a message, the first `limit` of them."""
    all_of_them = list(names)
    more = f", ... ({len(all_of_them)} in all)" if len(all_of_them) > limit else ""
    return ", ".join(all_of_them[:limit]) + more


def list_hub(source: ResolvedSource, select: Select = choose) -> list[InputFile]:
    """List files of datasets on the Hub, sorted by path, at commits that their URLs name.

    Entries of `data_files` are ids (of the type ``hub``), or ``hf://datasets/org/name[@revision]/path`` URLs of
    files, folders and globs. `path` is the path in the repository, with the dataset's id before it where there are
    several.

    Args:
        select: says which files of a folder, glob or file are listed; ids have a subset and a split anyway.

    Raises:
        SourceNotFoundError: no such dataset, revision or files.
        ConfigError: the subset or split is not there, or must be named; the message lists them.
        SourceError: the dataset is gated, or the Hub cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    client = HubClient(source.storage_options)
    chosen = list(_of_ids(source, client) if source.type == "hub" else _of_urls(source, client, select))
    several = len({repo.id.repo for repo, _, _ in chosen}) > 1
    found: dict[str, InputFile] = {}
    for repo, files, what in chosen:
        repo.require_access()
        before = f"{repo.id.repo}/" if several else ""
        origin = f"{what}: {len(files)} files of commit {repo.commit} ({repo.id.revision})"
        for file in files:
            url, size, token = repo.url(file.path), file.size, file.token
            new = planned(source, before + file.path, url, size=size, token=token, origin=origin)
            if found.setdefault(new.path, new).token != new.token:
                raise _two_revisions(source, new.path)
    return [found[path] for path in sorted(found)]


def _two_revisions(source: ResolvedSource, what: str) -> ConfigError:
    return ConfigError(
        f"source {source.name!r}: data_files name {what!r} at two revisions; make them two sources",
        source=source.name,
    )


_Chosen: TypeAlias = tuple[HubRepo, list[HubFile], str]
"""Some files of a repository, at least one, all of them readable; and what they are."""


def _of_ids(source: ResolvedSource, client: HubClient) -> Iterator[_Chosen]:
    for entry in source.data_files:
        if entry.startswith((".", "/", "~")) or Path(entry).exists():
            raise ConfigError(
                f"data_files: {entry!r} is a path of this machine, but `type: huggingface` makes it the id of a "
                "dataset on the Hub. Leave `type` out to read files; a dataset of the Hub that bears the name of a "
                f"local file is written hf://datasets/{entry.strip('./~')}.",
                got=entry,
            )
    ids = dict.fromkeys(map(parse_id, source.data_files))
    twice = [name for name, count in Counter(dataset.repo for dataset in ids).items() if count > 1]
    if twice:
        raise _two_revisions(source, twice[0])
    for dataset in ids:
        listing, subset, paths = _select(list_repo(client, dataset), source.subset, source.split)
        what = f"{listing}, subset {subset!r}, split {source.split!r}"
        yield listing.repo, [listing.files[path] for path in paths], what


def _of_urls(source: ResolvedSource, client: HubClient, select: Select) -> Iterator[_Chosen]:
    entries = [parse_url(url) for url in source.data_files]
    for dataset in dict.fromkeys(dataset for dataset, _ in entries):
        repo = HubRepo(client, dataset)
        files = {file.path: file for file in repo.files()}
        chosen: set[str] = set()
        choices: list[Choice] = []
        for path in (path.strip("/") for where, path in entries if where == dataset):
            entry, below = _entry_at(repo, files, path, source)
            if not entry.paths:
                raise SourceNotFoundError(
                    f"{repo}: nothing matches {path!r} at commit {repo.commit} ({repo.id.revision})"
                    f"{did_you_mean(path, files)}; it holds {listed(files, 8)}",
                    repo=repo.id.repo,
                    got=path,
                )
            choice = select(entry, source)
            chosen.update(below + name for name in choice.paths)
            choices.append(choice)
        notes = notes_of(choices)
        what = f"{repo} ({notes})" if notes else str(repo)
        yield repo, [files[path] for path in chosen], what


def _entry_at(
    repo: HubRepo, files: Mapping[str, HubFile], path: str, source: ResolvedSource
) -> tuple[FilesEntry, str]:
    """Return what a file, glob or folder of a repository stands for, and the folder's path with a slash behind it."""
    is_folder = path not in files and not has_wildcard(path)
    if is_folder:
        folder = path
    elif path in files:
        folder = path.rpartition("/")[0]
    else:
        folder = static_folder(path)
    below = f"{folder}/" if folder else ""
    if path in files:
        hits = [path]
    elif not is_folder:
        hits = matches(path, files)
    else:
        every = (name for name in matches("**", files) if name.startswith(below))
        hits = [name for name in every if belongs(name, source.type)]
    inside = [name.removeprefix(below) for name in files if name.startswith(below)]

    def read(name: str) -> str:
        return repo.text(below + name)

    paths = [name.removeprefix(below) for name in hits]
    if is_folder:
        paths = without_descriptions(paths, inside, read)
    entry = FilesEntry(
        written=repo.id.url(path),
        base=repo.url(below),
        folder_name=folder.rpartition("/")[2],
        paths=paths,
        is_folder=is_folder,
        names=frozenset(inside) if is_folder else frozenset(),
        read=read,
    )
    return entry, below

"""Datasets on the Hub: from an id, a subset and a split to files of one commit.

A branch or tag is resolved to a commit once per listing, and everything after that
names the commit, so that a branch that moves while a build runs changes nothing. The
tokens are hashes of content: the same file at two commits is the same input.

A repository may hold any files. Its card (``configs:`` in the front matter of
README.md) names their subsets and splits; without one the names of the files do, by the
rules of the Hub's own viewer and the `datasets` library. Files that cannot be read here
are taken from the branch to which the Hub converts a dataset, as Parquet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.sources.companions import possible_companions
from tokenlake.etl.sources.descriptions import without_descriptions
from tokenlake.etl.sources.formats import belongs, has_wildcard, static_folder
from tokenlake.etl.sources.hub_client import HubClient
from tokenlake.etl.sources.hub_id import CONVERTED, HubId, parse_id, parse_url
from tokenlake.etl.sources.hub_layout import layout_of
from tokenlake.etl.sources.hub_repo import HubFile, HubRepo
from tokenlake.etl.sources.inputs import InputFile, planned
from tokenlake.etl.sources.layout import CARD, DEFAULT, FolderLayout, foreign, matches
from tokenlake.etl.sources.saved_layout import saved_layout
from tokenlake.etl.sources.split_choice import (
    Choice,
    FilesEntry,
    Select,
    choose,
    notes_of,
)

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


PARTIAL: Final = "partial-"
"""Prefix of the name of a split of which the Hub converted only the beginning."""

_SHOWN_NAMES: Final = 20
_SHOWN_FILES: Final = 8
_SHOWN_KINDS: Final = 6


def converted_layout(paths: Sequence[str]) -> FolderLayout:
    """Return the layout of the converted branch.

    Its paths are ``SUBSET/SPLIT/0000.parquet``, with ``SPLIT-part0`` for big splits.
    """
    subsets: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        path_parts = PurePosixPath(path).parts
        if len(path_parts) < 3 or not path.endswith(".parquet"):
            continue
        subset = path_parts[0]
        split = re.sub(r"-part[0-9]+$", "", path_parts[1])
        # An older form of the branch has partial/SPLIT as folders.
        is_partial = path_parts[1] == PARTIAL.rstrip("-")
        if len(path_parts) == 4 and is_partial:
            split = PARTIAL + path_parts[2]
        subsets.setdefault(subset, {}).setdefault(split, []).append(path)
    # The default subset is the only one, or the one of the Hub's name for it.
    default_subset: str | None = None
    if len(subsets) == 1:
        (default_subset,) = subsets
    elif DEFAULT in subsets:
        default_subset = DEFAULT
    return FolderLayout(subsets, default_subset, "converted")


def loader_script(paths: Sequence[str], name: str) -> str | None:
    """Return the script that old releases of `datasets` ran to load the dataset.

    It is None if there is none.
    """
    script = f"{name}.py"
    return script if script in paths else None


@dataclass(frozen=True, slots=True)
class HubListing:
    """A dataset's repository at one commit, with the subsets and splits of its files.

    Attributes:
        repo: Repository at the commit of the files.
        files: Path to file.
        layout: Subsets and splits.
        because: Reason for which the converted branch is read though nobody named it,
            "" for none.
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
        SourceNotFoundError: The dataset or revision does not exist.
        ConfigError: The card cannot be used, or nothing in the repository can be read.
        SourceError: The Hub refuses, or cannot be reached.
    """
    repo = HubRepo(client, dataset)
    files = {file.path: file for file in repo.files()}
    paths = list(files)
    if dataset.revision == CONVERTED:
        return HubListing(repo, files, converted_layout(paths))
    # Where the repository says nothing about subsets, saved rows of `datasets` count
    # first, then the card, then the names of the files.
    data_paths = without_descriptions(paths, paths, repo.text)
    layout = saved_layout(data_paths, paths, repo.text)
    if layout is None:
        card = repo.text(CARD) if CARD in files else None
        layout = layout_of(data_paths, card, dataset.repo)

    # Files beside a script are its inputs, not the dataset.
    script = loader_script(paths, repo.name)
    if layout is None or (script and layout.origin == "names"):
        reason = "it holds no data files"
        if script:
            reason = f"its loader script {script} is never run"
        return _converted_listing(
            HubListing(repo, files, FolderLayout({}, None)), reason
        )
    return HubListing(repo, files, layout)


class _Selection(NamedTuple):
    """Files of one split.

    Attributes:
        listing: Listing in which they can be read.
        subset: Name of the subset.
        paths: Paths of the files.
    """

    listing: HubListing
    subset: str
    paths: list[str]


def _select_split(listing: HubListing, subset: str | None, split: str) -> _Selection:
    """Return the files of a split.

    Files of formats that are not read here are taken from the converted branch.

    Args:
        listing: Listing of the dataset.
        subset: Name of the subset, None for the default one.
        split: Name of the split.
    """
    selection = _files_of_split(listing, subset, split)
    for path in selection.paths:
        if foreign(path):
            converted = _converted_listing(
                listing, f"files such as {path} are not read by this release"
            )
            return _files_of_split(converted, subset, split)
    return selection


def _converted_listing(listing: HubListing, reason: str) -> HubListing:
    """Return the listing of the converted branch.

    Args:
        listing: Listing of a revision that cannot be read.
        reason: Clause that says why.

    Raises:
        ConfigError: The Hub has no conversion of the dataset.
    """
    repo = listing.repo
    branch = repo.at(CONVERTED)
    if branch is not None:
        files = {file.path: file for file in branch.files()}
        layout = converted_layout(list(files))
        if layout.subsets:
            return HubListing(branch, files, layout, because=reason)

    # Nothing can be read: the message names the content of the repository, and a
    # remedy.
    kind_counts: Counter[str] = Counter()
    for path in listing.files:
        file_path = PurePosixPath(path)
        kind_counts[file_path.suffix or file_path.name] += 1
    kind_descriptions: list[str] = []
    for kind, count in kind_counts.most_common(_SHOWN_KINDS):
        kind_descriptions.append(f"{count} x {kind}")
    content = ", ".join(kind_descriptions)
    if loader_script(list(listing.files), repo.name):
        remedy = (
            "If you trust the script, run it once with an older release of `datasets` and save the "
            "result as Parquet"
        )
    else:
        remedy = (
            f"List files that can be read (data_files: hf://datasets/{repo.id.repo}/PATTERN), or convert them to "
            "Parquet or JSON Lines"
        )
    raise ConfigError(
        f"{repo} at commit {repo.commit} cannot be read: {reason}, and the Hub has no conversion of it to Parquet "
        f"({CONVERTED}). The repository holds {content or 'nothing'}. {remedy}.",
        repo=repo.id.repo,
        commit=repo.commit,
    )


def _files_of_split(listing: HubListing, subset: str | None, split: str) -> _Selection:
    """Return the files of a split in a listing.

    Raises:
        ConfigError: The listing has no such subset or split.
        SourceNotFoundError: The split has no files.
    """
    repo = listing.repo
    # The subset that is meant.
    subsets = listing.layout.subsets
    subset_name = listing.layout.default if subset is None else subset
    if subset_name is None or subset_name not in subsets:
        problem = "has several subsets and no default one"
        hint = ""
        if subset is not None:
            problem = f"has no subset {subset!r}"
            hint = did_you_mean(subset, subsets)
        raise ConfigError(
            f"{listing} {problem}; set `subset` to one of {listed(subsets)}{hint}",
            repo=repo.id.repo,
            subsets=list(subsets),
        )
    # The files of the split.
    splits = subsets[subset_name]
    place_description = f"{listing}, subset {subset_name!r}"
    pattern = f"data_files: hf://datasets/{repo.id.repo}/PATTERN"
    if split not in splits:
        raise _missing_split(repo, place_description, split, splits, pattern)
    if not splits[split]:
        raise SourceNotFoundError(
            f"{place_description}, split {split!r}: the card lists files for it, but none of them is in the "
            f"repository at commit {repo.commit}. List the files: {pattern}",
            repo=repo.id.repo,
        )
    return _Selection(listing, subset_name, list(splits[split]))


def _missing_split(
    repo: HubRepo,
    place_description: str,
    split: str,
    splits: Iterable[str],
    pattern: str,
) -> ConfigError:
    """Return the error for a split that a subset does not have.

    Args:
        repo: The repository.
        place_description: Repository and subset, for the message.
        split: Name of the missing split.
        splits: Names of the splits that exist.
        pattern: Setting that names files instead.
    """
    names = list(splits)
    # Slices of `datasets` and partial conversions have remedies of their own. Any other
    # name may be mistyped.
    if "[" in split:
        message = f"{place_description}: {split!r} is a slice; write only the split's name and use num_rows or where"
    elif PARTIAL + split in names:
        message = (
            f"{place_description}: of split {split!r} the Hub converted only the beginning. To read only that part, "
            f"set split: {PARTIAL}{split}; for the whole split, list the original files: {pattern}"
        )
    else:
        hint = did_you_mean(split, names)
        message = f"{place_description} has no split {split!r}; set `split` to one of {listed(names)}{hint}"
    return ConfigError(message, repo=repo.id.repo, splits=names)


def listed(names: Iterable[str], limit: int = _SHOWN_NAMES) -> str:
    """Return names for a message, the first `limit` of them."""
    all_names = list(names)
    shown_names = ", ".join(all_names[:limit])
    if len(all_names) > limit:
        shown_names += f", ... ({len(all_names)} in all)"
    return shown_names


class _RepoFiles(NamedTuple):
    """Files of a repository that a source reads.

    Attributes:
        repo: The repository at one commit.
        files: The files, at least one, all of them readable.
        note: Repository, subset and split for a note.
    """

    repo: HubRepo
    files: list[HubFile]
    note: str


def list_hub(source: ResolvedSource, select: Select = choose) -> list[InputFile]:
    """List files of datasets on the Hub, sorted by path, at commits in their URLs.

    Entries of `data_files` are ids (of the type ``hub``), or
    ``hf://datasets/org/name[@revision]/path`` URLs of files, folders and globs. `path`
    is the path in the repository, with the dataset's id in front if there are several
    datasets.

    Args:
        source: Source whose `data_files` are listed.
        select: Function that chooses the files of a folder, glob or file; ids have a
            subset and a split anyway.

    Raises:
        SourceNotFoundError: A dataset, revision or file does not exist.
        ConfigError: The subset or split does not exist, or must be named; the message
            lists them.
        SourceError: The dataset is gated, or the Hub cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    client = HubClient(source.storage_options)
    # Ids have subsets and splits. URLs name files, folders and globs of a repository.
    if source.type == "hub":
        chosen = list(_files_of_ids(source, client))
    else:
        chosen = list(_files_of_urls(source, client, select))
    # Files of several datasets have the dataset's id in their paths; no file is read at
    # two revisions.
    has_several = len({files.repo.id.repo for files in chosen}) > 1
    inputs: dict[str, InputFile] = {}
    for repo, files, note in chosen:
        repo.require_access()
        prefix = f"{repo.id.repo}/" if has_several else ""
        origin = (
            f"{note}: {len(files)} files of commit {repo.commit} ({repo.id.revision})"
        )
        for file in files:
            path = prefix + file.path
            url = repo.url(file.path)
            input_file = planned(
                source, path, url, size=file.size, token=file.token, origin=origin
            )
            if inputs.setdefault(path, input_file).token != input_file.token:
                raise _two_revisions(source, path)
    return [inputs[path] for path in sorted(inputs)]


def _two_revisions(source: ResolvedSource, dataset_name: str) -> ConfigError:
    return ConfigError(
        f"source {source.name!r}: data_files name {dataset_name!r} at two revisions; make them two sources",
        source=source.name,
    )


def _files_of_ids(source: ResolvedSource, client: HubClient) -> Iterator[_RepoFiles]:
    """Yield the files of each dataset that `data_files` name by id.

    They are those of the source's subset and split.
    """
    # A relative path looks like an id, and would be looked for on the Hub.
    for entry in source.data_files:
        if entry.startswith((".", "/", "~")) or Path(entry).exists():
            raise ConfigError(
                f"data_files: {entry!r} is a local path, but with `type: huggingface` it is the id of a dataset on "
                "the Hub. Leave `type` out to read files; write a dataset of the Hub that has the name of a local "
                f"file as hf://datasets/{entry.strip('./~')}.",
                got=entry,
            )
    # Each dataset once, at one revision.
    datasets = dict.fromkeys(map(parse_id, source.data_files))
    revisions = Counter(dataset.repo for dataset in datasets)
    for dataset_name, count in revisions.items():
        if count > 1:
            raise _two_revisions(source, dataset_name)
    for dataset in datasets:
        selection = _select_split(
            list_repo(client, dataset), source.subset, source.split
        )
        listing = selection.listing
        files = [listing.files[path] for path in selection.paths]
        note = f"{listing}, subset {selection.subset!r}, split {source.split!r}"
        yield _RepoFiles(listing.repo, files, note)


def _files_of_urls(
    source: ResolvedSource, client: HubClient, select: Select
) -> Iterator[_RepoFiles]:
    """Yield the files of each dataset that `data_files` name by URLs."""
    # Entries of one dataset at one revision are listed together.
    paths_of_dataset: dict[HubId, list[str]] = {}
    for url in source.data_files:
        dataset, path = parse_url(url)
        paths_of_dataset.setdefault(dataset, []).append(path.strip("/"))
    # Each repository is listed once, however many entries name files of it.
    for dataset, paths in paths_of_dataset.items():
        repo = HubRepo(client, dataset)
        files = {file.path: file for file in repo.files()}
        chosen_paths: set[str] = set()
        choices: list[Choice] = []
        for path in paths:
            entry, prefix = _files_entry(repo, files, path, source)
            if not entry.paths:
                raise SourceNotFoundError(
                    f"{repo}: nothing matches {path!r} at commit {repo.commit} ({repo.id.revision})"
                    f"{did_you_mean(path, files)}; it holds {listed(files, _SHOWN_FILES)}",
                    repo=repo.id.repo,
                    got=path,
                )
            choice = select(entry, source)
            choices.append(choice)
            chosen_paths.update(prefix + chosen_path for chosen_path in choice.paths)
        note = str(repo)
        choice_notes = notes_of(choices)
        if choice_notes:
            note = f"{repo} ({choice_notes})"
        yield _RepoFiles(repo, [files[path] for path in chosen_paths], note)


def _files_entry(
    repo: HubRepo, files: Mapping[str, HubFile], path: str, source: ResolvedSource
) -> tuple[FilesEntry, str]:
    """Return the files of an entry, and the prefix of their paths.

    The prefix is their folder, with a slash behind it.

    Args:
        repo: The repository.
        files: All files of the repository by their paths.
        path: Path of a file, glob or folder.
        source: The source.
    """
    # 1. A file, a glob, or a folder.
    is_folder = False
    if path in files:
        folder = path.rpartition("/")[0]
        matching = [path]
    elif has_wildcard(path):
        folder = static_folder(path)
        matching = matches(path, files)
    else:
        is_folder = True
        folder = path
        matching = []
        for file_path in matches("**", files):
            if belongs(file_path, source.type):
                matching.append(file_path)
    # Files that belong to a file or to the matches of a glob have other names.
    companions = possible_companions(matching, source.type) - set(matching)
    matching = [*matching, *sorted(companions & files.keys())]
    prefix = f"{folder}/" if folder else ""

    # 2. Its data, and everything that the folder holds.
    def read(file_path: str) -> str:
        return repo.text(prefix + file_path)

    paths: list[str] = []
    for file_path in matching:
        if file_path.startswith(prefix):
            paths.append(file_path.removeprefix(prefix))
    names: frozenset[str] = frozenset()
    if is_folder:
        all_names: set[str] = set()
        for file_path in files:
            if file_path.startswith(prefix):
                all_names.add(file_path.removeprefix(prefix))
        names = frozenset(all_names)
        paths = without_descriptions(paths, names, read)
    entry = FilesEntry(
        written=repo.id.url(path),
        base=repo.url(prefix),
        folder_name=folder.rpartition("/")[2],
        paths=paths,
        is_folder=is_folder,
        names=names,
        read=read,
    )
    return entry, prefix

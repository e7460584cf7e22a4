"""Which files of a dataset on the Hub a subset and a split are, at one commit; no data is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.sources.hub.layout import PARTIAL, Layout, converted_layout, foreign, layout_of, loader_script
from tokenlake.sources.hub.repo import CONVERTED, HubClient, HubFile, HubId, HubRepo

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
    layout: Layout
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
        return _converted(HubListing(repo, files, Layout({}, None)), why)
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
        f"{listing} {what}; set `subset` to one of {listed(subsets)}{_near(asked, subsets)}",
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
        message = (
            f"{what} has no split {split!r}; set `split` to one of {listed(splits)}{_near(split, splits)}"
        )
    return ConfigError(message, repo=repo, splits=list(splits))


def _near(word: str | None, known: Iterable[str]) -> str:
    return "" if word is None else did_you_mean(word, known)


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Return names for a message, the first `limit` of them."""
    all_of_them = list(names)
    more = f", ... ({len(all_of_them)} in all)" if len(all_of_them) > limit else ""
    return ", ".join(all_of_them[:limit]) + more

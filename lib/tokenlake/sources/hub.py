"""Datasets on the Hub: from an id, a subset and a split to files of one commit, and their bytes.

A branch or tag is resolved to a commit once per listing, and everything after that names the commit, so a
branch that moves while a build runs changes nothing. The tokens are hashes of content: the same file at two
commits is the same input.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from tokenlake.config.values import did_you_mean
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.sources import hub_layout
from tokenlake.sources.formats import belongs, has_wildcard
from tokenlake.sources.hub_repo import (
    CONVERTED,
    HubClient,
    HubFile,
    HubId,
    HubRepo,
    Refused,
    parse_id,
    parse_url,
    refusal,
    resolve_path,
)
from tokenlake.sources.inputs import InputFile, changed, damaged, planned, state
from tokenlake.sources.readahead import ReadAheadBytes
from tokenlake.threads import in_order

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


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
    layout: hub_layout.HubLayout
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
        return HubListing(repo, files, hub_layout.converted_layout(paths))
    layout = hub_layout.layout_of(paths, repo.text(_CARD) if _CARD in files else None, dataset.repo)
    script = hub_layout.loader_script(paths, repo.name)
    if layout is None or (script and layout.origin == "names"):
        # Files beside a script are what the script reads, not what it makes of them.
        why = f"its loader script {script} is never run" if script else "it holds no data files"
        return _converted(HubListing(repo, files, hub_layout.HubLayout({}, None)), why)
    return HubListing(repo, files, layout)


def _select(listing: HubListing, subset: str | None, split: str) -> tuple[HubListing, str, list[str]]:
    """Return the subset that is meant and the paths of a split, in the listing where they can be read.

    A split of formats that are not read here is taken from the converted branch.
    """
    name, paths = _paths(listing, subset, split)
    if strange := [path for path in paths if hub_layout.foreign(path)]:
        listing = _converted(listing, f"files such as {strange[0]} are not read by this release")
        name, paths = _paths(listing, subset, split)
    return listing, name, paths


def _converted(listing: HubListing, why: str) -> HubListing:
    branch, repo = listing.repo.at(CONVERTED), listing.repo
    files = {file.path: file for file in branch.files()} if branch else {}
    layout = hub_layout.converted_layout(list(files))
    if branch is not None and layout.subsets:
        return HubListing(branch, files, layout, because=why)
    kinds = Counter(PurePosixPath(path).suffix or PurePosixPath(path).name for path in listing.files)
    held = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(6)) or "nothing"
    remedy = (
        "Where you trust the script, run it once with an older release of `datasets` and save the result as Parquet"
        if hub_layout.loader_script(list(listing.files), repo.name)
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
        elif hub_layout.PARTIAL + split in splits:
            told = (
                f"{what}: of split {split!r} the Hub converted only the beginning. To read just that, set "
                f"split: {hub_layout.PARTIAL}{split}; for all of it name the files that are not converted: {pattern}"
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


def list_hub(source: ResolvedSource) -> list[InputFile]:
    """List files of datasets on the Hub, sorted by path, at commits that their URLs name.

    Entries of `data_files` are ids (of the type ``hub``), or ``hf://datasets/org/name[@revision]/path`` URLs of
    files, folders and globs. `path` is the path in the repository, with the dataset's id before it where there are
    several.

    Raises:
        SourceNotFoundError: no such dataset, revision or files.
        ConfigError: the subset or split is not there, or must be named; the message lists them.
        SourceError: the dataset is gated, or the Hub cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    client = HubClient(source.storage_options)
    chosen = list(_of_ids(source, client) if source.type == "hub" else _of_urls(source, client))
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


def _of_urls(source: ResolvedSource, client: HubClient) -> Iterator[_Chosen]:
    entries = [parse_url(url) for url in source.data_files]
    for dataset in dict.fromkeys(dataset for dataset, _ in entries):
        repo = HubRepo(client, dataset)
        files = {file.path: file for file in repo.files()}
        chosen: set[str] = set()
        for path in (path.strip("/") for where, path in entries if where == dataset):
            if path in files:
                hits = [path]
            elif has_wildcard(path):
                hits = hub_layout.matches(path, files)
            else:
                below = f"{path}/" if path else ""
                every = (name for name in hub_layout.matches("**", files) if name.startswith(below))
                hits = [name for name in every if belongs(name, source.type)]
            if not hits:
                raise SourceNotFoundError(
                    f"{repo}: nothing matches {path!r} at commit {repo.commit} ({repo.id.revision})"
                    f"{did_you_mean(path, files)}; it holds {listed(files, 8)}",
                    repo=repo.id.repo,
                    got=path,
                )
            chosen.update(hits)
        yield repo, [files[path] for path in chosen], str(repo)


_RETRIES: Final = 7  # about a minute in all
_FETCHES: Final = 4
_GONE: Final = frozenset({"RevisionNotFound", "EntryNotFound"})


@final
class HubBytes(ReadAheadBytes):
    """A file on the Hub. Its commit never changes; every answer is checked against the planned hash all the same."""

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any] | None = None) -> None:
        """Prepare reading, without a request; see :class:`HubClient` for the options and what it raises."""
        self._client = HubClient(storage_options, retries=_RETRIES)
        self._dataset, path = parse_url(file.url)
        self._where = resolve_path(self._dataset.repo, self._dataset.revision, path)
        self._threads = ThreadPoolExecutor(_FETCHES, thread_name_prefix="hub")
        super().__init__(file, lambda start, size: self._threads.submit(self._fetch, start, start + size))

    def close(self) -> None:
        """Stop what is under way; connections are kept for the next file."""
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, all of them."""
        file, dataset = self.file, self._dataset
        try:
            answer = self._client.get(self._where, span=(start, stop), what=file.url)
        except Refused as error:
            if error.code in _GONE:
                raise changed(
                    file,
                    f"commit {dataset.revision} or the file in it is gone from the Hub (the dataset was deleted, "
                    "or its history rewritten)",
                ) from None
            raise refusal(error, dataset, with_token=self._client.with_token) from None
        expected = f"bytes {start}-{stop - 1}/{file.size}"
        got = answer.headers.get("content-range", "")
        if got != expected or len(answer.body) != stop - start:
            raise changed(file, f"asked for {expected}, the Hub sent {got!r} ({len(answer.body)} bytes)")
        known = file.token.partition(":")[2]
        etag = answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")
        found = etag.removeprefix("W/").strip('"')
        # Only what looks like the hash we know is one: a storage host's own tag says nothing.
        if re.fullmatch(r"[0-9a-f]+", found) and len(found) == len(known) and found != known:
            raise changed(file, f"its hash is {found}, planned was {known}")
        return answer.body


def downloaded(
    files: Iterable[InputFile],
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
) -> list[InputFile]:
    """Return the same inputs as local files: identity stays, `url` and `stat` are those of the cache.

    What the cache of `huggingface_hub` has already is not downloaded again.

    Raises:
        DamagedFileError: what came is not what the plan's hash says, or the cache is damaged.
        SourceError: a download failed.
    """
    client = HubClient(storage_options)
    return list(in_order(lambda file: _local(file, client, cache_dir), list(files), _FETCHES))


def _local(file: InputFile, client: HubClient, cache_dir: str | Path | None) -> InputFile:
    path = client.download(*parse_url(file.url), cache_dir)
    before = path.stat()
    if file.token.startswith("git:"):
        # Git hashes a header with the length before the content; such files are small.
        data = path.read_bytes()
        found = f"git:{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}"
    else:
        with path.open("rb") as stream:
            found = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    if before.st_size != file.size or found != file.token:
        raise damaged(
            file,
            f"its copy {str(path)!r} has {before.st_size} bytes and {found}, planned were {file.size} and "
            f"{file.token}; delete the copy and run again",
        )
    return replace(file, url=str(path), stat=state(before))

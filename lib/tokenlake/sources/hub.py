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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from tokenlake.config.values import did_you_mean
from tokenlake.config.yaml_file import parse_yaml
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.sources.formats import belongs, compile_glob, format_of, has_wildcard
from tokenlake.sources.hub_repo import CONVERTED, HubClient, HubFile, HubId, HubRepo, parse_id, parse_url
from tokenlake.sources.inputs import InputFile, planned

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


# Files that describe a dataset rather than being a part of it, unless a pattern names them.
_DESCRIPTIONS: Final = frozenset(
    {"README.md", "config.json", "dataset_info.json", "dataset_infos.json"}
    | {"dummy_data.zip", "dataset_dict.json"}
)


def matches(pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a pattern stands for, in their order.

    Hidden files and ``__folders__`` match only where the pattern has as many of them.

    Raises:
        ConfigError: it is no pattern.
    """
    pattern = pattern.removeprefix("./").lstrip("/")
    try:
        fits = compile_glob(pattern)
    except ValueError as error:
        raise ConfigError(f"data_files: {pattern!r} is not a valid glob: {error}", got=pattern) from error
    ignored, special = _DESCRIPTIONS - {pattern.rpartition("/")[2]}, _special_folders(pattern)
    return [
        path
        for path in paths
        if fits(path) and path.rpartition("/")[2] not in ignored and _special_folders(path) == special
    ]


def _special_folders(path: str) -> int:
    """Return how many folders begin with two underscores."""
    return sum(part.startswith("__") for part in path.split("/")[:-1]) if "__" in path else 0


DEFAULT: Final = "default"
"""Name of the only subset of a dataset that names none."""
PARTIAL: Final = "partial-"
"""Before the name of a split of which the Hub converted only the beginning."""

Splits = Mapping[str, Sequence[str]]
"""Split name to patterns of paths."""

_SHARDED: Final = "data/*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*"
_SHARD_NAME: Final = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}.*\.")
_KEYWORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATORS: Final = "-._ 0-9"
_FOLDERS: Final = (
    "**/{word}/**",
    "**/{word}[{sep}]*/**",
    "**/*[{sep}]{word}/**",
    "**/*[{sep}]{word}[{sep}]*/**",
)
_NAMES: Final = ("**/{word}[{sep}]*", "**/*[{sep}]{word}[{sep}]*")
_SPLIT: Final = re.compile(r"\w+(\.\w+)*")

# What the Hub takes for data beside what is read here: such files hold records that would be lost.
_ARCHIVES: Final = r"tar|tgz|zip|7z|rar|xz|bz2|lz4|gz|zst|zstd"
_TABLES: Final = (
    r"geoparquet|gpq|conllu?|xml|hdf5|h5|eval|lance|tsfile|vortex|sqlite|db|pkl|pickle|np[yz]|pt|mds|tfrecord|avro|orc"
    r"|xlsx?|fa|fasta|fq|fastq|gb|pdb|cif|nii"
)
_MEDIA: Final = r"jpe?g|png|webp|gif|tiff?|bmp|wav|mp3|flac|ogg|opus|m4a|mp4|avi|mov|mkv|webm|pdf"
_FOREIGN: Final = re.compile(rf"\.({_ARCHIVES}|{_TABLES}|{_MEDIA})$", re.IGNORECASE)


def foreign(path: str) -> bool:
    """Say whether a file holds records in a format that is not read here."""
    return format_of(path) is None and _FOREIGN.search(path) is not None


@dataclass(frozen=True, slots=True)
class HubLayout:
    """The subsets of a dataset, each with its splits.

    Attributes:
        subsets: subset to split to paths, in the order of the card or of the names.
        default: the subset that is meant where none is named, None where one must be named.
        origin: what says so: ``card``, ``names`` or ``converted``.
    """

    subsets: Mapping[str, Mapping[str, Sequence[str]]]
    default: str | None
    origin: str = field(default="names")


def layout_of(paths: Sequence[str], card: str | None, repo: str) -> HubLayout | None:
    """Find the subsets and splits of a repository; None where no file of it is data.

    Args:
        paths: of all files.
        card: the text of README.md, None without one.
        repo: id of the dataset, for messages.

    Raises:
        ConfigError: the card is of no use.
    """
    data = [path for path in paths if format_of(path) is not None or foreign(path)]
    configs = card_configs(card or "", repo)
    if configs:
        return _by_card(configs, data, repo)
    splits = split_patterns(data)
    if not splits:
        return None
    found = {name: _found(patterns, data) for name, patterns in splits.items()}
    # Beside tables a text file is a licence or a list of requirements; a card's own pattern may still name it.
    tables = {name: [path for path in paths if format_of(path) != "text"] for name, paths in found.items()}
    return HubLayout({DEFAULT: {name: tables[name] or paths for name, paths in found.items()}}, DEFAULT)


def card_configs(card: str, repo: str) -> list[dict[str, Any]]:
    """Return the entries of ``configs:`` in a card's front matter; none without one.

    Raises:
        ConfigError: the front matter is no YAML, or the entries are not of the Hub's form.
    """
    try:
        meta: object = parse_yaml(front_matter(card), "README.md").data
    except ConfigError as error:
        why = " ".join(str(error).split())[:200]
        raise _bad_card(repo, f"its front matter is no YAML ({why})") from error
    entries = cast("dict[str, Any]", meta).get("configs") if isinstance(meta, dict) else None
    if not entries:
        return []
    if not isinstance(entries, list):
        raise _bad_card(repo, f"`configs` is a {type(entries).__name__}, expected a list")
    for entry in cast("list[object]", entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            raise _bad_card(repo, f"an entry of `configs` has no config_name: {entry!r:.200}")
    return cast("list[dict[str, Any]]", entries)


def front_matter(card: str) -> str:
    """Return the YAML between the two ``---`` lines a card begins with; "" without them."""
    lines = card.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return ""
    ends = [number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]
    return "\n".join(lines[1 : ends[0]]) if ends else ""


def _by_card(configs: Sequence[Mapping[str, Any]], paths: Sequence[str], repo: str) -> HubLayout:
    subsets: dict[str, Mapping[str, Sequence[str]]] = {}
    defaults: list[str] = []
    for entry in configs:
        name, folder = str(entry["config_name"]), str(entry.get("data_dir") or "")
        folder = folder.removeprefix("./").strip("/")
        prefix = f"{folder}/" if folder else ""
        inside = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        written = entry.get("data_files")
        splits = split_patterns(inside) if written is None else _written(written, repo)
        subsets[name] = {
            split: [prefix + path for path in _found(patterns, inside)] for split, patterns in splits.items()
        }
        if name == DEFAULT or entry.get("default") or len(configs) == 1:
            defaults.append(name)
    if len(defaults) > 1:
        raise _bad_card(repo, f"it has several default subsets: {', '.join(defaults)}")
    return HubLayout(subsets, defaults[0] if defaults else None, "card")


def _written(written: object, repo: str) -> dict[str, list[str]]:
    """Read ``data_files``: a pattern, a list of them, or a list of {split, path}."""
    items = cast("list[object]", written) if isinstance(written, list) else [written]
    if all(isinstance(item, str) for item in items):
        items = [{"split": "train", "path": items}]
    splits: dict[str, list[str]] = {}
    for item in items:
        found = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        name, path = found.get("split"), found.get("path")
        every = cast("list[object]", path) if isinstance(path, list) else [path]
        patterns = [each for each in every if isinstance(each, str)]
        if not isinstance(name, str) or not _SPLIT.fullmatch(name) or len(patterns) < len(every):
            raise _bad_card(repo, f"an entry of data_files is not {{split, path}}: {item!r:.200}")
        if name in splits:
            raise _bad_card(repo, f"split {name!r} stands twice in data_files of a subset")
        for each in patterns:
            if "://" in each or ".." in PurePosixPath(each).parts:
                told = f"it points outside the repository: {each!r}; name those files in data_files"
                raise _bad_card(repo, told)
        splits[name] = patterns
    return splits


def split_patterns(paths: Sequence[str]) -> dict[str, list[str]]:
    """Tell the splits from names of data alone: shards, folders of splits, files of splits, or all as train."""
    shards = matches(_SHARDED, paths)
    names = {found.group(1) for path in shards if (found := _SHARD_NAME.match(PurePosixPath(path).name))}
    if names:
        ordered = [name for name in _KEYWORDS if name in names] + sorted(names - _KEYWORDS.keys())
        return {name: [_SHARDED.replace("*", name, 1)] for name in ordered}
    for templates in (_FOLDERS, _NAMES):
        patterns = {
            split: [each.format(word=word, sep=_SEPARATORS) for word in words for each in templates]
            for split, words in _KEYWORDS.items()
        }
        found = {
            split: every for split, every in patterns.items() if any(matches(one, paths) for one in every)
        }
        if found:
            return found
    return {"train": ["**"]} if matches("**", paths) else {}


def _found(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return the paths of all patterns, once each, sorted."""
    return sorted({path for pattern in patterns for path in matches(pattern, paths)})


def converted_layout(paths: Sequence[str]) -> HubLayout:
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
    return HubLayout(subsets, default, "converted")


def loader_script(paths: Sequence[str], name: str) -> str | None:
    """Return the script that old releases of `datasets` ran to load the dataset, None without one."""
    return f"{name}.py" if f"{name}.py" in paths else None


def _bad_card(repo: str, what: str) -> ConfigError:
    return ConfigError(
        f"dataset {repo!r}: the card (README.md) cannot be used: {what}. Name the files themselves: "
        f"data_files: hf://datasets/{repo}/PATTERN",
        repo=repo,
    )


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
                hits = matches(path, files)
            else:
                below = f"{path}/" if path else ""
                every = (name for name in matches("**", files) if name.startswith(below))
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

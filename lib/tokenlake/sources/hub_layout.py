"""Which files a split of a subset is: from the card, from the names of the files, or from the converted branch.

A repository may hold any files. Its card (``configs:`` in the front matter of README.md) says what they
mean; where it does not, their names do, by the rules of the Hub's own viewer and the `datasets` library.
Everything here is a function of paths and the card's text; patterns are the Hub's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, cast

from tokenlake.config.yaml_file import parse_yaml
from tokenlake.errors import ConfigError
from tokenlake.sources.formats import compile_glob, format_of

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

"""Subsets and splits of a folder of files, by the rules of the `datasets` library and of the Hub's viewer.

The same rules read a repository on the Hub, a folder of this machine and a folder in a bucket. In this order:

1. The dataset card: ``configs:`` in the front matter of ``README.md`` names subsets, splits and files.
2. A folder that ``DatasetDict.save_to_disk`` wrote: ``dataset_dict.json`` names the splits, each a folder.
3. Shards: ``data/NAME-00000-of-00005.parquet`` is a part of the split NAME.
4. Folders: a file below ``train/``, ``my-test/`` or ``dev_2024/`` belongs to the split that the folder names.
5. File names: ``train.jsonl``, ``books-test-01.csv``.
6. All files are the split ``train``.

A word names a split where it stands between separators (``-._ 0-9``) or fills a folder's whole name:
``training`` does, ``trainer`` and ``tests`` do not.

Nothing here reads a file: who lists a folder gives the paths, and the text of small files where it is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias, cast

from tokenlake.base.yaml_file import parse_yaml
from tokenlake.errors import ConfigError
from tokenlake.sources.formats import compile_glob, format_of

DEFAULT: Final = "default"
"""Name of the only subset of a dataset that names none."""
TRAIN: Final = "train"
"""The split of files whose names say none."""
CARD: Final = "README.md"
"""Name of a dataset card."""

KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split to the words that name it."""

_SEPARATOR: Final = "[-._ 0-9]"
_SHARD: Final = re.compile(r"data/(.+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
_SPLIT: Final = re.compile(r"\w+(\.\w+)*")

# Files that describe a dataset rather than being a part of it, unless a pattern names them.
_HUB_DESCRIPTIONS: Final = frozenset({CARD, "config.json", "dummy_data.zip"})
DESCRIPTIONS: Final = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json"})
"""Names of files that describe a dataset, in whatever folder they are."""

# What the Hub takes for data beside what is read here: such files hold records that would be lost.
_ARCHIVES: Final = r"tar|tgz|zip|7z|rar|xz|bz2|lz4|gz|zst|zstd"
_TABLES: Final = (
    r"geoparquet|gpq|conllu?|xml|hdf5|h5|eval|lance|tsfile|vortex|sqlite|db|pkl|pickle|np[yz]|pt|mds|tfrecord|avro|orc"
    r"|xlsx?|fa|fasta|fq|fastq|gb|pdb|cif|nii"
)
_MEDIA: Final = r"jpe?g|png|webp|gif|tiff?|bmp|wav|mp3|flac|ogg|opus|m4a|mp4|avi|mov|mkv|webm|pdf"
_FOREIGN: Final = re.compile(rf"\.({_ARCHIVES}|{_TABLES}|{_MEDIA})$", re.IGNORECASE)

Splits: TypeAlias = Mapping[str, Sequence[str]]
"""Split to the paths of its files."""


def foreign(path: str) -> bool:
    """Say whether a file holds records in a format that is not read here."""
    return format_of(path) is None and _FOREIGN.search(path) is not None


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """The subsets of a dataset, each with its splits.

    Attributes:
        subsets: subset to split to paths, in the order of the card or of the names.
        default: the subset that is meant where none is named, None where one must be named.
        origin: what says so: ``card``, ``saved``, ``names`` or ``converted``.
    """

    subsets: Mapping[str, Splits]
    default: str | None
    origin: str = field(default="names")


def layout_of(paths: Sequence[str], card: str | None, repo: str) -> FolderLayout | None:
    """Find the subsets and splits of a repository on the Hub; None where no file of it is data.

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
        return layout_by_card(configs, data, repo)
    splits = splits_by_name(matches("**", data))
    if not splits:
        return None
    # Beside tables a text file is a licence or a list of requirements; a card's own pattern may still name it.
    tables = {name: [path for path in files if format_of(path) != "text"] for name, files in splits.items()}
    return FolderLayout({DEFAULT: {name: tables[name] or files for name, files in splits.items()}}, DEFAULT)


# ---- names ------------------------------------------------------------------------------------------------


def _word_pattern(words: Iterable[str], after: str) -> re.Pattern[str]:
    """Return a pattern that finds words behind a separator or at the beginning, and before `after`."""
    choices = "|".join(re.escape(word) for word in words)
    return re.compile(rf"(?:^|{_SEPARATOR})({choices})(?={after})")


_WORDS: Final = {word: split for split, words in KEYWORDS.items() for word in words}
_IN_FOLDER: Final = _word_pattern(_WORDS, f"{_SEPARATOR}|$")
_IN_NAME: Final = _word_pattern(_WORDS, _SEPARATOR)


def splits_by_name(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return split to paths, by the names of data alone: shards, folders, file names, or all of them as train.

    A path whose name says two splits is in both; where some paths say a split, those that say none are in no split.

    Args:
        paths: of data, relative to the folder, with ``/``.

    Returns:
        The splits in the order train, validation, test, others by name; their paths sorted. Empty without a path.
    """
    ordered = sorted(set(paths))
    found = splits_named(ordered)
    if found:
        return found
    return {TRAIN: ordered} if ordered else {}


def splits_named(paths: Sequence[str], *, only_known_shards: bool = False) -> dict[str, list[str]]:
    """Return split to paths, as :func:`splits_by_name` does; nothing where no name says a split.

    Args:
        only_known_shards: ``data/NAME-00000-of-00005`` names splits only where one of the names is a usual one:
            outside of the Hub ``data/part-00000-of-00005`` is a part of the data, not a split ``part``.
    """
    # 1. Shards. Their names are the splits, whatever they are.
    shards: dict[str, list[str]] = {}
    for path in paths:
        shard = _SHARD.fullmatch(path)
        if shard is not None:
            shards.setdefault(shard[1], []).append(path)
    if shards and (not only_known_shards or shards.keys() & _WORDS.keys()):
        usual = [name for name in KEYWORDS if name in shards]
        return {name: shards[name] for name in (*usual, *sorted(shards.keys() - KEYWORDS.keys()))}

    # 2. Folders, and where no folder says a split, file names.
    for splits_of in (splits_of_folders, splits_of_file):
        found: dict[str, list[str]] = {}
        for path in paths:
            for split in splits_of(path):
                found.setdefault(split, []).append(path)
        if found:
            return {split: found[split] for split in KEYWORDS if split in found}
    return {}


def splits_of_folders(path: str) -> set[str]:
    """Return the splits that the folders of a path name."""
    folders = path.split("/")[:-1]
    return {_WORDS[word] for folder in folders for word in _IN_FOLDER.findall(folder)}


def splits_of_file(path: str) -> set[str]:
    """Return the splits that the name of a file says."""
    return {_WORDS[word] for word in _IN_NAME.findall(path.rpartition("/")[2])}


def split_of_word(word: str) -> str:
    """Return the split that a word names: ``validation`` for ``dev``; any other word is a split by itself."""
    return _WORDS.get(word, word)


def paths_of_word(paths: Iterable[str], word: str) -> list[str]:
    """Return the paths that name a split which is no usual word, such as ``holdout``, by the same rules."""
    in_folder = _word_pattern([word], f"{_SEPARATOR}|$")
    in_name = _word_pattern([word], _SEPARATOR)
    found: list[str] = []
    for path in paths:
        *folders, name = path.split("/")
        if in_name.search(name) or any(in_folder.search(folder) for folder in folders):
            found.append(path)
    return found


def is_name_of(split: str, folder: str) -> bool:
    """Say whether the name of a folder says a split."""
    words = set(_IN_FOLDER.findall(folder))
    return split in {_WORDS[word] for word in words} or folder == split


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
    ignored = (DESCRIPTIONS | _HUB_DESCRIPTIONS) - {pattern.rpartition("/")[2]}
    special = _special_folders(pattern)
    return [
        path
        for path in paths
        if fits(path) and path.rpartition("/")[2] not in ignored and _special_folders(path) == special
    ]


def _special_folders(path: str) -> int:
    """Return how many folders begin with two underscores."""
    return sum(part.startswith("__") for part in path.split("/")[:-1]) if "__" in path else 0


# ---- cards ------------------------------------------------------------------------------------------------


def card_configs(card: str, repo: str, pattern: str | None = None) -> list[dict[str, Any]]:
    """Return the entries of ``configs:`` in a card's front matter; none without one.

    Args:
        card: the text of README.md.
        repo: id of the dataset on the Hub or name of the folder, for messages.
        pattern: what to write for `data_files` instead, for messages; None: files of the repository.

    Raises:
        ConfigError: the front matter is no YAML, or the entries are not of the Hub's form.
    """
    try:
        meta: object = parse_yaml(front_matter(card), CARD).data
    except ConfigError as error:
        why = " ".join(str(error).split())[:200]
        raise _bad_card(repo, f"its front matter is no YAML ({why})", pattern) from error
    entries = cast("dict[str, Any]", meta).get("configs") if isinstance(meta, dict) else None
    if not entries:
        return []
    if not isinstance(entries, list):
        raise _bad_card(repo, f"`configs` is a {type(entries).__name__}, expected a list", pattern)
    for entry in cast("list[object]", entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            raise _bad_card(repo, f"an entry of `configs` has no config_name: {entry!r:.200}", pattern)
    return cast("list[dict[str, Any]]", entries)


def front_matter(card: str) -> str:
    """Return the YAML between the two ``---`` lines a card begins with; "" without them."""
    lines = card.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return ""
    ends = [number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]
    return "\n".join(lines[1 : ends[0]]) if ends else ""


def layout_by_card(
    configs: Sequence[Mapping[str, Any]], paths: Sequence[str], repo: str, pattern: str | None = None
) -> FolderLayout:
    """Return the layout that the entries of a card's ``configs:`` describe.

    Args:
        configs: as :func:`card_configs` returns them.
        paths: of all data below the card's folder.
        repo, pattern: as for :func:`card_configs`.

    Raises:
        ConfigError: an entry cannot be used.
    """
    subsets: dict[str, Splits] = {}
    defaults: list[str] = []
    for entry in configs:
        name = str(entry["config_name"])
        folder = str(entry.get("data_dir") or "").removeprefix("./").strip("/")
        prefix = f"{folder}/" if folder else ""
        inside = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        written = entry.get("data_files")
        if written is None:
            splits = splits_by_name(matches("**", inside))
        else:
            patterns = _written_patterns(written, repo, pattern)
            splits = {split: _all_matches(globs, inside) for split, globs in patterns.items()}
        subsets[name] = {split: [prefix + path for path in files] for split, files in splits.items()}
        if name == DEFAULT or entry.get("default") or len(configs) == 1:
            defaults.append(name)
    if len(defaults) > 1:
        raise _bad_card(repo, f"it has several default subsets: {', '.join(defaults)}", pattern)
    return FolderLayout(subsets, defaults[0] if defaults else None, "card")


def _all_matches(patterns: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Return the paths of all patterns, once each, sorted."""
    found: set[str] = set()
    for pattern in patterns:
        found.update(matches(pattern, paths))
    return sorted(found)


def _written_patterns(written: object, repo: str, pattern: str | None) -> dict[str, list[str]]:
    """Read ``data_files`` of a card: a pattern, a list of them, or a list of {split, path}."""
    items = cast("list[object]", written) if isinstance(written, list) else [written]
    if all(isinstance(item, str) for item in items):
        items = [{"split": TRAIN, "path": items}]
    splits: dict[str, list[str]] = {}
    for item in items:
        found = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        name, path = found.get("split"), found.get("path")
        every = cast("list[object]", path) if isinstance(path, list) else [path]
        patterns = [each for each in every if isinstance(each, str)]
        if not isinstance(name, str) or not _SPLIT.fullmatch(name) or len(patterns) < len(every):
            raise _bad_card(repo, f"an entry of data_files is not {{split, path}}: {item!r:.200}", pattern)
        if name in splits:
            raise _bad_card(repo, f"split {name!r} stands twice in data_files of a subset", pattern)
        for each in patterns:
            if "://" in each or ".." in PurePosixPath(each).parts:
                told = f"it points outside the repository: {each!r}; name those files in data_files"
                raise _bad_card(repo, told, pattern)
        splits[name] = patterns
    return splits


def _bad_card(repo: str, what: str, pattern: str | None) -> ConfigError:
    return ConfigError(
        f"dataset {repo!r}: the card (README.md) cannot be used: {what}. Name the files themselves: "
        f"data_files: {pattern or f'hf://datasets/{repo}/PATTERN'}",
        repo=repo,
    )


# ---- folders that `datasets` saved ------------------------------------------------------------------------

STATE: Final = "state.json"
"""Beside a saved dataset: which files hold its rows, and which split it is."""
_INFO: Final = "dataset_info.json"
_SPLIT_NAMES: Final = "dataset_dict.json"

ReadText: TypeAlias = Callable[[str], str]
"""Returns the text of a small file, by its path relative to the folder."""


def is_saved(names: Iterable[str]) -> bool:
    """Say whether a folder that holds these names is one that ``Dataset.save_to_disk`` wrote."""
    return {STATE, _INFO} <= set(names)


def saved_files(state: str, shown: str) -> list[str]:
    """Return the names of the files that hold the rows of a saved dataset.

    Other Arrow files of its folder, such as ``cache-*.arrow``, hold results of ``map`` and are no rows of it.

    Args:
        state: the text of its ``state.json``.
        shown: path of that file, for messages.

    Raises:
        ConfigError: it does not list files, or rows are chosen by an index beside them.
    """
    entries = _loaded(state, shown).get("_data_files")
    listed = cast("list[object]", entries) if isinstance(entries, list) else [None]
    names: list[str] = []
    for entry in listed:
        name = cast("dict[str, object]", entry).get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
            raise ConfigError(
                f"{shown}: `_data_files` of a saved dataset must be a list of {{filename: NAME}}; got {entry!r:.80}. "
                "Save it again, or name the Arrow files in data_files",
                file=shown,
            )
        names.append(name)
    if _loaded(state, shown).get("_indices_files") or _loaded(state, shown).get("_indices_data_files"):
        raise ConfigError(
            f"{shown}: an old release of `datasets` saved this dataset with a list of row indices, which is not read; "
            "load it with `datasets.load_from_disk` and save it again",
            file=shown,
        )
    return names


def saved_split(state: str, shown: str) -> str | None:
    """Return the split that a saved dataset says it is, None where it says none."""
    split = _loaded(state, shown).get("_split")
    return split.partition("[")[0] if isinstance(split, str) else None


def saved_splits(text: str, shown: str) -> list[str]:
    """Return the splits that ``dataset_dict.json`` names, each a folder beside it.

    Raises:
        ConfigError: it names none.
    """
    names = _loaded(text, shown).get("splits")
    splits = [name for name in cast("list[object]", names or []) if isinstance(name, str)]
    if not isinstance(names, list) or not splits or len(splits) < len(cast("list[object]", names)):
        raise ConfigError(
            f'{shown}: expected {{"splits": [names]}}, as DatasetDict.save_to_disk writes it; got {names!r:.80}. '
            "Save it again, or name the folder of a split in data_files",
            file=shown,
        )
    return splits


def _loaded(text: str, shown: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{shown}: it is no JSON ({error}); a folder that `datasets` saved needs it. Save the dataset again, or "
            "name its Arrow files in data_files",
            file=shown,
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{shown}: expected a JSON object, got a {type(value).__name__}", file=shown)
    return cast("dict[str, Any]", value)


def describes(name: str, pattern: str) -> bool:
    """Say whether a file that a glob matches is none that is meant: it describes data, or marks that it is whole.

    Args:
        name: of the file.
        pattern: the last part of the glob; it may name such a file by its extension or its beginning.
    """
    if name in DESCRIPTIONS:
        return True
    if name == CARD:
        return not pattern.endswith(("md", "]"))
    return name.startswith("_") and "." not in name and not pattern.startswith(("_", "["))


def without_descriptions(paths: Sequence[str], every: Iterable[str], read: ReadText) -> list[str]:
    """Return the paths that are data: not those of files which describe a dataset, nor what is beside saved rows.

    Args:
        paths: of files whose names say that they are data.
        every: paths of all files of the folder.
        read: returns the text of a small file.

    Raises:
        ConfigError: a saved dataset cannot be used.
    """
    names_of_folder: dict[str, set[str]] = {}
    for path in every:
        folder, _, name = path.rpartition("/")
        names_of_folder.setdefault(folder, set()).add(name)
    rows: dict[str, set[str]] = {}
    for folder, names in names_of_folder.items():
        if is_saved(names):
            state = f"{folder}/{STATE}".lstrip("/")
            rows[folder] = set(saved_files(read(state), state))
    found: list[str] = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder in rows and name not in rows[folder]:
            continue
        is_card = name == CARD and front_matter(read(path)) != ""
        if name not in DESCRIPTIONS and not is_card:
            found.append(path)
    return found


def saved_layout(paths: Sequence[str], every: Iterable[str], read: ReadText) -> FolderLayout | None:
    """Return the layout of a folder that ``DatasetDict.save_to_disk`` wrote; None for any other folder."""
    if _SPLIT_NAMES not in every:
        return None
    splits: dict[str, list[str]] = {}
    for split in saved_splits(read(_SPLIT_NAMES), _SPLIT_NAMES):
        splits[split] = [path for path in paths if path.startswith(f"{split}/")]
    return FolderLayout({DEFAULT: splits}, DEFAULT, "saved")


def in_no_split(paths: Iterable[str], splits: Splits) -> Iterator[str]:
    """Yield the paths that are in none of the splits."""
    known = {path for files in splits.values() for path in files}
    return (path for path in paths if path not in known)

"""Names of splits in the paths of files: folders, file names, and shards (``data/train-00000-of-00005.parquet``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tokenlake.etl.sources.layout import TRAIN

KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split to the words that name it."""

_SEPARATOR: Final = "[-._ 0-9]"
_SHARD: Final = re.compile(r"data/(.+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
SPLIT_NAME: Final = re.compile(r"\w+(\.\w+)*")


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

"""Names of splits in the paths of files: folders, file names, and shards.

A shard is ``data/train-00000-of-00005.parquet``.
"""

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
    """Return a pattern of words behind a separator or at the beginning.

    Args:
        words: The words.
        after: Pattern of the text behind a word.
    """
    choices = "|".join(re.escape(word) for word in words)
    return re.compile(rf"(?:^|{_SEPARATOR})({choices})(?={after})")


# Every word to its split. Behind a word, a folder may end; behind a word in a file
# name, at least the extension follows.
_WORDS: Final = {word: split for split, words in KEYWORDS.items() for word in words}
_IN_FOLDER: Final = _word_pattern(_WORDS, f"{_SEPARATOR}|$")
_IN_NAME: Final = _word_pattern(_WORDS, _SEPARATOR)


def splits_by_name(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return split to paths, by the names of data alone.

    Names are those of shards, folders or files. Without any, all paths are train.

    A path whose name says two splits is in both; where some paths say a split, those
    that say none are in no split.

    Args:
        paths: Paths of data, relative to the folder, with ``/``.

    Returns:
        The splits in the order train, validation, test, others by name; their paths
        sorted. Empty without a path.
    """
    ordered = sorted(set(paths))
    splits = splits_named(ordered)
    if not splits and ordered:
        return {TRAIN: ordered}
    return splits


def splits_named(
    paths: Sequence[str], *, only_known_shards: bool = False
) -> dict[str, list[str]]:
    """Return split to paths, as :func:`splits_by_name`; {} if no name says a split.

    Args:
        paths: Paths of data, relative to the folder, with ``/``.
        only_known_shards: Whether ``data/NAME-00000-of-00005`` names splits only if one
            of the names is a usual one: outside of the Hub ``data/part-00000-of-00005``
            is a part of the data, not a split ``part``.
    """
    # 1. Shards. Their names are the splits, usual or not.
    shards: dict[str, list[str]] = {}
    for path in paths:
        shard = _SHARD.fullmatch(path)
        if shard is not None:
            shards.setdefault(shard[1], []).append(path)
    if shards and (not only_known_shards or shards.keys() & _WORDS.keys()):
        usual_names = [shard_name for shard_name in KEYWORDS if shard_name in shards]
        other_names = sorted(shards.keys() - KEYWORDS.keys())
        return {
            shard_name: shards[shard_name]
            for shard_name in (*usual_names, *other_names)
        }

    # 2. Folders, and if no folder says a split, file names.
    for splits_of in (splits_of_folders, splits_of_file):
        paths_of_split: dict[str, list[str]] = {}
        for path in paths:
            for split in splits_of(path):
                paths_of_split.setdefault(split, []).append(path)
        if paths_of_split:
            ordered_splits: dict[str, list[str]] = {}
            for split in KEYWORDS:
                if split in paths_of_split:
                    ordered_splits[split] = paths_of_split[split]
            return ordered_splits
    return {}


def splits_of_folders(path: str) -> set[str]:
    """Return the splits that the folders of a path name."""
    splits: set[str] = set()
    for folder in path.split("/")[:-1]:
        for word in _IN_FOLDER.findall(folder):
            splits.add(_WORDS[word])
    return splits


def splits_of_file(path: str) -> set[str]:
    """Return the splits that the name of a file says."""
    file_name = path.rpartition("/")[2]
    return {_WORDS[word] for word in _IN_NAME.findall(file_name)}


def split_of_word(word: str) -> str:
    """Return the split that a word names: ``validation`` for ``dev``.

    Any other word is a split by itself.
    """
    return _WORDS.get(word, word)


def paths_of_word(paths: Iterable[str], word: str) -> list[str]:
    """Return the paths that name a split which is no usual word, such as ``holdout``.

    The rules are the same.
    """
    in_folder = _word_pattern([word], f"{_SEPARATOR}|$")
    in_name = _word_pattern([word], _SEPARATOR)
    matching: list[str] = []
    for path in paths:
        *folders, file_name = path.split("/")
        is_named = in_name.search(file_name) is not None
        for folder in folders:
            if in_folder.search(folder):
                is_named = True
        if is_named:
            matching.append(path)
    return matching


def is_name_of(split: str, folder: str) -> bool:
    """Say whether the name of a folder says a split."""
    splits = {_WORDS[word] for word in _IN_FOLDER.findall(folder)}
    return folder == split or split in splits

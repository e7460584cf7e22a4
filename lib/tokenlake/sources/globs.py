"""Globs over paths that a storage or the Hub has listed: what `glob` does for local files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tokenlake.errors import ConfigError

_MAGIC: Final = re.compile(r"[*?\[]")
_BRACES: Final = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_MOST: Final = 1_000_000  # names that one entry may stand for


def expand_braces(entry: str) -> list[str]:
    """Return the names that an entry stands for: ``data-{0..3}.parquet`` four, ``{train,test}.jsonl`` two.

    Both ends of a range belong to it; where one is written with a zero before it, all have as many digits. Unlike a
    glob this asks nobody what is there, so that it names the files of a web server, too.

    Raises:
        ConfigError: a range falls, or there are more than a million names.
    """
    names, found = [entry], _BRACES.search(entry)
    while found is not None:
        choices = _choices(found)
        if len(names) * len(choices) > _MOST:
            raise ConfigError(
                f"data_files: {entry!r} stands for more than {_MOST} names; use a folder or a glob"
            )
        names = [name.replace(found[0], each, 1) for name in names for each in choices]
        found = _BRACES.search(names[0])
    return names


def _choices(found: re.Match[str]) -> list[str]:
    first, last, listed = found.groups()
    if listed is not None:
        return listed.split(",")
    if int(last) < int(first):
        raise ConfigError(f"data_files: {found[0]} falls, must be a range from a smaller to a larger number")
    if int(last) - int(first) >= _MOST:
        raise ConfigError(
            f"data_files: {found[0]} stands for more than {_MOST} names; use a folder or a glob"
        )
    padded = any(end[0] == "0" and len(end) > 1 for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]


def has_wildcard(path: str) -> bool:
    """Say whether a path has one of ``*``, ``?`` and ``[``."""
    return _MAGIC.search(path) is not None


def static_folder(pattern: str) -> str:
    """Return the folder that all matches are in, without a slash at its end; "" for the top."""
    folders = pattern.split("/")[:-1]
    for index, part in enumerate(folders):
        if has_wildcard(part):
            return "/".join(folders[:index])
    return "/".join(folders)


def static_prefix(pattern: str) -> str:
    """Return what all matches begin with, which need not be a whole folder."""
    return _MAGIC.split(pattern, maxsplit=1)[0]


def is_flat(pattern: str) -> bool:
    """Say whether matches lie in the one folder that the pattern names."""
    folder, _, name = pattern.rpartition("/")
    return not has_wildcard(folder) and name != "**"


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return what says whether a whole path matches.

    ``*`` and ``?`` stop at slashes, ``**`` as a whole component stands for any number of folders, also
    none, and no wildcard stands for a dot at the beginning of a name.

    Raises:
        ValueError: it is no pattern.
    """
    from fsspec.utils import glob_translate  # which imports asyncio and half a dozen compressions

    try:
        regex = re.compile(glob_translate(pattern), re.DOTALL)
    except re.error as error:
        raise ValueError(str(error)) from error
    hidden = hidden_parts(pattern)
    return lambda path: regex.match(path) is not None and hidden_parts(path) == hidden


def hidden_parts(path: str) -> int:
    """Return how many folders and files of a path are hidden."""
    if "/." not in path and not path.startswith("."):
        return 0
    return sum(part.startswith(".") and part not in (".", "..") for part in path.split("/"))

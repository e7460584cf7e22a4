"""Globs over paths that a storage or the Hub has listed: what `glob` does for local files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from fsspec.utils import glob_translate

_MAGIC: Final = re.compile(r"[*?\[]")


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
    return sum(part.startswith(".") and part.strip(".") != "" for part in path.split("/"))

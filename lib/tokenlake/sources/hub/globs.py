"""Patterns of paths in a repository, as the Hub and the `datasets` library understand them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fsspec.utils import glob_translate

from tokenlake.errors import ConfigError

# Files that describe a dataset rather than being a part of it, unless a pattern names them.
_DESCRIPTIONS: Final = frozenset(
    {
        "README.md",
        "config.json",
        "dataset_info.json",
        "dataset_infos.json",
        "dummy_data.zip",
        "dataset_dict.json",
    }
)


def matches(pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a pattern stands for, in their order.

    ``*`` stays inside a folder, ``**`` is a whole component, ``[0-9]`` is a set of characters. Hidden
    files and ``__folders__`` match only where the pattern has as many of them.

    Raises:
        ConfigError: it is no pattern.
    """
    pattern = pattern.removeprefix("./").lstrip("/")
    try:
        regex = re.compile(glob_translate(pattern))
    except (ValueError, re.error) as error:
        raise ConfigError(f"data_files: {pattern!r} is no pattern of files: {error}", got=pattern) from error
    ignored = _DESCRIPTIONS - {pattern.rpartition("/")[2]}
    special = _special(pattern)
    return [
        path
        for path in paths
        if regex.match(path) and path.rpartition("/")[2] not in ignored and _special(path) == special
    ]


def _special(path: str) -> tuple[int, int]:
    """Return how many parts are hidden, and how many folders begin with two underscores."""
    if "/." not in path and "__" not in path and not path.startswith("."):
        return 0, 0
    *folders, name = path.split("/")
    hidden = sum(part.startswith(".") and part.strip(".") != "" for part in (*folders, name))
    return hidden, sum(part.startswith("__") for part in folders)

"""Patterns of paths in a repository, as the Hub and the `datasets` library understand them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
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
    ignored = _DESCRIPTIONS - {PurePosixPath(pattern).name}
    special = _hidden(pattern), _dunder(pattern)
    return [
        path
        for path in paths
        if regex.match(path)
        and PurePosixPath(path).name not in ignored
        and (_hidden(path), _dunder(path)) == special
    ]


def _hidden(path: str) -> int:
    return sum(part.startswith(".") and part.strip(".") != "" for part in PurePosixPath(path).parts)


def _dunder(path: str) -> int:
    return sum(part.startswith("__") for part in PurePosixPath(path).parent.parts)

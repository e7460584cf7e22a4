"""Many files, few of them looked into: files of one make share a name but for its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from pathlib import PurePosixPath
from typing import Final

from tokenlake.sources.inputs import InputFile

LOOKED_INTO: Final = 8
"""Files that are looked into, of however many."""

_NUMBERS: Final = re.compile(r"\d+")

_Key = Callable[[InputFile], Hashable]


def families(files: list[InputFile]) -> list[list[InputFile]]:
    """Group files that are probably alike, at most eight groups, in the order of the listing.

    Alike are files of one format, compression and folder whose names differ in digits alone; where that gives
    more groups than can be looked into, files of one folder at the top, and at last of one format.
    """
    for key in (_by_name, _by_folder, _by_top_folder):
        found = _grouped(files, key)
        if len(found) <= LOOKED_INTO:
            return found
    return _grouped(files, lambda file: file.format)


def chosen(groups: list[list[InputFile]]) -> list[list[InputFile]]:
    """Return which files of every group to look into: eight in all, each group's evenly over it.

    A file with bytes in it is preferred to an empty one.
    """
    shares = [1] * len(groups)
    while sum(shares) < LOOKED_INTO and any(share < len(g) for share, g in zip(shares, groups, strict=True)):
        # the group that has the most files for each one looked into gets the next
        worst = max(range(len(groups)), key=lambda i: ((len(groups[i]) - shares[i]) / shares[i], -i))
        shares[worst] += 1
    return [_spread(group, share) for group, share in zip(groups, shares, strict=True)]


def _spread(group: list[InputFile], count: int) -> list[InputFile]:
    some = [file for file in group if file.size] or group
    if count >= len(some):
        return some
    if count == 1:
        return some[:1]
    return [some[index * (len(some) - 1) // (count - 1)] for index in range(count)]


def _grouped(files: list[InputFile], key: _Key) -> list[list[InputFile]]:
    found: dict[Hashable, list[InputFile]] = {}
    for file in files:
        found.setdefault(key(file), []).append(file)
    return list(found.values())


def _by_name(file: InputFile) -> Hashable:
    return file.format, file.compression, _NUMBERS.sub("#", file.path)


def _by_folder(file: InputFile) -> Hashable:
    return file.format, file.compression, str(PurePosixPath(file.path).parent)


def _by_top_folder(file: InputFile) -> Hashable:
    return file.format, file.compression, PurePosixPath(file.path).parts[0] if "/" in file.path else ""

"""The files of a listing that are opened, and the entries of a configuration that
list given files.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.patterns import expand

LOOKED_INTO: Final = 8
"""Number of files that are opened, however many there are."""

_NUMBERS: Final = re.compile(r"\d+")


def _top_folder(path: str) -> str:
    """Return the first folder of a path; "" for a file without a folder."""
    return PurePosixPath(path).parts[0] if "/" in path else ""


_FAMILY_KEYS: Final[tuple[Callable[[InputFile], tuple[str | None, ...]], ...]] = (
    lambda file: (file.format, file.compression, _NUMBERS.sub("#", file.path)),
    lambda file: (file.format, file.compression, _top_folder(file.path)),
    lambda file: (file.format,),
)
"""Functions from a file to its family, from the most families to the fewest."""


def families(files: Sequence[InputFile]) -> list[list[InputFile]]:
    """Group files that probably hold the same kind of records, in the order of the
    listing.

    A family has one format, compression and folder, and names that differ only in
    digits. If that gives more than eight families, a family is the files of one
    top-level folder, and at last those of one format.
    """
    groups: dict[tuple[str | None, ...], list[InputFile]] = {}
    for key in _FAMILY_KEYS:
        groups = {}
        for file in files:
            groups.setdefault(key(file), []).append(file)
        if len(groups) <= LOOKED_INTO:
            break
    return list(groups.values())


def chosen(groups: list[list[InputFile]]) -> list[list[InputFile]]:
    """Choose the files of every group to open: about eight in all, evenly spaced in
    each group.

    An empty file is chosen only from a group of empty files.
    """
    if not groups:
        return []
    share, remainder = divmod(LOOKED_INTO, len(groups))
    chosen_files: list[list[InputFile]] = []
    for number, group in enumerate(groups):
        count = share + 1 if number < remainder else max(share, 1)
        candidates = [file for file in group if file.size] or group
        if count >= len(candidates):
            chosen_files.append(candidates)
            continue
        last = len(candidates) - 1
        places = [index * last // max(count - 1, 1) for index in range(count)]
        chosen_files.append([candidates[place] for place in places])
    return chosen_files


def data_files(
    files: Sequence[InputFile], listing: Sequence[InputFile], entries: tuple[str, ...]
) -> str | list[str]:
    """Return entries of a configuration that list exactly these files: those of the
    user, a glob, or all names.

    Args:
        files: Some files of the listing, or all.
        listing: Files that `entries` list.
        entries: Paths, globs or URLs as the user gave them.
    """
    all_entries = entries[0] if len(entries) == 1 else list(entries)
    if len(files) == len(listing):
        return all_entries

    # Paths that the user gave as relative ones stay relative.
    is_relative = not any(
        Path(entry).is_absolute() or "://" in entry or entry.startswith("~")
        for entry in entries
    )
    names = [file.url for file in files]
    if is_relative:
        names = [
            os.path.relpath(file.url) if file.is_local else file.url for file in files
        ]
    if len(names) == 1:
        return names[0]
    if files[0].is_local:
        pattern = _pattern(names)
        if set(expand(pattern, None)[1]) == {file.url for file in files}:
            return pattern
    return names


def _pattern(names: Sequence[str]) -> str:
    """Return a glob that may list the names: they differ only in digits, or have one
    extension.
    """
    paths = [Path(name) for name in names]
    folder = glob.escape(os.path.commonpath([path.parent for path in paths]))
    name_patterns = {_NUMBERS.sub("*", path.name) for path in paths}
    end = f"*.{paths[0].name.partition('.')[2]}"
    if len({path.parent for path in paths}) > 1:
        end = f"**/{end}"
    elif len(name_patterns) == 1:
        end = name_patterns.pop()
    return f"{folder}/{end}" if folder else end

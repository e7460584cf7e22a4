"""The files of a listing that are opened, and configuration entries that list files.

1. Group the files of the listing in families that probably hold the same records.
2. Open about :data:`LOOKED_INTO` files, divided evenly among the families, and evenly
   spaced in each family: the records of a crawl change with its date, so that the first
   files would be a poor sample.

Example: 3 families share 8 files as 3, 3 and 2. Of a family of 100 files, 3 are the
first, the 50th and the last one.
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
"""Number of files that are opened, however large the source is. It limits the time of
an inspection, whose cost is a request and a few MiB for each file.
"""

# Digits in the name of a file, which usually number the files of a dataset.
_NUMBERS: Final = re.compile(r"\d+")


def _top_folder(path: str) -> str:
    """Return the first folder of a path; "" for a file without a folder."""
    if "/" not in path:
        return ""
    return PurePosixPath(path).parts[0]


def _by_name(file: InputFile) -> tuple[str | None, ...]:
    """Return the family of files whose paths differ only in digits."""
    return file.format, file.compression, _NUMBERS.sub("#", file.path)


def _by_folder(file: InputFile) -> tuple[str | None, ...]:
    """Return the family of files in a top-level folder."""
    return file.format, file.compression, _top_folder(file.path)


def _by_format(file: InputFile) -> tuple[str | None, ...]:
    """Return the family of files of a format."""
    return (file.format,)


_FAMILY_KEYS: Final[tuple[Callable[[InputFile], tuple[str | None, ...]], ...]] = (
    _by_name,
    _by_folder,
    _by_format,
)
"""Functions from a file to its family, from the most families to the fewest."""


def families(files: Sequence[InputFile]) -> list[list[InputFile]]:
    """Group files that probably hold the same kind of records, in the listing's order.

    A family has one format, compression and folder, and names that differ only in
    digits. If that gives more than eight families, a family is the files of one
    top-level folder, and at last those of one format.
    """
    files_by_family: dict[tuple[str | None, ...], list[InputFile]] = {}
    for family_key in _FAMILY_KEYS:
        files_by_family = {}
        for file in files:
            files_by_family.setdefault(family_key(file), []).append(file)
        if len(files_by_family) <= LOOKED_INTO:
            break
    return list(files_by_family.values())


def chosen(groups: list[list[InputFile]]) -> list[list[InputFile]]:
    """Choose the files of every group that are opened: about eight in all.

    They are evenly spaced in each group. An empty file is chosen only from a group of
    empty files.
    """
    if not groups:
        return []
    # The first groups take the remainder; with more than eight groups each opens one.
    share, remainder = divmod(LOOKED_INTO, len(groups))
    chosen_files: list[list[InputFile]] = []
    for group_index, group in enumerate(groups):
        file_count = max(share, 1)
        if group_index < remainder:
            file_count = share + 1
        candidates = [file for file in group if file.size] or group
        if file_count >= len(candidates):
            chosen_files.append(candidates)
            continue
        # Evenly spaced from the first to the last file.
        last_index = len(candidates) - 1
        intervals = max(file_count - 1, 1)
        spaced_files: list[InputFile] = []
        for step in range(file_count):
            spaced_files.append(candidates[step * last_index // intervals])
        chosen_files.append(spaced_files)
    return chosen_files


def data_files(
    files: Sequence[InputFile], listing: Sequence[InputFile], entries: tuple[str, ...]
) -> str | list[str]:
    """Return configuration entries that list exactly these files.

    They are the entries of the user, otherwise a glob, otherwise all names.

    Args:
        files: Some files of the listing, or all.
        listing: Files that `entries` list.
        entries: Paths, globs or URLs as the user gave them.
    """
    if len(files) == len(listing):
        if len(entries) == 1:
            return entries[0]
        return list(entries)

    # Paths that the user gave as relative ones stay relative, so that the configuration
    # can be moved together with the data.
    is_relative = not any(_is_absolute(entry) for entry in entries)
    names: list[str] = []
    for file in files:
        if is_relative and file.is_local:
            names.append(os.path.relpath(file.url))
        else:
            names.append(file.url)
    if len(names) == 1:
        return names[0]

    # A glob is proposed only if it lists these files and no other one.
    if files[0].is_local:
        pattern = _pattern(names)
        _, listed_urls = expand(pattern, None)
        if set(listed_urls) == {file.url for file in files}:
            return pattern
    return names


def _is_absolute(entry: str) -> bool:
    """Return True for an absolute path, a path from the home folder, or a URL."""
    return Path(entry).is_absolute() or "://" in entry or entry.startswith("~")


def _pattern(names: Sequence[str]) -> str:
    """Return a glob that may list the names.

    It fits names that differ only in digits, or that have one extension.
    """
    folders: set[Path] = set()
    name_patterns: set[str] = set()
    for name in names:
        path = Path(name)
        folders.add(path.parent)
        name_patterns.add(_NUMBERS.sub("*", path.name))
    # From the most exact pattern to the most general one.
    extension = Path(names[0]).name.partition(".")[2]
    pattern = f"*.{extension}"
    if len(folders) > 1:
        pattern = f"**/*.{extension}"
    elif len(name_patterns) == 1:
        pattern = name_patterns.pop()
    common_folder = glob.escape(os.path.commonpath(folders))
    if not common_folder:
        return pattern
    return f"{common_folder}/{pattern}"

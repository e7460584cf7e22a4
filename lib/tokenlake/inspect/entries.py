"""Which `data_files` of a configuration stand for exactly these files.

What texts have in common at their beginning.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from tokenlake.sources.inputs import InputFile
from tokenlake.sources.local.patterns import expand


def common_prefix(texts: Sequence[str]) -> str:
    """Return the longest text that all of them begin with, character by character; "" for none."""
    if not texts:
        return ""
    # Between the first and the last in order lie all others.
    first, last = min(texts), max(texts)
    return first[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))]


_LISTED: Final = 20  # files that are named one by one rather than by a pattern that is only guessed
_MANY: Final = 1000  # more are never named one by one


def data_files(
    wanted: Sequence[InputFile], listing: Sequence[InputFile], given: tuple[str, ...]
) -> str | list[str] | None:
    """Return entries that list exactly `wanted`, None if there are none of bearable length.

    Args:
        wanted: some files of the listing, or all.
        listing: what the entries in `given` list.
    """
    if len(wanted) == len(listing):
        return given[0] if len(given) == 1 else list(given)
    names = _shown(wanted, given)
    if len(names) == 1:
        return names[0]
    for pattern in _patterns(names):
        if _lists(pattern, wanted, listing):
            return pattern
    return names if len(names) <= _MANY else None


def _shown(files: Sequence[InputFile], given: Iterable[str]) -> list[str]:
    """Paths as they were given: relative ones stay relative."""
    relative = not any(
        Path(entry).is_absolute() or "://" in entry or entry.startswith("~") for entry in given
    )
    return [os.path.relpath(file.url) if relative and file.is_local else file.url for file in files]


def _patterns(names: Sequence[str]) -> list[str]:
    """Globs that may stand for the names: numbers left open, then everything before the extensions."""
    folder = (
        os.path.commonpath([str(Path(name).parent) for name in names])
        if "://" not in names[0]
        else _url_folder(names)
    )
    open_numbers = {re.sub(r"\d+", "*", Path(name).name) for name in names}
    ends = {name[name.rindex("/") + 1 if "/" in name else 0 :].partition(".")[2] for name in names}
    same = all(str(Path(name).parent) == str(Path(names[0]).parent) for name in names)
    found = [f"{_escaped(folder)}/{next(iter(open_numbers))}"] if len(open_numbers) == 1 and same else []
    if len(ends) == 1:
        end = next(iter(ends))
        found += [f"{_escaped(folder)}/*.{end}"] if same else [f"{_escaped(folder)}/**/*.{end}"]
    return [pattern.removeprefix("./") for pattern in found]


def _url_folder(names: Sequence[str]) -> str:
    return common_prefix([name.rpartition("/")[0] + "/" for name in names]).rpartition("/")[0]


def _escaped(folder: str) -> str:
    return folder if "://" in folder else glob.escape(folder)


def _lists(pattern: str, wanted: Sequence[InputFile], listing: Sequence[InputFile]) -> bool:
    """Say whether a pattern stands for the wanted files and no others, on disk or in the listing."""
    urls = {file.url for file in wanted}
    if wanted[0].is_local:
        return set(expand(pattern, None)[1]) == urls
    # The store is not asked again: few files are better named one by one.
    return len(wanted) > _LISTED and {f.url for f in listing if fnmatch.fnmatchcase(f.url, pattern)} == urls

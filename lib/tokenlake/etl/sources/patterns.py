"""Entries of `data_files` on this machine: paths, folders and glob patterns, expanded to files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from pathlib import Path
from typing import Final

from tokenlake.config.formats import SourceType
from tokenlake.errors import ConfigError, NotAvailableError, SourceError, SourceNotFoundError
from tokenlake.etl.sources import formats
from tokenlake.etl.sources.card_layout import front_matter
from tokenlake.etl.sources.file_stat import FileStat
from tokenlake.etl.sources.layout import CARD, DESCRIPTIONS, describes
from tokenlake.etl.sources.saved_layout import STATE, is_saved, saved_files
from tokenlake.runtime.store.allowed import has_dots_behind_wildcard

_WILDCARDS: Final = frozenset("*?[")
_HIDDEN: Final = (".", "_")  # what a search of a directory leaves out
_DESCRIPTION_BYTES: Final = 16 << 20


def expand(entry: str, wanted: SourceType | None) -> tuple[str, Iterator[str]]:
    """Expand one entry of `data_files`.

    Args:
        entry: a file, a directory (searched recursively for known extensions) or a glob with
            ``*``, ``**``, ``?`` and ``[0-9]``; an existing name is taken as it is written.
        wanted: the source's explicit type, or None.

    Returns:
        The entry's static prefix (a directory, absolute) and the files found (absolute, unsorted, a glob
        with several ``**`` may name one twice).

    Raises:
        SourceNotFoundError: nothing is there; the message names near matches.
        SourceError: a folder cannot be read.
        ConfigError: ``..`` stands behind a wildcard.
        NotAvailableError: a URL.
    """
    path = local_path(entry)
    if os.path.isdir(path):  # noqa: PTH112
        return path, _or_raise(
            _walk(path, wanted),
            lambda: formats.nothing_known(f"the directory {entry!r}", os.listdir(path), wanted, entry),  # noqa: PTH208
        )
    if os.path.exists(path):  # noqa: PTH110
        return os.path.dirname(path), iter([path])  # noqa: PTH120
    if not _WILDCARDS & set(path):
        raise _missing(entry, Path(path))
    # ``/a/b/*/c`` is ``/a/b`` and the parts ``*``, ``c``; ``**/**`` is one ``**``.
    parts = path.split("/")
    first = next(index for index, part in enumerate(parts) if _WILDCARDS & set(part))
    rest = [part for at, part in enumerate(parts) if at >= first and parts[at - 1 : at + 1] != ["**", "**"]]
    prefix = "/".join(parts[:first]) or "/"
    missing = Path(path) if not Path(prefix).is_dir() else Path(prefix, rest[-1])
    return prefix, _or_raise(_matches(prefix, rest, ()), lambda: _missing(entry, missing))


def local_path(entry: str) -> str:
    """Return an entry of `data_files` as an absolute path, which keeps symbolic links; NotAvailableError if a URL."""
    scheme, separator, rest = entry.partition("://")
    if separator and scheme.lower() != "file":  # only the scheme is repeated: the rest may hold credentials
        why = f"data_files: got a {scheme} URL, expected a local file, glob or directory"
        raise NotAvailableError(why, got=f"{scheme}://")
    named = rest if separator else entry
    if has_dots_behind_wildcard(named) and not os.path.exists(os.path.expanduser(named)):  # noqa: PTH110, PTH111
        # Taken out of the text, it would also take out the wildcard before it.
        raise ConfigError(
            f"data_files: {entry!r} has '..' behind a wildcard; write the path without it, or a glob for each folder",
            got=entry,
        )
    return os.path.abspath(os.path.expanduser(named))  # noqa: PTH100, PTH111


def _or_raise(found: Iterator[str], error: Callable[[], SourceNotFoundError]) -> Iterator[str]:
    empty = True
    for path in found:
        empty = False
        yield path
    if empty:
        raise error()


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(
            f"data_files: the folder {folder!r} cannot be read ({error.strerror}). Files in it would be left out "
            "silently: make it readable, or name the others one by one.",
            got=folder,
        ) from error


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to nothing, which is an error and not a file less."""
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))  # noqa: PTH110


def _walk(directory: str, wanted: SourceType | None) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()  # device, inode
    todo = [directory]
    while todo:
        folder = todo.pop()
        if (identity := FileStat.of(folder)[:2]) in seen:  # a link back to a folder above
            continue
        seen.add(identity)
        folders: list[str] = []
        entries = [entry for entry in _entries(folder) if not entry.name.startswith(_HIDDEN)]
        rows = _rows_of_saved(folder, entries)
        for entry in entries:
            if entry.is_dir():
                folders.append(entry.path)
            elif rows is not None and entry.name not in rows:
                continue  # what `datasets` keeps beside the rows that it saved
            elif entry.name in DESCRIPTIONS or not formats.belongs(entry.name, wanted):
                continue
            elif entry.name == CARD and front_matter(text_of_entry(entry.path)):
                continue  # a dataset card, where text is asked for
            elif _is_file(entry):
                yield entry.path
        todo += sorted(folders, reverse=True)


def _rows_of_saved(folder: str, entries: Iterable[os.DirEntry[str]]) -> list[str] | None:
    """Return the names of the files that hold the rows of a folder that `datasets` saved; None for other folders."""
    if not is_saved(entry.name for entry in entries):
        return None
    state = os.path.join(folder, STATE)
    return saved_files(text_of_entry(state), state)


def text_of_entry(path: str) -> str:
    """Return the text of a small file that describes a folder."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no Path per folder
            return file.read(_DESCRIPTION_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); make it readable", got=path) from error


def _matches(folder: str, parts: list[str], above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files below `folder` that match the parts of a glob; names with a dot only where it says so.

    A part ``**`` is this folder and all below it, without going round where a link leads back to one `above`.
    """
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    if parts[0] == "**":
        if (identity := FileStat.of(folder)[:2]) not in above:
            yield from _matches(folder, parts[1:] or ["*"], above)
            for entry in _entries(folder):
                if entry.is_dir() and not entry.name.startswith("."):
                    yield from _matches(entry.path, parts, (*above, identity))
    elif not _WILDCARDS & set(parts[0]):
        path = os.path.join(folder, parts[0])
        if len(parts) > 1:
            yield from _matches(path, parts[1:], above)
        elif os.path.isfile(path):  # noqa: PTH113
            yield path
    else:
        fits, hidden = re.compile(translate(parts[0])).match, parts[0].startswith(".")
        entries = _entries(folder)
        has_saved = is_saved(entry.name for entry in entries)
        for entry in entries:
            if not fits(entry.name) or (entry.name.startswith(".") and not hidden):
                continue
            if len(parts) == 1:
                is_state = has_saved and entry.name == STATE
                if not is_state and not describes(entry.name, parts[0]) and _is_file(entry):
                    yield entry.path
            elif entry.is_dir():
                yield from _matches(entry.path, parts[1:], above)


def _missing(entry: str, path: Path) -> SourceNotFoundError:
    while not path.parent.is_dir():
        path = path.parent
    more = " (A dataset of the Hub is named with `type: hf`; whatever is no URL is a local file, glob or directory.)"
    return formats.not_found(entry, str(path.parent), path.name, os.listdir(path.parent), more)  # noqa: PTH208

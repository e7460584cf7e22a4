"""Entries of `data_files` on this machine, expanded to files.

Entries are paths, folders and glob patterns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from pathlib import Path
from typing import Final

from tokenlake.config.formats import SourceType
from tokenlake.errors import (
    ConfigError,
    NotAvailableError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.etl.sources import formats
from tokenlake.etl.sources.card_layout import front_matter
from tokenlake.etl.sources.file_stat import FileStat
from tokenlake.etl.sources.layout import CARD, DESCRIPTIONS, describes
from tokenlake.etl.sources.saved_layout import STATE, is_saved, saved_files
from tokenlake.runtime.store.allowed import has_dots_behind_wildcard

_WILDCARDS: Final = frozenset("*?[")
# First characters of names that a search of a directory leaves out.
_HIDDEN: Final = (".", "_")
_DESCRIPTION_BYTES: Final = 16 << 20


def expand(entry: str, wanted: SourceType | None) -> tuple[str, Iterator[str]]:
    """Expand one entry of `data_files`.

    Args:
        entry: File, directory (searched recursively for known extensions) or glob with
            ``*``, ``**``, ``?`` and ``[0-9]``; the name of an existing file is taken as
            it is written.
        wanted: Type that the source sets, None for none.

    Returns:
        The entry's static prefix (a directory, absolute) and its files (absolute,
        unsorted, a glob with several ``**`` may name one twice).

    Raises:
        SourceNotFoundError: Nothing matches; the message names near matches.
        SourceError: A folder cannot be read.
        ConfigError: ``..`` stands behind a wildcard.
        NotAvailableError: The entry is a URL.
    """
    path = local_path(entry)
    # A folder, a file and a glob, in this order: the name of an existing file may hold
    # wildcards.
    if os.path.isdir(path):  # noqa: PTH112
        return path, _or_raise(
            _walk(path, wanted),
            lambda: formats.nothing_known(
                f"the directory {entry!r}", _names_in(path), wanted, entry
            ),
        )
    if os.path.exists(path):  # noqa: PTH110
        return os.path.dirname(path), iter([path])  # noqa: PTH120
    if not _WILDCARDS & set(path):
        raise _missing(entry, Path(path))
    # ``/a/b/*/c`` is ``/a/b`` and the parts ``*``, ``c``; ``**/**`` is one ``**``.
    path_parts = path.split("/")
    static_parts: list[str] = []
    for path_part in path_parts:
        if _WILDCARDS & set(path_part):
            break
        static_parts.append(path_part)
    glob_parts: list[str] = []
    for path_part in path_parts[len(static_parts) :]:
        if path_part != "**" or glob_parts[-1:] != ["**"]:
            glob_parts.append(path_part)
    prefix = "/".join(static_parts) or "/"
    missing_path = Path(path)
    if Path(prefix).is_dir():
        missing_path = Path(prefix, glob_parts[-1])
    return prefix, _or_raise(
        _matches(prefix, glob_parts, ()), lambda: _missing(entry, missing_path)
    )


def local_path(entry: str) -> str:
    """Return an entry of `data_files` as an absolute path, which keeps symbolic links.

    Raises:
        NotAvailableError: The entry is a URL.
        ConfigError: ``..`` stands behind a wildcard.
    """
    scheme, separator, path_after_scheme = entry.partition("://")
    # Only the scheme is repeated: the rest may hold credentials.
    if separator and scheme.lower() != "file":
        message = (
            f"data_files: got a {scheme} URL, expected a local file, glob or directory"
        )
        raise NotAvailableError(message, got=f"{scheme}://")
    entry_path = path_after_scheme if separator else entry
    exists = os.path.exists(os.path.expanduser(entry_path))  # noqa: PTH110, PTH111
    if has_dots_behind_wildcard(entry_path) and not exists:
        # Taken out of the text, it would also take out the wildcard before it.
        raise ConfigError(
            f"data_files: {entry!r} has '..' after a wildcard; write the path without it, or a glob for each folder",
            got=entry,
        )
    return os.path.abspath(os.path.expanduser(entry_path))  # noqa: PTH100, PTH111


def _or_raise(
    paths: Iterator[str], make_error: Callable[[], SourceNotFoundError]
) -> Iterator[str]:
    """Yield paths; raise an error if there are none."""
    # Whether there are paths is known only while they are looked for.
    is_empty = True
    for path in paths:
        is_empty = False
        yield path
    if is_empty:
        raise make_error()


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; SourceError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: str, error: OSError) -> SourceError:
    """Return the error for a folder that cannot be read."""
    return SourceError(
        f"data_files: the folder {folder!r} cannot be read ({error.strerror}). Files in it would be skipped "
        "silently: make it readable, or list the other files one by one.",
        got=folder,
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Say whether an entry is a folder, or a link to one.

    Raises:
        SourceError: The link leads where nobody may look.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        raise _unreadable(entry.path, error) from error


def _names_in(folder: str) -> list[str] | None:
    """Return the names in a folder, for a message; None for the root.

    A server's messages go to many people, who need not know its root.
    """
    if os.path.dirname(folder) == folder:  # noqa: PTH120
        return None
    return os.listdir(folder)  # noqa: PTH208


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Say whether an entry is a file, or a link to nothing.

    A link to nothing is an error later, and not left out.
    """
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))  # noqa: PTH110


def _walk(directory: str, wanted: SourceType | None) -> Iterator[str]:
    """Yield the files of a directory, and of folders below it, with known extensions.

    Args:
        directory: The directory.
        wanted: Type that the source sets, None for none.
    """
    seen_folders: set[tuple[int, int]] = set()  # device, inode
    pending_folders = [directory]
    while pending_folders:
        folder = pending_folders.pop()
        identity = FileStat.of(folder)[:2]
        if identity in seen_folders:  # a link back to a folder above
            continue
        seen_folders.add(identity)
        folders: list[str] = []
        entries: list[os.DirEntry[str]] = []
        for entry in _entries(folder):
            if not entry.name.startswith(_HIDDEN):
                entries.append(entry)
        row_files = _rows_of_saved(folder, entries)
        for entry in entries:
            if _is_folder(entry):
                folders.append(entry.path)
            elif row_files is not None and entry.name not in row_files:
                continue  # a file that `datasets` keeps beside the rows that it saved
            elif entry.name in DESCRIPTIONS or not formats.belongs(entry.name, wanted):
                continue
            elif entry.name == CARD and front_matter(text_of_entry(entry.path)):
                continue  # a dataset card, where text is asked for
            elif _is_file(entry):
                yield entry.path
        pending_folders += sorted(folders, reverse=True)


def _rows_of_saved(
    folder: str, entries: Iterable[os.DirEntry[str]]
) -> list[str] | None:
    """Return the names of the files with the rows of a folder that `datasets` saved.

    It is None for other folders.
    """
    if not is_saved(entry.name for entry in entries):
        return None
    state_path = os.path.join(folder, STATE)
    return saved_files(text_of_entry(state_path), state_path)


def text_of_entry(path: str) -> str:
    """Return the text of a small file that describes a folder."""
    try:
        with open(path, encoding="utf-8", errors="replace") as text_file:  # noqa: PTH123 - no Path per folder
            return text_file.read(_DESCRIPTION_BYTES)
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); make it readable", got=path
        ) from error


def _matches(
    folder: str, parts: list[str], above: tuple[tuple[int, int], ...]
) -> Iterator[str]:
    """Yield the files below `folder` that match a glob.

    Hidden names match only if the glob names a dot.

    A part ``**`` stands for this folder and all folders below it.

    Args:
        folder: The folder.
        parts: Parts of the glob.
        above: Device and inode of the folders that ``**`` went through; a link back to
            one of them is not followed.
    """
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    if parts[0] == "**":
        identity = FileStat.of(folder)[:2]
        if identity not in above:
            yield from _matches(folder, parts[1:] or ["*"], above)
            # `**` stands for no folder, too, and for each folder below together with
            # itself.
            for entry in _entries(folder):
                if entry.is_dir() and not entry.name.startswith("."):
                    yield from _matches(entry.path, parts, (*above, identity))
    elif not _WILDCARDS & set(parts[0]):
        # A part without wildcards is a name: the folder need not be listed.
        path = os.path.join(folder, parts[0])
        if len(parts) > 1:
            yield from _matches(path, parts[1:], above)
        elif os.path.isfile(path):  # noqa: PTH113
            yield path
    else:
        matches_part = re.compile(translate(parts[0])).match
        takes_hidden = parts[0].startswith(".")
        entries = _entries(folder)
        has_saved = is_saved(entry.name for entry in entries)
        for entry in entries:
            is_hidden = entry.name.startswith(".") and not takes_hidden
            if is_hidden or not matches_part(entry.name):
                continue
            if len(parts) == 1:
                is_state = has_saved and entry.name == STATE
                if is_state or describes(entry.name, parts[0]):
                    continue
                if _is_file(entry):
                    yield entry.path
            elif entry.is_dir():
                yield from _matches(entry.path, parts[1:], above)


def _missing(entry: str, path: Path) -> SourceNotFoundError:
    """Return the error for an entry that nothing matches.

    Args:
        entry: The entry.
        path: Path that is missing.
    """
    # The deepest folder that exists has the names that are close to the missing one.
    while not path.parent.is_dir():
        path = path.parent
    hint = " (Set `type: hf`, or --type hf, for a dataset of the Hub; other entries are URLs, local files or folders.)"
    folder = str(path.parent)
    return formats.not_found(entry, folder, path.name, _names_in(folder), hint)

"""From the entries of `data_files` (files, globs, directories) to local paths.

Folders are read with ``os.scandir`` and paths stay strings: a listing may have a hundred thousand files.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path, PurePath
from typing import Final

from tokenlake.errors import NotAvailableError, SourceError, SourceNotFoundError
from tokenlake.sources.formats import KNOWN_EXTENSIONS, belongs

_WILDCARDS: Final = frozenset("*?[")
_HIDDEN: Final = (".", "_")  # what a search of a directory leaves out
_Folder = tuple[int, int]  # device, inode


def is_url(entry: str) -> bool:
    """Say whether an entry names an object of another storage; ``file://`` is this machine's."""
    scheme, separator, _ = entry.partition("://")
    return bool(separator) and scheme.lower() != "file"


def is_hub_url(entry: str) -> bool:
    """Say whether an entry names files of a dataset on the Hub."""
    return entry.startswith("hf://datasets/")


def expand(entry: str, wanted: str | None) -> tuple[str, Iterator[str]]:
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
        NotAvailableError: a URL.
    """
    path = _local(entry)
    if os.path.isdir(path):  # noqa: PTH112
        return path, _or_raise(_walk(path, wanted), lambda: _nothing_in(path, entry, wanted))
    if os.path.exists(path):  # noqa: PTH110
        return os.path.dirname(path), iter([path])  # noqa: PTH120
    if not _WILDCARDS & set(path):
        raise _missing(entry, Path(path))
    prefix, parts = _static_prefix(path)
    missing = Path(path) if not Path(prefix).is_dir() else Path(prefix, parts[-1])
    return prefix, _or_raise(_matches(prefix, parts, ()), lambda: _missing(entry, missing))


def _local(entry: str) -> str:
    scheme, separator, rest = entry.partition("://")
    if separator and scheme.lower() != "file":
        # Only the scheme is repeated: the rest of a URL may hold credentials.
        raise NotAvailableError(
            f"data_files: got a {scheme} URL, expected a local file, glob or directory", got=f"{scheme}://"
        )
    return os.path.abspath(os.path.expanduser(rest if separator else entry))  # noqa: PTH100, PTH111 (keeps symlinks)


def _static_prefix(pattern: str) -> tuple[str, list[str]]:
    """Cut ``/a/b/*/c`` into ``/a/b`` and the parts ``*``, ``c``; ``**/**`` is one ``**``."""
    parts = pattern.split("/")
    first = next(index for index, part in enumerate(parts) if _WILDCARDS & set(part))
    rest = [part for at, part in enumerate(parts) if at >= first and parts[at - 1 : at + 1] != ["**", "**"]]
    return "/".join(parts[:first]) or "/", rest


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


def _walk(directory: str, wanted: str | None) -> Iterator[str]:
    taken: dict[str, bool] = {}
    seen: set[_Folder] = set()
    todo = [directory]
    while todo:
        folder = todo.pop()
        if (identity := _identity(folder)) in seen:  # a link back to a folder above
            continue
        seen.add(identity)
        folders: list[str] = []
        for entry in _entries(folder):
            if entry.name.startswith(_HIDDEN):
                continue
            if entry.is_dir():
                folders.append(entry.path)
            elif _belongs(entry.name, wanted, taken) and _is_file(entry):
                yield entry.path
        todo += sorted(folders, reverse=True)


def _belongs(name: str, wanted: str | None, taken: dict[str, bool]) -> bool:
    """:func:`belongs`, once for each ending of names."""
    ending = name[name.find(".", 1) :] if "." in name[1:] else ""
    if ending not in taken:
        taken[ending] = belongs(name, wanted)
    return taken[ending]


def _matches(folder: str, parts: list[str], above: tuple[_Folder, ...]) -> Iterator[str]:
    """Yield the files below `folder` that match the parts of a glob; names with a dot only where it says so."""
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    if parts[0] == "**":
        yield from _matches_below(folder, parts, above)
    elif not _WILDCARDS & set(parts[0]):
        path = os.path.join(folder, parts[0])
        if len(parts) > 1:
            yield from _matches(path, parts[1:], above)
        elif os.path.isfile(path):  # noqa: PTH113
            yield path
    else:
        fits, hidden = re.compile(translate(parts[0])).match, parts[0].startswith(".")
        for entry in _entries(folder):
            if not fits(entry.name) or (entry.name.startswith(".") and not hidden):
                continue
            if len(parts) == 1:
                if _is_file(entry):
                    yield entry.path
            elif entry.is_dir():
                yield from _matches(entry.path, parts[1:], above)


def _matches_below(folder: str, parts: list[str], above: tuple[_Folder, ...]) -> Iterator[str]:
    """A part ``**``: this folder and all below it, without going round where a link leads back."""
    identity = _identity(folder)
    if identity in above:
        return
    yield from _matches(folder, parts[1:] or ["*"], above)
    for entry in _entries(folder):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _matches_below(entry.path, parts, (*above, identity))


def _identity(folder: str) -> _Folder:
    stat = os.stat(folder)  # noqa: PTH116
    return stat.st_dev, stat.st_ino


def _nothing_in(directory: str, entry: str, wanted: str | None) -> SourceNotFoundError:
    return nothing_known(f"the directory {entry!r}", os.listdir(directory), wanted, entry)  # noqa: PTH208


def nothing_known(where: str, names: Iterable[str], wanted: str | None, entry: str) -> SourceNotFoundError:
    """Return the error for a folder that holds files, and none that is read."""
    others = sorted({PurePath(name).suffix or PurePath(name).name for name in names})[:8]
    kind = f"of type {wanted}" if wanted else "with a known extension"
    return SourceNotFoundError(
        f"data_files: no file {kind} in {where}. It holds {', '.join(others) or 'nothing'}; known extensions are "
        f"{', '.join(KNOWN_EXTENSIONS)}. Other names can be given one by one, or by a glob, with `type` set.",
        got=entry,
    )


def _missing(entry: str, path: Path) -> SourceNotFoundError:
    near = near_matches(path)
    parent = path.parent
    while not parent.is_dir():
        parent = parent.parent
    hint = nearby(near, str(parent), os.listdir(parent))  # noqa: PTH208
    return SourceNotFoundError(
        f"data_files: nothing matches {entry!r}. {hint} (A dataset of the Hub is named with `type: hf`; "
        "anything else that is not a URL is a local file, glob or directory.)",
        got=entry,
        near=near,
    )


def nearby(near: Sequence[str], folder: str, names: Iterable[str]) -> str:
    """Return a sentence about what is near an entry that nothing matches: near names, or what its folder holds."""
    if near:
        return f"Did you mean {' or '.join(map(repr, near))}?"
    some = sorted(names)
    listed = ", ".join(some[:8]) + (", ..." if len(some) > 8 else "")
    return f"{folder!r} holds: {listed or 'nothing'}."


def near_matches(path: Path, limit: int = 3) -> list[str]:
    """Return existing paths that `path` may be a misspelling of, best first."""
    parent = path.parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    folded: dict[str, str] = {}
    for name in sorted(os.listdir(parent)):  # noqa: PTH208
        folded.setdefault(name.lower(), name)
    hits = difflib.get_close_matches(path.name.lower(), folded, limit, cutoff=0.6)
    return [str(parent / folded[hit]) for hit in hits]

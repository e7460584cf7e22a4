"""From the entries of `data_files` (files, globs, directories) to local paths."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Final

from tokenlake.errors import NotAvailableError, SourceNotFoundError
from tokenlake.sources.formats import KNOWN_EXTENSIONS, belongs

_WILDCARDS: Final = frozenset("*?[")


def is_url(entry: str) -> bool:
    """Say whether an entry names an object of another storage; ``file://`` is this machine's."""
    scheme, separator, _ = entry.partition("://")
    return bool(separator) and scheme != "file"


def is_hub_url(entry: str) -> bool:
    """Say whether an entry names files of a dataset on the Hub."""
    return entry.startswith("hf://datasets/")


def expand(entry: str, wanted: str | None) -> tuple[Path, list[Path]]:
    """Expand one entry of `data_files`.

    Args:
        entry: a file, a directory (searched recursively for known extensions) or a glob with
            ``*``, ``**``, ``?`` and ``[0-9]``; an existing name is taken as it is written.
        wanted: the source's explicit type, or None.

    Returns:
        The entry's static prefix (a directory, absolute) and the files found (absolute, unsorted).

    Raises:
        SourceNotFoundError: nothing is there; the message names near matches.
        NotAvailableError: a URL of a store that this release does not read.
    """
    path = _local(entry)
    if path.is_dir():
        return path, _require(list(_walk(path, wanted)), entry, path, wanted)
    if path.exists():
        return path.parent, [path]
    if not _WILDCARDS & set(str(path)):
        raise _missing(entry, path)
    prefix = _static_prefix(path)
    found = [Path(hit) for hit in glob.glob(str(path), recursive=True) if Path(hit).is_file()]  # noqa: PTH207
    if not found:
        raise _missing(entry, path if not prefix.is_dir() else prefix / path.name)
    return prefix, found


def _local(entry: str) -> Path:
    scheme, separator, rest = entry.partition("://")
    if separator and scheme != "file":
        raise NotAvailableError(
            f"data_files: {entry!r} is a {scheme} URL; this release reads local files, globs and "
            "directories. Copy the files to a local disk and name them there.",
            got=entry,
        )
    return Path(os.path.abspath(Path(rest if separator else entry).expanduser()))  # noqa: PTH100 (keeps symlinks)


def _static_prefix(pattern: Path) -> Path:
    parts: list[str] = []
    for part in pattern.parts[:-1]:
        if _WILDCARDS & set(part):
            break
        parts.append(part)
    return Path(*parts)


def _walk(directory: Path, wanted: str | None) -> Iterator[Path]:
    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(directory, followlinks=True):
        stat = Path(root).stat()
        if (stat.st_dev, stat.st_ino) in seen:  # a link back to a folder above
            folders.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in names:
            if not name.startswith((".", "_")) and belongs(name, wanted):
                yield Path(root, name)


def _require(found: list[Path], entry: str, directory: Path, wanted: str | None) -> list[Path]:
    if found:
        return found
    others = sorted({PurePath(name).suffix or name for name in os.listdir(directory)})[:8]  # noqa: PTH208
    kind = f"of type {wanted}" if wanted else "with a known extension"
    raise SourceNotFoundError(
        f"data_files: no file {kind} in the directory {entry!r}. It holds {', '.join(others) or 'nothing'}; "
        f"known extensions are {', '.join(KNOWN_EXTENSIONS)}. Other names can be given one by one, or by a "
        "glob, with `type` set.",
        got=entry,
    )


def _missing(entry: str, path: Path) -> SourceNotFoundError:
    near = near_matches(path)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else _nothing_near(path)
    return SourceNotFoundError(
        f"data_files: nothing matches {entry!r}. {hint} (Dataset ids of the Hub are not read by this "
        "release: data_files are local files, globs and directories.)",
        got=entry,
        near=near,
    )


def near_matches(path: Path, limit: int = 3) -> list[str]:
    """Return existing paths that `path` may be a misspelling of, best first."""
    parent = path.parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    names = os.listdir(parent)  # noqa: PTH208
    return [str(parent / name) for name in _closest(path.name, names, limit)]


def _closest(name: str, names: Iterable[str], limit: int) -> list[str]:
    folded: dict[str, str] = {}
    for candidate in sorted(names):
        folded.setdefault(candidate.lower(), candidate)
    return [folded[hit] for hit in difflib.get_close_matches(name.lower(), folded, limit, cutoff=0.6)]


def _nothing_near(path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        parent = parent.parent
    names = sorted(os.listdir(parent))  # noqa: PTH208
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{str(parent)!r} holds: {listed or 'nothing'}."

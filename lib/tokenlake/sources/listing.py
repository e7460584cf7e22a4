"""The inputs of a source, wherever they are: which files, in which order, and what exactly they hold.

Folders of this machine are read with ``os.scandir`` and paths stay strings: a listing may have 100,000 files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from tokenlake.compact import CompactTuple
from tokenlake.config.formats import SourceType
from tokenlake.errors import ConfigError, NotAvailableError, SourceError, SourceNotFoundError
from tokenlake.sources.formats import belongs, format_for, not_found, nothing_known
from tokenlake.sources.globs import expand_braces
from tokenlake.sources.hash_cache import FoundFile, HashCache, hash_files
from tokenlake.sources.inputs import (
    FileStat,
    InputFile,
    OnProgress,
    ProgressMeter,
    is_hub_url,
    is_url,
    planned,
    stat_token,
    state,
)
from tokenlake.sources.opening import as_it_begins
from tokenlake.store.remote.url import INPUTS, entries_of
from tokenlake.threads import in_order

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_WILDCARDS: Final = frozenset("*?[")
_HIDDEN: Final = (".", "_")  # what a search of a directory leaves out
_Folder = tuple[int, int]  # device, inode


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


def _walk(directory: str, wanted: SourceType | None) -> Iterator[str]:
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
            elif belongs(entry.name, wanted) and _is_file(entry):
                yield entry.path
        todo += sorted(folders, reverse=True)


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


def _nothing_in(directory: str, entry: str, wanted: SourceType | None) -> SourceNotFoundError:
    return nothing_known(f"the directory {entry!r}", os.listdir(directory), wanted, entry)  # noqa: PTH208


def _missing(entry: str, path: Path) -> SourceNotFoundError:
    while not path.parent.is_dir():
        path = path.parent
    more = (
        " (A dataset of the Hub is named with `type: hf`; anything else that is not a URL is a local file, glob or "
        "directory.)"
    )
    return not_found(entry, str(path.parent), path.name, os.listdir(path.parent), more)  # noqa: PTH208


Enough = Callable[[InputFile], bool]
"""Called with each file in order; true ends the listing behind it."""

_REPORT_FILES: Final = 1000
_AT_ONCE: Final = 16  # beginnings of objects


def list_inputs(
    source: ResolvedSource,
    *,
    hash_threads: int = 2,
    cache: HashCache | None = None,
    on_progress: OnProgress | None = None,
    hashed: bool = True,
    enough: Enough | None = None,
) -> Sequence[InputFile]:
    """List the files of a source, sorted by path, each with a token of its version.

    ``{0..3}`` and ``{a,b}`` in an entry stand for several, each of which must be there.

    The root that paths are relative to is the deepest common directory of the static prefixes of
    all entries. A file matched twice is listed once. A file of JSON that begins with an object on its first line
    has the format ``jsonl``, whatever its name and `type` say.

    Args:
        source: whose `data_files` to expand.
        hash_threads: how many local files are hashed at a time.
        cache: remembered hashes of local files, or None to read every file.
        on_progress: told now and then how far it is, from the hashing threads.
        hashed: False leaves local files unread; their tokens then name only size and time of change,
            which is enough to look at them and not to build from them.
        enough: called with each file in order; true ends the listing behind it.

    Raises:
        SourceNotFoundError: an entry matches nothing.
        ConfigError: a file's extension says nothing and no `type` is set, or entries of several storages.
        InputChangedError: a file changed while it was being hashed.
        SourceError: a folder cannot be read, or a storage not be reached.
    """
    if not source.data_files:
        raise SourceNotFoundError(
            f"Source {source.name!r} names no data_files; give at least one file, glob or directory.",
            source=source.name,
        )
    if source.type == "hub":
        return _first(_at_urls(source, hub=True), enough)
    source = replace(source, data_files=tuple(spelled_out(source.data_files)))
    urls = [entry for entry in source.data_files if is_url(entry)]
    if not urls:
        return _list_local(source, hash_threads, cache, on_progress, hashed=hashed, enough=enough)
    if len(urls) < len(source.data_files):
        local = next(entry for entry in source.data_files if not is_url(entry))
        raise ConfigError(
            # Only the scheme is repeated: the rest of a URL may hold credentials.
            f"source {source.name!r}: data_files mix URLs ({urls[0].partition('://')[0]}://...) and local files "
            f"({local!r}); make them two sources",
            source=source.name,
        )
    return _first(_at_urls(source, hub=all(map(is_hub_url, urls))), enough)


def spelled_out(entries: Sequence[str]) -> Iterator[str]:
    """Yield entries of `data_files` with ``{0..3}`` and ``{a,b}`` spelled out; a name that is there stays."""
    for entry in entries:
        there = "{" not in entry or (not is_url(entry) and os.path.exists(os.path.expanduser(entry)))  # noqa: PTH110, PTH111
        yield from [entry] if there else expand_braces(entry)


def _first(files: Iterable[InputFile], enough: Enough | None) -> list[InputFile]:
    """Return the files up to the one that is enough."""
    found: list[InputFile] = []
    for file in files:
        found.append(file)
        if enough is not None and enough(file):
            break
    return found


def _at_urls(source: ResolvedSource, *, hub: bool) -> list[InputFile]:
    # What lists URLs takes time to import, and a worker, which lists nothing, needs none of it.
    if hub:
        from tokenlake.sources.hub import list_hub as listed
    else:
        from tokenlake.sources.remote import list_remote as listed
    # Of JSON a look at the beginning; of other formats nothing.
    return list(in_order(lambda file: as_it_begins(file, source.storage_options), listed(source), _AT_ONCE))


def _list_local(
    source: ResolvedSource,
    hash_threads: int,
    cache: HashCache | None,
    on_progress: OnProgress | None,
    *,
    hashed: bool,
    enough: Enough | None,
) -> Sequence[InputFile]:
    root, names = _find(source, on_progress)
    above = root.rstrip(os.sep) + os.sep
    found = (_found(name, above + name, source.type) for name in names)

    def with_hashes(files: Iterable[FoundFile], threads: int) -> Iterator[InputFile]:
        hashes = hash_files(files, threads, cache, on_progress)
        return (_input_file(source, file, f"sha256:{sha256}") for file, sha256 in hashes)

    if enough:  # files behind the last one are not read, whatever their size
        return _first((file for one in list(found) for file in with_hashes([one], 1)), enough)
    if hashed:
        return CompactTuple(InputFile, with_hashes(found, hash_threads))
    return [_input_file(source, file, stat_token(file.stat)) for file in found]


def _find(source: ResolvedSource, on_progress: OnProgress | None) -> tuple[str, list[str]]:
    """Return the root and the paths below it, sorted."""
    meter = ProgressMeter("listing", 0, 0, on_progress)
    inside = _Inside(entries_of(os.environ.get(INPUTS)))
    prefixes: list[str] = []
    paths: set[str] = set()
    for entry in source.data_files:
        prefix, found = expand(entry, source.type)
        prefixes.append(prefix)
        real = os.path.realpath(prefix)
        for path in found:
            inside.require(path, real)
            paths.add(path)
            if len(paths) % _REPORT_FILES == 0:
                meter.add(_REPORT_FILES, 0)
    root = os.path.commonpath(prefixes)
    skip = len(root.rstrip(os.sep)) + 1
    return root, sorted(path[skip:] for path in paths)


@final
class _Inside:
    """Where a worker's owner bounds the inputs, links in their folders must not lead out of them."""

    def __init__(self, allowed: list[str] | None) -> None:
        self._bounded = allowed is not None
        folders = [entry for entry in allowed or () if "://" not in entry]
        self._folders = [os.path.realpath(os.path.expanduser(folder)) for folder in folders]  # noqa: PTH111

    def require(self, path: str, prefix: str) -> None:
        """Raise SourceError if a link below `prefix` leads a file that was found to where no input may be."""
        if not self._bounded:
            return
        real = os.path.realpath(path)
        if not any(_is_in(real, folder) for folder in (prefix, *self._folders)):
            raise SourceError(
                f"{path}: a link leads it to {real!r}, outside what this environment allows ({INPUTS}); remove the "
                "link, or allow that folder",
                got=path,
            )


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _found(name: str, path: str, wanted: SourceType | None) -> FoundFile:
    format_for(name, path, wanted)
    try:
        return FoundFile(name, path, FileStat.of(path))
    except OSError as error:
        raise SourceNotFoundError(
            f"{path}: cannot be read ({error.strerror}). Repair or remove the link: no file is left out "
            "silently.",
            got=path,
        ) from error


def _input_file(source: ResolvedSource, found: FoundFile, token: str) -> InputFile:
    size, stat = found.stat.st_size, state(found.stat)
    return as_it_begins(planned(source, found.name, found.path, size=size, token=token, stat=stat), {})

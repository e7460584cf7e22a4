"""The inputs of a source, wherever they are: which files, in which order, and what exactly they hold.

Folders of this machine are read with ``os.scandir`` and paths stay strings: a listing may have 100,000 files. The
sha256 of local files is found several at a time, and remembered, so that a second run need not read them. The key is
what the file system changes whenever a file's bytes do: device, inode, size, mtime and ctime. The cache is a
convenience: one that is missing, locked or corrupt is never an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.cache.disk import default_folder
from tokenlake.compact import CompactTuple
from tokenlake.config.values import SourceType
from tokenlake.errors import (
    ConfigError,
    InputChangedError,
    NotAvailableError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.sources import formats, inputs
from tokenlake.sources.inputs import FileStat, InputFile, OnProgress, ProgressMeter, Stat
from tokenlake.sources.opening import as_it_begins
from tokenlake.store.objects import INPUTS, entries_of
from tokenlake.threads import Stop, in_order

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_WILDCARDS: Final = frozenset("*?[")
_HIDDEN: Final = (".", "_")  # what a search of a directory leaves out


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
    scheme, separator, rest = entry.partition("://")
    if separator and scheme.lower() != "file":  # only the scheme is repeated: the rest may hold credentials
        why = f"data_files: got a {scheme} URL, expected a local file, glob or directory"
        raise NotAvailableError(why, got=f"{scheme}://")
    path = os.path.abspath(os.path.expanduser(rest if separator else entry))  # noqa: PTH100, PTH111 (keeps symlinks)
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
        if (identity := inputs.FileStat.of(folder)[:2]) in seen:  # a link back to a folder above
            continue
        seen.add(identity)
        folders: list[str] = []
        for entry in _entries(folder):
            if entry.name.startswith(_HIDDEN):
                continue
            if entry.is_dir():
                folders.append(entry.path)
            elif formats.belongs(entry.name, wanted) and _is_file(entry):
                yield entry.path
        todo += sorted(folders, reverse=True)


def _matches(folder: str, parts: list[str], above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files below `folder` that match the parts of a glob; names with a dot only where it says so.

    A part ``**`` is this folder and all below it, without going round where a link leads back to one `above`.
    """
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    if parts[0] == "**":
        if (identity := inputs.FileStat.of(folder)[:2]) not in above:
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
        for entry in _entries(folder):
            if not fits(entry.name) or (entry.name.startswith(".") and not hidden):
                continue
            if len(parts) == 1:
                if _is_file(entry):
                    yield entry.path
            elif entry.is_dir():
                yield from _matches(entry.path, parts[1:], above)


def _missing(entry: str, path: Path) -> SourceNotFoundError:
    while not path.parent.is_dir():
        path = path.parent
    more = " (A dataset of the Hub is named with `type: hf`; whatever is no URL is a local file, glob or directory.)"
    return formats.not_found(entry, str(path.parent), path.name, os.listdir(path.parent), more)  # noqa: PTH208


_RACY_NS: Final = 2_000_000_000  # a file this fresh may change again within one clock tick
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS sha256 (dev INTEGER, inode INTEGER, size INTEGER, mtime_ns INTEGER, "
    "ctime_ns INTEGER, sha256 TEXT NOT NULL, "
    "PRIMARY KEY (dev, inode, size, mtime_ns, ctime_ns)) WITHOUT ROWID"
)
_SHA256: Final = re.compile("[0-9a-f]{64}")
_SELECT: Final = "SELECT * FROM sha256 WHERE dev=? AND inode IN (SELECT value FROM json_each(?))"
_INSERT: Final = "INSERT OR REPLACE INTO sha256 VALUES (?, ?, ?, ?, ?, ?)"


def default_path() -> Path:
    """Return where the cache lives, in the folder of all caches."""
    return default_folder() / "sha256.sqlite"


@final
class HashCache:
    """A table (device, inode, size, mtime, ctime) -> sha256 in one SQLite file; usable from threads."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Open or create the cache at `path` (default: :func:`default_path`); never raises."""
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with suppress(sqlite3.Error, OSError, RuntimeError):
            place = default_path() if path is None else Path(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            # For any number of processes and threads.
            connection = sqlite3.connect(place, timeout=0.2, isolation_level=None, check_same_thread=False)
            try:
                # A lost entry is found out once more, nothing else.
                connection.execute("PRAGMA synchronous=OFF")
                connection.execute(_SCHEMA)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection

    def get_many(self, stats: Sequence[Stat]) -> list[str | None]:
        """Return what is remembered for each of many files."""
        keys = [_key(stat) for stat in stats]
        inodes: dict[int, list[int]] = {}
        for device, inode, *_ in keys:
            inodes.setdefault(device, []).append(inode)
        found: dict[object, object] = {}
        with self._lock, suppress(sqlite3.Error):
            for device, numbers in inodes.items():
                if self._connection is None:
                    break
                # One question for all: each takes 10 microseconds to be asked.
                rows: list[Any] = self._connection.execute(_SELECT, (device, json.dumps(numbers))).fetchall()
                found |= {row[:5]: row[5] for row in rows}
        remembered = [found.get(key) for key in keys]
        return [each if isinstance(each, str) and _SHA256.fullmatch(each) else None for each in remembered]

    def put_many(self, hashes: Iterable[tuple[Stat, str]]) -> None:
        """Remember hashes in one transaction, but not those of files that changed within the last two seconds."""
        old = time.time_ns() - _RACY_NS
        rows = [
            (*_key(stat), sha256) for stat, sha256 in hashes if max(stat.st_mtime_ns, stat.st_ctime_ns) <= old
        ]
        with self._lock, suppress(sqlite3.Error):
            if rows and self._connection is not None:
                with self._connection as transaction:
                    transaction.execute("BEGIN")
                    transaction.executemany(_INSERT, rows)

    def close(self) -> None:
        """Close the file; the cache then forgets and remembers nothing."""
        with self._lock, suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def __enter__(self) -> HashCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _key(stat: Stat) -> tuple[int, int, int, int, int]:
    # SQLite integers are signed 64 bits; some file systems hand out larger inode and device numbers.
    device, inode = stat.st_dev, stat.st_ino
    if device >= _SIGN or inode >= _SIGN:
        device, inode = ((value + _SIGN) % (2 * _SIGN) - _SIGN for value in (device, inode))
    return device, inode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


_SIGN: Final = 1 << 63
_PIECE: Final = 1 << 20
# Files that one thread takes at a time: handing over a file costs as much as hashing a tiny one.
_TAKE_FILES, _TAKE_BYTES = 256, 64 << 20


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A local file before it is hashed: its name below the listing's root, its path, and its state."""

    name: str
    path: str
    stat: FileStat


def hash_files(
    files: Iterable[FoundFile], threads: int, cache: HashCache | None, on_progress: OnProgress | None
) -> Iterator[tuple[FoundFile, str]]:
    """Yield every file with its sha256 (hex), once all were found.

    Raises:
        InputChangedError: a file changed since it was found.
    """
    takes, sizes = list[CompactTuple[FoundFile]](), list[int]()
    for take in _takes(files):
        takes.append(CompactTuple(FoundFile, take))
        sizes.append(sum(file.stat.st_size for file in take))
    meter, stop = ProgressMeter("hashing", sum(map(len, takes)), sum(sizes), on_progress), Stop()

    def hashed(take: CompactTuple[FoundFile]) -> list[tuple[FoundFile, str]]:
        some = tuple(take)
        known = cache.get_many([file.stat for file in some]) if cache else [None] * len(some)
        found = [one or _hash(file, meter, stop) for file, one in zip(some, known, strict=True)]
        told = [file.stat.st_size for file, one in zip(some, known, strict=True) if one]
        meter.add(len(told), sum(told))
        if cache:
            new = zip(some, found, known, strict=True)
            cache.put_many((file.stat, sha256) for file, sha256, before in new if not before)
        return list(zip(some, found, strict=True))

    for found in in_order(hashed, takes, threads, stop=stop):
        yield from found


def _takes(files: Iterable[FoundFile]) -> Iterator[list[FoundFile]]:
    """Yield what each thread takes at a time."""
    take, size = list[FoundFile](), 0
    for file in files:
        take.append(file)
        size += file.stat.st_size
        if len(take) == _TAKE_FILES or size >= _TAKE_BYTES:
            yield take
            take, size = [], 0
    if take:
        yield take


def _hash(file: FoundFile, meter: ProgressMeter, stop: Stop) -> str:
    """Return the sha256 of a file that stays as it was found."""
    digest, after, missing = hashlib.sha256(), None, None
    # One more byte than it had; whether it has more than that is seen by its state afterwards.
    left = file.stat.st_size + 1
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while left > 1 and (data := os.read(descriptor, min(left, _PIECE))):
                stop.check()
                digest.update(data)
                meter.add(0, len(data))
                left -= len(data)
        finally:
            os.close(descriptor)
        meter.add(1, 0)
        after = FileStat.of(file.path)
    except FileNotFoundError as error:
        missing = error
    if after != file.stat:
        raise InputChangedError(
            f"{file.path}: the file changed while it was being hashed. Inputs must stay as they are during "
            "a build; run again when it is complete.",
            file=file.path,
        ) from missing
    return digest.hexdigest()


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
    urls = [entry for entry in source.data_files if inputs.is_url(entry)]
    if not urls:
        return _list_local(source, hash_threads, cache, on_progress, hashed=hashed, enough=enough)
    if len(urls) < len(source.data_files):
        local = next(entry for entry in source.data_files if not inputs.is_url(entry))
        raise ConfigError(
            # Only the scheme is repeated: the rest of a URL may hold credentials.
            f"source {source.name!r}: data_files mix URLs ({urls[0].partition('://')[0]}://...) and local files "
            f"({local!r}); make them two sources",
            source=source.name,
        )
    return _first(_at_urls(source, hub=all(map(inputs.is_hub_url, urls))), enough)


def spelled_out(entries: Sequence[str]) -> Iterator[str]:
    """Yield entries of `data_files` with ``{0..3}`` and ``{a,b}`` spelled out; a name that is there stays."""
    for entry in entries:
        there = "{" not in entry or (not inputs.is_url(entry) and os.path.exists(os.path.expanduser(entry)))  # noqa: PTH110, PTH111
        yield from [entry] if there else formats.expand_braces(entry)


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

    def files() -> Iterator[FoundFile]:
        for name in names:
            path = above + name
            formats.format_for(name, path, source.type)
            try:
                yield FoundFile(name, path, FileStat.of(path))
            except OSError as error:
                raise SourceNotFoundError(
                    f"{path}: cannot be read ({error.strerror}). Repair or remove the link: no file is left out "
                    "silently.",
                    got=path,
                ) from error

    def as_input(file: FoundFile, token: str) -> InputFile:
        size, stat = file.stat.st_size, inputs.state(file.stat)
        return as_it_begins(
            inputs.planned(source, file.name, file.path, size=size, token=token, stat=stat), {}
        )

    def with_hashes(found: Iterable[FoundFile], threads: int) -> Iterator[InputFile]:
        hashes = hash_files(found, threads, cache, on_progress)
        return (as_input(file, f"sha256:{sha256}") for file, sha256 in hashes)

    if enough:  # files behind the last one are not read, whatever their size
        return _first((file for one in list(files()) for file in with_hashes([one], 1)), enough)
    if hashed:
        return CompactTuple(InputFile, with_hashes(files(), hash_threads))
    return [as_input(file, inputs.stat_token(file.stat)) for file in files()]


def _find(source: ResolvedSource, on_progress: OnProgress | None) -> tuple[str, list[str]]:
    """Return the root and the paths below it, sorted."""
    meter = ProgressMeter("listing", 0, 0, on_progress)
    bounds = entries_of(os.environ.get(INPUTS))
    allowed = [entry for entry in bounds or () if "://" not in entry]
    allowed = [os.path.realpath(os.path.expanduser(folder)) for folder in allowed]  # noqa: PTH111
    prefixes: list[str] = []
    paths: set[str] = set()
    for entry in source.data_files:
        prefix, found = expand(entry, source.type)
        prefixes.append(prefix)
        inside = [os.path.realpath(prefix), *allowed]
        for path in found:
            if bounds is not None:
                _require_inside(path, inside)
            paths.add(path)
            if len(paths) % _REPORT_FILES == 0:
                meter.add(_REPORT_FILES, 0)
    root = os.path.commonpath(prefixes)
    skip = len(root.rstrip(os.sep)) + 1
    return root, sorted(path[skip:] for path in paths)


def _require_inside(path: str, folders: Iterable[str]) -> None:
    """Raise SourceError if a link leads a file out of all folders: a worker's owner bounds where inputs may be."""
    real = os.path.realpath(path)
    if not any(real == folder or real.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders):
        raise SourceError(
            f"{path}: a link leads it to {real!r}, outside what this environment allows ({INPUTS}); remove the "
            "link, or allow that folder",
            got=path,
        )

"""The sha256 of local files, several at a time, and remembered, so that a second run need not read them to list them.

The key is what the file system changes whenever a file's bytes do: device, inode, size, mtime and ctime. The cache is a
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base.cache.disk import default_folder
from tokenlake.base.compact import CompactTuple
from tokenlake.base.threads import Stop, in_order
from tokenlake.errors import InputChangedError
from tokenlake.etl.sources.file_stat import FileStat, Stat
from tokenlake.etl.sources.listing_progress import OnProgress, ProgressMeter

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

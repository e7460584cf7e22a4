"""Remembered sha256 hashes of local files, so that a second run need not read them.

The key consists of everything that the file system changes when a file's bytes change:
device, inode, size, mtime and ctime. The cache is a convenience: one that is missing,
locked or corrupt is never an error.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from tokenlake.base.cache.disk import default_folder
from tokenlake.etl.sources.file_stat import Stat

_Key: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime, the times in nanoseconds."""

# A file this fresh may change again within one clock tick.
_FRESH_NS: Final = 2_000_000_000
_SIGN: Final = 1 << 63
# The primary key is all that identifies a state: an entry of an older state of a file
# is never found, and never deleted.
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS sha256 (dev INTEGER, inode INTEGER, size INTEGER, mtime_ns INTEGER, "
    "ctime_ns INTEGER, sha256 TEXT NOT NULL, "
    "PRIMARY KEY (dev, inode, size, mtime_ns, ctime_ns)) WITHOUT ROWID"
)
_SHA256: Final = re.compile("[0-9a-f]{64}")
_SELECT: Final = (
    "SELECT * FROM sha256 WHERE dev=? AND inode IN (SELECT value FROM json_each(?))"
)
_INSERT: Final = "INSERT OR REPLACE INTO sha256 VALUES (?, ?, ?, ?, ?, ?)"


def default_path() -> Path:
    """Return the path of the cache, in the folder of all caches."""
    return default_folder() / "sha256.sqlite"


@final
class HashCache:
    """A table (device, inode, size, mtime, ctime) -> sha256 in one SQLite file.

    Threads may share it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Open or create the cache; never raises.

        Args:
            path: File of the cache; None for :func:`default_path`.
        """
        self._lock = threading.Lock()
        # None: the cache cannot be used.
        self._connection: sqlite3.Connection | None = None
        # Every fault of the cache is ignored: a build without it only reads its files
        # again.
        with suppress(sqlite3.Error, OSError, RuntimeError):
            cache_path = default_path() if path is None else Path(path)
            cache_path.parent.mkdir(parents=True, exist_ok=True)
            # Any number of processes and threads may use the file.
            connection = sqlite3.connect(
                cache_path, timeout=0.2, isolation_level=None, check_same_thread=False
            )
            try:
                # A lost entry only costs that its file is hashed again.
                connection.execute("PRAGMA synchronous=OFF")
                connection.execute(_SCHEMA)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection

    def get_many(self, stats: Sequence[Stat]) -> list[str | None]:
        """Return the remembered hash of each file, None for a file without one.

        Args:
            stats: State of each file.
        """
        keys = [_key(stat) for stat in stats]
        inodes_of_device: dict[int, list[int]] = {}
        for device, inode, *_ in keys:
            inodes_of_device.setdefault(device, []).append(inode)

        # One query per device: a query for each file would take 10 microseconds.
        remembered: dict[object, object] = {}
        with self._lock, suppress(sqlite3.Error):
            for device, inodes in inodes_of_device.items():
                if self._connection is None:
                    break
                rows: list[Any] = self._connection.execute(
                    _SELECT, (device, json.dumps(inodes))
                ).fetchall()
                for row in rows:
                    remembered[row[:5]] = row[5]

        # A damaged file may hold anything.
        hashes: list[str | None] = []
        for key in keys:
            sha256 = remembered.get(key)
            is_hash = isinstance(sha256, str) and _SHA256.fullmatch(sha256)
            hashes.append(str(sha256) if is_hash else None)
        return hashes

    def put_many(self, hashes: Iterable[tuple[Stat, str]]) -> None:
        """Remember hashes in one transaction.

        Hashes of files that changed within the last two seconds are not remembered.

        Args:
            hashes: State of each file and its sha256 in hexadecimal digits.
        """
        # Within a clock tick, a file can change without a change of its times.
        newest = time.time_ns() - _FRESH_NS
        rows: list[tuple[int | str, ...]] = []
        for stat, sha256 in hashes:
            if max(stat.st_mtime_ns, stat.st_ctime_ns) <= newest:
                rows.append((*_key(stat), sha256))
        with self._lock, suppress(sqlite3.Error):
            if rows and self._connection is not None:
                with self._connection as transaction:
                    transaction.execute("BEGIN")
                    transaction.executemany(_INSERT, rows)

    def close(self) -> None:
        """Close the file; afterwards the cache returns and remembers nothing."""
        with self._lock, suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def __enter__(self) -> HashCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _key(stat: Stat) -> _Key:
    """Return the key of a file.

    Integers of SQLite are signed: larger inode and device numbers wrap around.
    """
    device = stat.st_dev
    inode = stat.st_ino
    if device >= _SIGN or inode >= _SIGN:
        device = _as_signed(device)
        inode = _as_signed(inode)
    return device, inode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _as_signed(number: int) -> int:
    """Return an unsigned number of 64 bits as the signed one with the same bits."""
    return (number + _SIGN) % (2 * _SIGN) - _SIGN

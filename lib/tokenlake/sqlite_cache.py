"""SQLite files in which something is remembered that can be found out again."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """Open a cache, and make the file and its folder where they are missing; for any number of processes and threads.

    Args:
        path: of the file.
        schema: a statement that makes its table where it is missing.

    Raises:
        sqlite3.Error, OSError: it is locked, damaged, or cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=0.2, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous=OFF")  # a lost entry is found out once more, nothing else
        connection.execute(schema)
    except sqlite3.Error:
        connection.close()
        raise
    return connection

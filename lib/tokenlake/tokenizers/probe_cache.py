"""What the gate has found before, so that a second build need not find it again.

A probe depends on what goes into it and nothing else: the tokenizer, the engine, the code and the texts, those of the
documents among them. All of it is in an entry's key; a text that is another asks the engines again. The cache is a
convenience: one that is missing, locked or corrupt is never an error.
"""

from __future__ import annotations

import hashlib
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, final

from tokenlake._version import __version__
from tokenlake.sqlite_cache import connect

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS equal (probe BLOB PRIMARY KEY, proof BLOB NOT NULL) WITHOUT ROWID"
)
_PACKAGES: Final = ("gigatoken", "tokenizers", "numpy", "pyarrow")


def probe_key(tokenizer: bytes, settings: Sequence[object], texts: Iterable[str]) -> bytes:
    """Return what tells two probes apart: sha256 of the tokenizer's json, of settings, versions, code and texts."""
    found = hashlib.sha256(_world())
    for part in (tokenizer, repr(tuple(settings)).encode(), *(text.encode() for text in texts)):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


@cache
def _world() -> bytes:
    """Return the versions and the code that a probe depends on; the code, because versions stay while it is written."""
    code = sorted(Path(__file__).parent.glob("*.py"))
    facts = [__version__, platform.python_version(), platform.machine(), *map(version, _PACKAGES)]
    return hashlib.sha256("\n".join(facts).encode() + b"".join(path.read_bytes() for path in code)).digest()


@final
class ProbeCache:
    """The probes in which an engine was equal to the reference, in a SQLite file; for any number of processes.

    Args:
        path: of the file, which is made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def holds(self, key: bytes) -> bool:
        """Say whether a probe is there."""
        with suppress(sqlite3.Error, OSError), closing(connect(self._path, _SCHEMA)) as connection:
            row = connection.execute("SELECT proof FROM equal WHERE probe=?", (key,)).fetchone()
            return row is not None and row[0] == _proof(key)
        return False

    def add(self, key: bytes) -> None:
        """Remember a probe that found no difference."""
        with suppress(sqlite3.Error, OSError), closing(connect(self._path, _SCHEMA)) as connection:
            connection.execute("INSERT OR REPLACE INTO equal VALUES (?, ?)", (key, _proof(key)))


def _proof(key: bytes) -> bytes:
    """Return what stands beside a key that was written by us and not damaged since."""
    return hashlib.sha256(b"equal" + key).digest()

"""The private folder of this machine in which objects of a remote store are written before they are sent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from tokenlake.errors import StoreError
from tokenlake.store.base import Leftover
from tokenlake.store.layout import TEMP_MARK, check_key
from tokenlake.store.local_files import is_abandoned, new_temp_name, os_errors

FOLDER_VARIABLE: Final = "TOKENLAKE_SCRATCH"
"""Environment variable: the folder for temporary files of remote stores; by default the system's temporary one."""

_MARK: Final = "scratch:"


@final
class Scratch:
    """Temporary files of one store, in folders of this user that nobody else can look into or write to.

    A folder for each store and prefix; files are named as in a local store, so that those of dead processes are
    known. It may be pickled: another process makes the folder where its own environment says.
    """

    def __init__(self, store: str) -> None:
        """`store`: the store's URL."""
        self._store = hashlib.sha256(store.encode()).hexdigest()[:16]

    def new(self, prefix: str) -> Path:
        """Create an empty file for an object of `prefix`.

        Raises:
            StoreError: the folder is another user's, is no folder, or cannot be written.
        """
        folder = self._root() / prefix_path(prefix)
        with os_errors("write a temporary file for", prefix or "the store"):
            private(self._root().parent)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / new_temp_name()
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return path

    def holds(self, path: Path) -> bool:
        """Say whether this is a file that :meth:`new` made."""
        return path.name.startswith(TEMP_MARK) and path.parent.is_relative_to(self._root())

    def sweep(self, prefix: str) -> int:
        """Remove the files of dead processes right below `prefix`; return how many."""
        swept = 0
        for path in self._files(prefix):
            if path.parent == self._root() / prefix_path(prefix) and is_abandoned(path.name):
                path.unlink(missing_ok=True)
                swept += 1
        return swept

    def leftovers(self, prefix: str) -> list[Leftover]:
        """Return all files below `prefix`."""
        found: list[Leftover] = []
        for path in self._files(prefix):
            with contextlib.suppress(FileNotFoundError):  # published or swept meanwhile
                facts = path.lstat()
                name = f"{_MARK}{path.relative_to(self._root()).as_posix()}"
                found.append(Leftover(name, facts.st_size, facts.st_mtime, is_abandoned(path.name)))
        return found

    def remove(self, name: str) -> bool | None:
        """Remove a file that :meth:`leftovers` named; False if it is gone, None if it is none of these."""
        folder, _, file = name.removeprefix(_MARK).rpartition("/")
        if not name.startswith(_MARK) or not file.startswith(TEMP_MARK):
            return None
        path = self._root() / prefix_path(folder) / file
        if not self._exists():
            return False
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _files(self, prefix: str) -> Iterator[Path]:
        folder = self._root() / prefix_path(prefix)
        if not self._exists():
            return
        for where, _, names in os.walk(folder):
            yield from (Path(where, name) for name in names if name.startswith(TEMP_MARK))

    def _exists(self) -> bool:
        """Say whether there is such a folder; StoreError where it is not this user's alone."""
        if not os.path.lexists(self._root().parent):
            return False
        private(self._root().parent)
        return True

    def _root(self) -> Path:
        base = Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()).expanduser().resolve()
        return base / f"tokenlake-{os.geteuid()}" / self._store


def prefix_path(prefix: str) -> str:
    """Return a prefix as a relative path, "" for none; StoreError for an unsafe one."""
    return check_key(prefix) if prefix else ""


def private(folder: Path) -> None:
    """Make a folder for this user alone, or see that it is one.

    Raises:
        StoreError: it is a symlink, another user's, or open to others.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        problem = "is no folder (a symlink, or a file)"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & 0o077:
        problem = f"may be used by others (mode {stat.S_IMODE(found.st_mode):o}, expected 700)"
    else:
        return
    raise StoreError(
        f"{folder} {problem}; temporary files of remote stores are written there. Remove it, or set "
        f"{FOLDER_VARIABLE} to a folder of your own."
    )

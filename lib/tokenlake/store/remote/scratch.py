"""The private folder of this machine in which objects of a remote store are written before they are sent.

A local store of its own for each remote one, so that the files of dead processes are known. Nobody but its user can
look into it or write to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from tokenlake.errors import StoreError
from tokenlake.store.local import LocalStore

FOLDER_VARIABLE: Final = "TOKENLAKE_SCRATCH"
"""Environment variable: the folder for temporary files of remote stores; by default the system's temporary one."""


def scratch_of(url: str) -> LocalStore:
    """Return the folder for the store at `url`, where the environment of this process says.

    Raises:
        StoreError: it is another user's, is no folder, or cannot be written.
    """
    base = Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()).expanduser().resolve()
    ours = base / f"tokenlake-{os.geteuid()}"
    try:
        _make_private(ours)
    except OSError as error:
        raise StoreError(
            f"{ours} cannot be made: {error.strerror}; temporary files of remote stores are written there. Set "
            f"{FOLDER_VARIABLE} to a folder of your own."
        ) from error
    return LocalStore(ours / hashlib.sha256(url.encode()).hexdigest()[:16])


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone, or see that it is one, no symlink, another user's, or open to others."""
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

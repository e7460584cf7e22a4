"""Folders of this machine for files on their way to a remote store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from tokenlake.errors import StoreError
from tokenlake.runtime.store.local import LocalStore

FOLDER_VARIABLE: Final = "TOKENLAKE_SCRATCH"
"""Environment variable: folder for temporary files of remote stores.

The default is the system's temporary folder.
"""


def scratch_of(url: str) -> LocalStore:
    """Return the local folder for temporary files of the store at a URL.

    Raises:
        StoreError: The folder is another user's, is not a folder, or cannot be written.
    """
    # One folder for each user of this machine, and in it one for each store.
    base_folder = os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()
    base = Path(base_folder).expanduser().resolve()
    folder = base / f"tokenlake-{os.geteuid()}"
    use = "temporary files of remote stores are written there"
    try:
        base.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        remedy = f"Set {FOLDER_VARIABLE} to a folder of your own."
        raise StoreError(
            f"{folder} cannot be created: {error.strerror}; {use}. {remedy}"
        ) from error
    # Only this user may have access to it. In the system's temporary folder anyone may
    # have created this name before.
    problem = ""
    if not stat.S_ISDIR(status.st_mode):
        problem = "is not a folder (a symlink, or a file)"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o077:
        problem = f"may be used by others (mode {stat.S_IMODE(status.st_mode):o}, expected 700)"
    if problem:
        remedy = f"Remove it, or set {FOLDER_VARIABLE} to a folder of your own."
        raise StoreError(f"{folder} {problem}; {use}. {remedy}")
    return LocalStore(folder / hashlib.sha256(url.encode()).hexdigest()[:16])

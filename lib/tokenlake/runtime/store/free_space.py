"""Free space of a disk."""

from __future__ import annotations

import shutil
from pathlib import Path


def nearest_folder(path: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    absolute = path.expanduser().absolute()
    # The root of the file system always exists.
    for folder in (absolute, *absolute.parents):
        if folder.exists():
            return folder
    return Path(absolute.anchor)


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that a folder is on.

    For a missing folder it is the disk that it would be created on.
    """
    return shutil.disk_usage(nearest_folder(path)).free

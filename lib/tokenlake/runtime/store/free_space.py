"""The free space of a disk."""

from __future__ import annotations

import shutil
from pathlib import Path


def nearest_folder(path: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    absolute = path.expanduser().absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def free_bytes(path: Path) -> int:
    """Return the bytes that are free on the disk that a folder is on, or will be on
    once it is created.
    """
    return shutil.disk_usage(nearest_folder(path)).free

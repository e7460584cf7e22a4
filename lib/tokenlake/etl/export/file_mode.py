"""The permissions of files that are written into a folder."""

from __future__ import annotations

from pathlib import Path


def file_mode(folder: Path) -> int:
    """Return the permissions of a new file in `folder`.

    They are those of the folder, without execution.
    """
    return folder.stat().st_mode & 0o666

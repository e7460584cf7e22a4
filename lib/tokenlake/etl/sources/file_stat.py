"""The state of a local file, by which a change of it is noticed.

It is (inode, mtime_ns, ctime_ns).
"""

from __future__ import annotations

import os
from typing import NamedTuple, Self, TypeAlias, final


@final
class FileStat(NamedTuple):
    """Fields of :func:`os.stat` that differ between two states of a local file.

    They have their names there.

    Attributes:
        st_dev: Device that the file is on.
        st_ino: Inode.
        st_size: Size in bytes.
        st_mtime_ns: Time of the last change of its content, in nanoseconds.
        st_ctime_ns: Time of the last change of its content or metadata, in nanoseconds.
    """

    st_dev: int
    st_ino: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the present state of a file; OSError if there is no file."""
        file_stat = os.stat(path)  # noqa: PTH116 - no Path per file
        return cls(
            file_stat.st_dev,
            file_stat.st_ino,
            file_stat.st_size,
            file_stat.st_mtime_ns,
            file_stat.st_ctime_ns,
        )


Stat: TypeAlias = os.stat_result | FileStat


def state(stat: Stat) -> tuple[int, int, int]:
    """Return (inode, mtime_ns, ctime_ns), which differ between states of a local file."""
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def stat_token(stat: Stat) -> str:
    """Return the version token of a local file that was not read."""
    return "stat:" + "-".join(map(str, state(stat)))

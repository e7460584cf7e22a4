"""The state of a local file, by which a change of it is noticed: (inode, mtime_ns, ctime_ns)."""

from __future__ import annotations

import os
from typing import NamedTuple, Self, TypeAlias, final


@final
class FileStat(NamedTuple):
    """What of :func:`os.stat` tells two states of a local file apart, under the names that it has there."""

    st_dev: int
    st_ino: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int

    @classmethod
    def of(cls, path: str) -> Self:
        """Return what a file is now; OSError where there is none."""
        stat = os.stat(path)  # noqa: PTH116 - no Path per file
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


Stat: TypeAlias = os.stat_result | FileStat


def state(stat: Stat) -> tuple[int, int, int]:
    """Return what tells two states of a local file apart: (inode, mtime_ns, ctime_ns)."""
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def stat_token(stat: Stat) -> str:
    """Return the version token of a local file that was not read."""
    return "stat:" + "-".join(map(str, state(stat)))

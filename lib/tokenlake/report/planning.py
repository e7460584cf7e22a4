"""How far a plan is, in one line for people."""

from __future__ import annotations

from typing import Final

from tokenlake.report import numbers

_DOING: Final = {
    "listing": "looking for files",
    "hashing": "hashing",
    "splitting": "reading footers",
    "counting": "counting records",
}


def planning_line(source: str, step: str, files: int, all_files: int, bytes_: int, all_bytes: int) -> str:
    """``web: hashing, 31,204 of 100,000 files, 1.20 GiB of 20.1 GiB``; totals of 0 are not known yet.

    Args:
        source: its name.
        step: ``listing``, ``hashing``, ``splitting`` or ``counting``.
        files, all_files, bytes_, all_bytes: done so far, and in all.
    """
    done = numbers.plural(all_files or files, "file")
    if all_files:
        done = f"{numbers.count(files)} of {done}"
    size = numbers.size(bytes_) if bytes_ or all_bytes else ""
    if all_bytes:
        size = f"{size} of {numbers.size(all_bytes)}"
    return ", ".join(part for part in (f"{source}: {_DOING[step]}", done, size) if part)

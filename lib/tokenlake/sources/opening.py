"""Opening an input and making sure that it is, and stays, the file that was planned."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tokenlake.errors import DamagedFileError, InputChangedError
from tokenlake.sources.listing import InputFile, state


@contextmanager
def opened(file: InputFile) -> Generator[int]:
    """Yield a file descriptor; the file must be as planned before and after it is read.

    Raises:
        InputChangedError: it is gone, or its inode, size, mtime or ctime differ.
    """
    try:
        descriptor = os.open(file.url, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise InputChangedError(
            f"{file.url}: the file is gone; it was there when the build was planned. Put it back "
            "or run again.",
            file=file.path,
        ) from error
    try:
        _check(file, os.fstat(descriptor))
        yield descriptor
        _check(file, os.fstat(descriptor))
        if Path(file.url).stat().st_ino != file.stat[0]:
            raise changed(file, "another file has taken its name")
    finally:
        os.close(descriptor)


def _check(file: InputFile, stat: os.stat_result) -> None:
    if stat.st_size != file.size:
        raise changed(file, f"it has {stat.st_size} bytes, planned were {file.size}")
    if state(stat) != tuple(file.stat):
        raise changed(file, f"(inode, mtime, ctime) is {state(stat)}, planned was {tuple(file.stat)}")


def changed(file: InputFile, what: str) -> InputChangedError:
    """Return the error for a file that is not what it was when the build was planned."""
    return InputChangedError(
        f"{file.url}: the input changed since the build was planned: {what}. Inputs must stay as they are "
        "during a build; run again to plan with the file as it is now.",
        file=file.path,
    )


def damaged(file: InputFile, what: str, **details: object) -> DamagedFileError:
    """Return the error for a file that cannot be trusted as a whole."""
    return DamagedFileError(
        f"{file.url}: the file is damaged: {what}. Damaged files are never read in part: replace it, "
        "or leave it out of data_files.",
        file=file.path,
        **details,
    )

"""The standard streams of the process: closed, full, or left by their reader, they stop no command half-way.

What a command returns does not depend on who reads along: a build goes on, and `verify ... | head` still ends with 3
where something is damaged. A reader that left, or an output that was closed from the beginning, is nobody's mistake; a
full disk is told at the end.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOBODY: Final = frozenset({errno.EPIPE, errno.ECONNRESET})


@final
class Outlet(io.RawIOBase):
    """A descriptor that takes everything; after an error it keeps the error and drops the rest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        if self.error is None:
            try:
                return os.write(self._descriptor, data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def take_over() -> Outlet:
    """Put outlets in the place of standard output and error; return that of the output.

    Closed descriptors are opened on the null device: the next file to be opened would get their number, and with it
    what a library prints.
    """
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is where descriptor 0 is closed
        os.open(os.devnull, os.O_RDONLY)
    outlet, sys.stdout = _opened(sys.stdout)
    _, sys.stderr = _opened(sys.stderr)
    return outlet


def problem(outlet: Outlet) -> str | None:
    """Return what kept the output from being written, once it is flushed; None where that is no mistake."""
    sys.stdout.flush()
    if outlet.error is None or outlet.error.errno in _NOBODY:
        return None
    return f"cannot write to standard output: {outlet.error.strerror}"


def _opened(old: TextIO | None) -> tuple[Outlet, io.TextIOWrapper]:
    outlet = Outlet(os.open(os.devnull, os.O_WRONLY) if old is None else old.fileno())
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", "replace")
    lines = outlet.isatty() or old is sys.stderr
    return outlet, io.TextIOWrapper(io.BufferedWriter(outlet), encoding, errors, line_buffering=lines)

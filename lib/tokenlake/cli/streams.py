"""The standard streams of the process, and the encoding of its texts.

Closed, full, or left by their reader, they stop no command half-way. What a command
returns does not depend on who reads its output: a build goes on, and ``verify ... |
head`` still ends with 3 where something is damaged. A reader that left, or an output
that was closed from the beginning, is no error; a full disk is reported at the end.

A character that the encoding of a stream lacks is escaped: ``\\xe9`` on an ASCII
terminal. JSON escapes it in its own way, so that it stays JSON.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Errors that mean that the reader of a pipe or a socket has left.
_NOBODY: Final = frozenset({errno.EPIPE, errno.ECONNRESET})
_UTF8: Final = "utf-8"


@final
class Outlet(io.RawIOBase):
    """A descriptor that takes everything.

    After an error it keeps the error and drops the rest: the command goes on, and its
    exit code does not depend on the reader.
    """

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

    Closed descriptors are opened on the null device: the next file to be opened would
    get their number, and with it the output of a library.
    """
    # Standard input is only opened, so that its number is taken.
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is where descriptor 0 is closed
        os.open(os.devnull, os.O_RDONLY)
    outlet, sys.stdout = _opened(sys.stdout)
    _, sys.stderr = _opened(sys.stderr)
    return outlet


def output_problem(outlet: Outlet) -> str | None:
    """Flush the output and return the error that kept it from being written.

    It is None if the reader left: that is no error of this program.
    """
    sys.stdout.flush()
    if outlet.error is None or outlet.error.errno in _NOBODY:
        return None
    return f"cannot write to standard output: {outlet.error.strerror}"


def _opened(stream: TextIO | None) -> tuple[Outlet, io.TextIOWrapper]:
    """Return an outlet in the place of a stream, and the text stream that writes to it.

    A stream that was closed from the beginning is the null device.
    """
    if stream is None:
        outlet = Outlet(os.open(os.devnull, os.O_WRONLY))
        encoding = _UTF8
    else:
        outlet = Outlet(stream.fileno())
        encoding = stream.encoding
    is_line_buffered = outlet.isatty() or stream is sys.stderr
    # Not the error handler of the old stream: "strict" fails on characters that a
    # terminal lacks.
    errors = "backslashreplace"
    buffer = io.BufferedWriter(outlet)
    text_stream = io.TextIOWrapper(
        buffer, encoding, errors, line_buffering=is_line_buffered
    )
    return outlet, text_stream


def can_show(text: str, stream: TextIO) -> bool:
    """Return True if the encoding of a stream has all characters of a text.

    A character that comes back as another one does not count: Shift JIS writes a yen
    sign as the byte of a backslash.
    """
    encoding = stream.encoding or _UTF8
    try:
        return text.encode(encoding).decode(encoding) == text
    except UnicodeError:
        return False


def encodable_json(text: str, stream: TextIO) -> str:
    """Return JSON without characters that the encoding of a stream lacks.

    They are escaped: ``\\u00e9``.
    """
    # One test of the whole text is enough in nearly all cases.
    if can_show(text, stream):
        return text
    characters: list[str] = []
    for character in text:
        if not can_show(character, stream):
            character = json.dumps(character)[1:-1]
        characters.append(character)
    return "".join(characters)


def restart_with_utf8() -> None:
    """Start this program again if Python does not take names of files for UTF-8.

    That is so with ``LC_ALL=C PYTHONUTF8=0`` alone. A name such as ``größe.jsonl`` in a
    configuration would not be the one on the disk. The terminal keeps its encoding.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == _UTF8 or sys.flags.utf8_mode:
        return
    # The streams keep the encoding of the terminal, unless the user has set another.
    stream = sys.stdout or sys.stderr
    encoding = _UTF8
    if stream:
        encoding = stream.encoding
    environment = {
        "PYTHONIOENCODING": f"{encoding}:backslashreplace",
        **os.environ,
        "PYTHONUTF8": "1",  # for the workers, too
    }
    arguments = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, environment)

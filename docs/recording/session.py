"""Session of commands in a pseudo-terminal, with the times of their output."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTROL_C: Final = b"\x03"
_INTERRUPTED: Final = 130
"""Exit code of a command that Ctrl-C cancelled."""

_TYPING_SECONDS: Final = 0.06
"""Time for which a letter of a command is typed."""

_PROMPT_SECONDS: Final = 0.8
"""Time before a prompt appears."""

_RETURN_SECONDS: Final = 0.5
"""Time between the last letter of a command and the return key."""

_REACTION_SECONDS: Final = 0.4
"""Time between the progress at which Ctrl-C is pressed and the key.

A viewer sees the progress in this time.
"""

_WAIT_SECONDS: Final = 0.05
"""Longest wait for output, after which Ctrl-C may be due."""

_READ_BYTES: Final = 65_536
"""Largest number of bytes that are read at a time."""


@dataclass(frozen=True)
class Output:
    """Text that a terminal receives, and its time."""

    time: float
    """Seconds since the beginning of the session."""

    text: str
    """Text, with escape sequences."""


class Session:
    """Terminal in which one command runs after the other.

    Args:
        folder: Folder in which the commands run.
        columns: Columns of the terminal.
        rows: Rows of the terminal.
    """

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._folder = folder
        self._columns = columns
        self._rows = rows
        self._time = 0.0

    def run(self, arguments: list[str], *, interrupt_at: str = "") -> Iterator[Output]:
        """Type a command, run it, and yield its output.

        Args:
            arguments: Arguments of `tokenlake`.
            interrupt_at: Regular expression; Ctrl-C is pressed when the output matches
                it. Empty: the command ends by itself.

        Raises:
            RuntimeError: The command failed, or Ctrl-C did not cancel it.
        """
        yield from self._typed(" ".join(["tokenlake", *arguments]))
        process, terminal = pty.fork()
        # The child process becomes the command.
        if process == 0:
            os.chdir(self._folder)
            os.environ.update(
                TERM="xterm-256color", COLUMNS=str(self._columns), LINES=str(self._rows)
            )
            os.execv(sys.executable, [sys.executable, "-m", "tokenlake", *arguments])
        # The size of the terminal: rows, columns, and pixels, which are not used.
        size = struct.pack("HHHH", self._rows, self._columns, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        try:
            yield from self._output(terminal, interrupt_at)
        finally:
            os.close(terminal)
            _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        expected = 0
        if interrupt_at:
            expected = _INTERRUPTED
        if code != expected:
            raise RuntimeError(
                f"tokenlake {' '.join(arguments)}: got exit code {code}, expected {expected}"
            )

    def _typed(self, command: str) -> Iterator[Output]:
        """Yield a prompt and the letters of a command."""
        self._time += _PROMPT_SECONDS
        yield Output(self._time, "\x1b[32m$\x1b[0m ")
        for letter in command:
            self._time += _TYPING_SECONDS
            yield Output(self._time, letter)
        self._time += _RETURN_SECONDS
        yield Output(self._time, "\r\n")

    def _output(self, terminal: int, interrupt_at: str) -> Iterator[Output]:
        """Yield the output of a program until it ends.

        Args:
            terminal: File descriptor of the terminal.
            interrupt_at: Regular expression; see :meth:`run`.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        start = time.monotonic()
        start_in_session = self._time
        is_awaited = interrupt_at != ""
        press_at: float | None = None
        while True:
            # 1. Wait for output, and press Ctrl-C if it is due.
            ready, _, _ = select.select([terminal], [], [], _WAIT_SECONDS)
            if press_at is not None and time.monotonic() >= press_at:
                os.write(terminal, CONTROL_C)
                press_at = None
            if not ready:
                continue
            # 2. Read the output. At the end of the program, reading fails or returns
            #    nothing, depending on the system.
            try:
                data = os.read(terminal, _READ_BYTES)
            except OSError:
                return
            if not data:
                return
            # 3. Yield it, without the name of the temporary folder.
            self._time = start_in_session + time.monotonic() - start
            text = decoder.decode(data).replace(str(self._folder), "/data")
            yield Output(self._time, text)
            # 4. Ctrl-C is pressed once, some time after the progress was seen.
            if is_awaited and re.search(interrupt_at, text):
                press_at = time.monotonic() + _REACTION_SECONDS
                is_awaited = False

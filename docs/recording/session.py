"""Commands that run in a pseudo-terminal, with the times of their output."""

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
_REACTION_SECONDS: Final = 0.4
"""Time between the progress at which Ctrl-C is pressed and the key, so that the
progress can be seen.
"""

_TURN_SECONDS: Final = 0.05
_READ_BYTES: Final = 65_536


@dataclass(frozen=True)
class Output:
    """Text that a terminal receives at a time."""

    time: float
    """Seconds since the beginning of the session."""

    text: str
    """Text, with escape sequences."""


class Session:
    """A terminal in which one command runs after the other."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._folder = folder
        self._columns = columns
        self._rows = rows
        self._time = 0.0

    def run(self, arguments: list[str], *, interrupt_at: str = "") -> Iterator[Output]:
        """Type a command, run it, and yield its output.

        Args:
            arguments: Arguments of `tokenlake`.
            interrupt_at: Regular expression; when the output matches, Ctrl-C is
                pressed. Empty: the command ends by itself.

        Raises:
            RuntimeError: The command failed, or was to be interrupted and was not.
        """
        yield from self._typed(" ".join(["tokenlake", *arguments]))
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self._folder)
            os.environ.update(
                TERM="xterm-256color", COLUMNS=str(self._columns), LINES=str(self._rows)
            )
            os.execv(sys.executable, [sys.executable, "-m", "tokenlake", *arguments])
        size = struct.pack("HHHH", self._rows, self._columns, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        try:
            yield from self._output(terminal, interrupt_at)
        finally:
            os.close(terminal)
            _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        expected = _INTERRUPTED if interrupt_at else 0
        if code != expected:
            raise RuntimeError(
                f"tokenlake {' '.join(arguments)}: got exit code {code}, expected {expected}"
            )

    def _typed(self, command: str) -> Iterator[Output]:
        """Yield a prompt and the letters of a command."""
        self._time += 0.8
        yield Output(self._time, "\x1b[32m$\x1b[0m ")
        for letter in command:
            self._time += _TYPING_SECONDS
            yield Output(self._time, letter)
        self._time += 0.5
        yield Output(self._time, "\r\n")

    def _output(self, terminal: int, interrupt_at: str) -> Iterator[Output]:
        """Yield the output of a program until it ends."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        start = time.monotonic()
        before = self._time
        press_at: float | None = None
        while True:
            ready, _, _ = select.select([terminal], [], [], _TURN_SECONDS)
            if press_at is not None and time.monotonic() >= press_at:
                os.write(terminal, CONTROL_C)
                press_at = None
            if not ready:
                continue
            try:
                received = os.read(terminal, _READ_BYTES)
            # The program has ended, and with it the other side of the terminal.
            except OSError:
                return
            if not received:
                return
            self._time = before + time.monotonic() - start
            text = decoder.decode(received).replace(str(self._folder), "/data")
            yield Output(self._time, text)
            if interrupt_at and re.search(interrupt_at, text):
                press_at = time.monotonic() + _REACTION_SECONDS
                interrupt_at = ""

"""Lines from a process that may fall silent: each is waited for, but not for ever."""

from __future__ import annotations

import os
import select
from typing import IO, Final, final

from tokenlake.errors import ConfigError

VARIABLE: Final = "TOKENLAKE_WORKER_SECONDS"
"""Environment variable: how many seconds a worker may be silent."""

_SECONDS: Final = 1800.0
_PIECE: Final = 1 << 16


class SilenceError(Exception):
    """Nothing came for too long. Never leaves this package."""


def patience() -> float:
    """Return how many seconds a worker may be silent; ConfigError where the environment says no number."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else _SECONDS
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 1e6:
        raise ConfigError(
            f"{VARIABLE}={text!r}: expected a number of seconds, more than 0 and at most 1000000"
        )
    return seconds


@final
class Lines:
    """The lines that come through a pipe; nobody else may read it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._rest = pipe, bytearray()

    def next(self, seconds: float) -> bytes:
        """Return the next line with its end; what was left without one, or b"", when there are no more.

        Raises:
            SilenceError: so many seconds went by without a byte.
            OSError, ValueError: the pipe is broken or closed.
        """
        looked = 0
        while (end := self._rest.find(b"\n", looked)) < 0:
            looked = len(self._rest)
            data = self._piece(seconds)
            if not data:
                line, self._rest = bytes(self._rest), bytearray()
                return line
            self._rest += data
        line = bytes(self._rest[: end + 1])
        del self._rest[: end + 1]
        return line

    def _piece(self, seconds: float) -> bytes:
        waiting = select.poll()
        waiting.register(self._pipe.fileno(), select.POLLIN)
        if not waiting.poll(seconds * 1000):
            raise SilenceError
        return os.read(self._pipe.fileno(), _PIECE)

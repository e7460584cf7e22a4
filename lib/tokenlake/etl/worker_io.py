"""What a worker reports and how its parent listens: lines from a process that may fall silent.

A user's function that never returns, or a tokenizer's regular expression that never ends, cannot be stopped from
inside. So a worker reports what it does before it begins, and the parent, which waits for each line but not for
ever, ends a silent worker and names the last report (see :mod:`tokenlake.etl.pool`).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, final

from tokenlake.errors import ConfigError
from tokenlake.sources.inputs import InputFile

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


_LISTENERS: Final[list[Callable[[str], None]]] = []
_TOLD: Final[list[str]] = ["beginning a job"]


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` told of everything from now on, in place of any other."""
    _LISTENERS[:] = [listener]


def begin(what: str, file: InputFile, positions: Sequence[int] | Any = ()) -> None:
    """Tell that something is about to be done with a file, or with the records at these positions of it."""
    if _LISTENERS:
        where = f", records from {int(positions[0])} to {int(positions[-1])}" if len(positions) else ""
        _TOLD[:] = [f"{what} {file.source}: {file.path}{where}"]
    for listener in _LISTENERS:
        listener(*_TOLD)


def last_told() -> str:
    """Return what was told last."""
    return _TOLD[0]

"""What a worker process is doing, reported before it begins, so that the parent can say where a stuck worker was.

A user's function that never returns, or a tokenizer's regular expression that never ends, cannot be
stopped from inside. The parent ends the process (see :mod:`tokenlake.etl.pool`) and names the last report. A worker
does one job at a time, so that there is one report at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tokenlake.sources.inputs import InputFile

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

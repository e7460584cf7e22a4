"""Activity of this process: a worker reports each one before it begins it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from tokenlake.etl.sources.inputs import InputFile

Progress: TypeAlias = Callable[[dict[str, Any]], None]
"""Function that receives increments of a job's bytes, documents and tokens and, at the
end of the job, the times of its steps.
"""

# Lists of one entry, because a module's own names cannot be assigned in a function
# without `global`.
_listeners: Final[list[Callable[[str], None]]] = []
"""The one listener of this process, or none."""

_last_activity: Final[list[str]] = ["beginning a job"]
"""The description of the activity that was begun last."""


def listen(listener: Callable[[str], None]) -> None:
    """Report every activity to `listener` from now on, instead of to an earlier one."""
    _listeners[:] = [listener]


def begin(what: str, file: InputFile, positions: Sequence[int] | Any = ()) -> None:
    """Report that an activity begins.

    Args:
        what: Verb of the activity, such as ``reading``.
        file: Input file that is processed.
        positions: Positions of the records that are processed, in their order; empty
            for the whole file.
    """
    # Only a worker listens: a process of tests, or of one build without workers, does
    # not format texts for nobody.
    if not _listeners:
        return
    records = ""
    if len(positions):
        records = f", records from {int(positions[0])} to {int(positions[-1])}"
    _last_activity[:] = [f"{what} {file.source}: {file.path}{records}"]
    for listener in _listeners:
        listener(_last_activity[0])


def last_told() -> str:
    """Return the description of the activity that was begun last."""
    return _last_activity[0]

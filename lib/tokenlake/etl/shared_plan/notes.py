"""Names of the objects beside a plan: leases, present workers and failures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from tokenlake.runtime.store.base import ObjectInfo
from tokenlake.runtime.store.layout import RUNS

WORK: Final = f"{RUNS}/units"
"""Folder of a shared plan, below the version."""

PLAN: Final = f"{WORK}/plan.json"
"""Path of the newest plan, below the version."""

Mark: TypeAlias = tuple[float | None, str, int]
"""Time of change, token and size of a listed object: an object that was changed has
another mark.
"""

NoteKind: TypeAlias = Literal["lease", "worker", "failed"]
"""Kinds of objects beside a plan, by the beginning of their names."""

# Keys of notes: the kind, and the number of the unit or the name of the worker.
_UNIT_NOTE: Final = re.compile(rf".*/{WORK}/(lease|failed)-(\d+)\.json")
_WORKER_NOTE: Final = re.compile(rf".*/{WORK}/(worker)-(.+)\.json")


def note_path(kind: NoteKind, name: str) -> str:
    """Return the path of a note, below the version.

    Args:
        kind: Kind of the note.
        name: Name of the worker, or number of the unit as :func:`unit_name` writes it.
    """
    return f"{WORK}/{kind}-{name}.json"


def unit_name(unit: int) -> str:
    """Return the number of a unit as paths have it."""
    return f"{unit:05d}"


def notes_of(infos: Iterable[ObjectInfo], kind: NoteKind) -> dict[str, Mark]:
    """Return the mark of each note of a kind.

    Args:
        infos: Listed objects of the folder :data:`WORK`.
        kind: Kind of the notes.

    Returns:
        Name of the worker, or number of the unit, to the mark of its note.
    """
    # Names of workers may hold anything; those of units are numbers.
    pattern = _UNIT_NOTE
    if kind == "worker":
        pattern = _WORKER_NOTE
    marks: dict[str, Mark] = {}
    for info in infos:
        match = pattern.fullmatch(info.key)
        if match is not None and match[1] == kind:
            marks[match[2]] = (info.modified, info.token, info.size)
    return marks

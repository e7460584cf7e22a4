"""Notes of failed units.

A worker that cannot build a unit writes a note of the error. The run that waits for the
unit removes the note, and the unit may be tried again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from tokenlake import errors
from tokenlake.base.secrets import hide
from tokenlake.etl.shared_plan.notes import note_path, notes_of, unit_name
from tokenlake.runtime.store.base import ObjectInfo, Store
from tokenlake.runtime.store.layout import Layout


def publish_failure(
    store: Store, layout: Layout, unit: int, error: errors.TokenlakeError
) -> None:
    """Write a note of the error of a unit, without secrets.

    An older note of the unit stays.
    """
    # The store may be read by more people than the worker's log.
    error_fields = errors.to_json(error)
    error_fields["message"] = hide(error_fields["message"])
    note = json.dumps(error_fields, default=str).encode()
    # The first error counts, as the run reports only one.
    with suppress(errors.VersionConflictError):
        store.put_new(_failure_key(layout, unit), note)


def failed_units(infos: Iterable[ObjectInfo]) -> set[int]:
    """Return the units that have a note of failure, among listed objects."""
    return {int(unit) for unit in notes_of(infos, "failed")}


def take_failure(
    store: Store, layout: Layout, unit: int, *, keep: bool = False
) -> errors.TokenlakeError | None:
    """Return the error with which a unit failed, and remove its note.

    Args:
        store: Store of the build.
        layout: Layout of the version.
        unit: Index of the unit.
        keep: Whether the note stays.

    Returns:
        The error; None if another process removed the note.
    """
    note_key = _failure_key(layout, unit)
    try:
        note = store.read(note_key)
        if not keep:
            store.delete(note_key)
    except errors.NotFoundError:
        return None
    # Other tools may write into the store: a damaged note still ends the unit.
    try:
        return errors.from_json(json.loads(note))
    except (ValueError, KeyError, TypeError):
        return errors.WorkerError(
            f"unit {unit} failed, and the record of its error is damaged", unit=unit
        )


def _failure_key(layout: Layout, unit: int) -> str:
    """Return the key of a unit's note of failure."""
    return layout.key(note_path("failed", unit_name(unit)))

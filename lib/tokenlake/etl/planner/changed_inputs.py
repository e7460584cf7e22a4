"""Differences between the inputs of two plans, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from tokenlake.etl.sources.inputs import InputFile
from tokenlake.runtime.store.ledger import InputFileEntry

Identified: TypeAlias = InputFile | InputFileEntry
"""An input file with its identity: source, path, size and token."""

_MOST_SHOWN: Final = 5
"""Number of inputs that a message names."""


def input_changes(
    wanted: Iterable[Identified], got: Iterable[Identified], *, added: bool = False
) -> list[str]:
    """Return a clause for each input that changed or vanished.

    Args:
        wanted: Inputs of the earlier plan.
        got: Inputs of the later plan.
        added: Whether new inputs count as changes too.
    """
    present = {(file.source, file.path): file for file in got}
    expected = {(file.source, file.path): file for file in wanted}
    changes: list[str] = []
    for key, file in expected.items():
        before = f"{file.size} bytes, {file.token}"
        now = "gone"
        current = present.get(key)
        if current is not None:
            now = f"{current.size} bytes, {current.token}"
        if now != before:
            changes.append(f"{file.path} of {file.source} is {now}; expected {before}")
    if added:
        new_keys = [key for key in present if key not in expected]
        changes.extend(f"{path} of {source} is new" for source, path in new_keys)
    hidden = len(changes) - _MOST_SHOWN
    if hidden > 0:
        return [*changes[:_MOST_SHOWN], f"and {hidden} more"]
    return changes

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
    # 1. Files of the earlier plan that are gone, or have another size or token.
    present_files = {(file.source, file.path): file for file in got}
    expected_files = {(file.source, file.path): file for file in wanted}
    changes: list[str] = []
    for file_key, file in expected_files.items():
        expected_state = f"{file.size} bytes, {file.token}"
        present_state = "gone"
        present_file = present_files.get(file_key)
        if present_file is not None:
            present_state = f"{present_file.size} bytes, {present_file.token}"
        if present_state != expected_state:
            changes.append(
                f"{file.path} of {file.source} is {present_state}; expected {expected_state}"
            )

    # 2. Files of the later plan alone.
    if added:
        for source, path in present_files:
            if (source, path) not in expected_files:
                changes.append(f"{path} of {source} is new")

    # 3. A message of a bounded length.
    hidden_count = len(changes) - _MOST_SHOWN
    if hidden_count > 0:
        return [*changes[:_MOST_SHOWN], f"and {hidden_count} more"]
    return changes

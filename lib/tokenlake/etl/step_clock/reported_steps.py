"""Steps of a unit as a worker reports them: fields of its progress, or a mark.

The fields of a step are its busy time under its own name, and ``.began`` and
``.ended``, all in microseconds. The step that raised the error of the unit also has
``.failed``. Of a worker that died there is only the mark of its last step.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, final

StepName: TypeAlias = Literal["load", "tokenize", "mix", "pack", "save"]
"""Name of a step."""

STEPS: Final[tuple[StepName, ...]] = ("load", "tokenize", "mix", "pack", "save")
"""All steps, in order. Load: inputs are read and parsed. Mix: rows of stored datasets
are put in order. Save: files are written and published.
"""

# Ends of fields that hold a point in time, or mark a step.
_TIME_SUFFIXES: Final = (".began", ".ended", ".failed")

_MARK: Final = struct.Struct("<Bq")
"""Layout of a mark: number of the step, from 1, and nanoseconds since 1970 of its
first begin.
"""

MARK_BYTES: Final = _MARK.size
"""Size of a mark."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of one attempt at a unit.

    Attributes:
        step_name: Name of the step.
        began: Time of its first begin, in seconds since 1970.
        ended: Time of its last end, in seconds since 1970.
        busy: Number of seconds between the two that were spent on this step.
        has_failed: Whether the unit's error was raised in this step.
    """

    step_name: StepName
    began: float
    ended: float
    busy: float
    has_failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for the details of an error."""
        return asdict(self)


def step_times(fields: Mapping[str, int]) -> tuple[StepTime, ...]:
    """Return the reported steps in order.

    Args:
        fields: Fields of a worker's progress; those of no step are ignored.
    """
    # A step that was not begun has no times.
    steps: list[StepTime] = []
    for step_name in STEPS:
        if f"{step_name}.began" not in fields:
            continue
        # Microseconds become seconds.
        step = StepTime(
            step_name=step_name,
            began=fields[f"{step_name}.began"] / 1e6,
            ended=fields[f"{step_name}.ended"] / 1e6,
            busy=fields.get(step_name, 0) / 1e6,
            has_failed=f"{step_name}.failed" in fields,
        )
        steps.append(step)
    return tuple(steps)


def countable(fields: Mapping[str, int]) -> dict[str, int]:
    """Return the fields that can be added up over several attempts at a unit.

    They are all except the times of its steps.
    """
    counted = [field for field in fields if not field.endswith(_TIME_SUFFIXES)]
    return {field: fields[field] for field in counted}


def mark_of(step_name: StepName, began: int) -> bytes:
    """Return a step and its first begin as bytes of a fixed size.

    They outlive the process that writes them.

    Args:
        step_name: Name of the step.
        began: Time of its first begin, in nanoseconds since 1970.
    """
    return _MARK.pack(1 + STEPS.index(step_name), began)


def step_of_mark(mark: bytes, ended: float) -> StepTime | None:
    """Return the step in which a process ended, None if it had begun none.

    Args:
        mark: Last mark of the process, see :attr:`StepClock.on_begin`; empty or zeros
            if it wrote none.
        ended: Time at which the process ended, in seconds since 1970.
    """
    if len(mark) < MARK_BYTES:
        return None
    number, begin_time = _MARK.unpack(mark[:MARK_BYTES])
    if number == 0:
        return None
    # The process reported no busy time, so the step counts as busy until its end.
    return StepTime(
        step_name=STEPS[number - 1],
        began=begin_time / 1e9,
        ended=ended,
        busy=ended - begin_time / 1e9,
        has_failed=True,
    )

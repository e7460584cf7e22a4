"""Events of a single unit, from its start to its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tokenlake.etl.step_clock.reported_steps import StepTime
from tokenlake.runtime.store.ledger import UnitRecord

Done: TypeAlias = tuple[int, int, int]
"""Input bytes, documents and tokens that `UnitProgress` events of a unit add up to."""

# Sums of a unit that has reported nothing.
_NOTHING_DONE: Final[Done] = (0, 0, 0)


# An attempt at a unit: its start, its progress, and one of two ends.


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """A worker began a unit.

    Attributes:
        unit: Index of the unit.
        source: Name of its source.
        bytes: Size of its input.
    """

    unit: int
    source: str
    bytes: int


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """More of a unit is done.

    Attributes:
        unit: Index of the unit.
        source: Name of its source.
        bytes: Input bytes since the last event of the unit.
        documents: Documents since the last event.
        tokens: Tokens since the last event.
    """

    unit: int
    source: str
    bytes: int
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """A unit has its ledger record.

    Attributes:
        unit: Index of the unit.
        source: Name of its source.
        bytes: Size of its input.
        record: Its ledger record.
        how: ``built`` now, ``resumed`` (an earlier run of this version finished it) or
            ``reused`` from another version.
        seconds: Wall time of the unit; 0 unless it was built now.
        progressed: Sums of the progress that was reported of it, failed attempts
            included.
        step_seconds: Seconds of each step of a unit that was built now: load, tokenize, mix,
            pack and save.
        steps: Times of these steps, as the worker measured them.
    """

    unit: int
    source: str
    bytes: int
    record: UnitRecord
    how: Literal["built", "resumed", "reused"]
    seconds: float = 0.0
    progressed: Done = _NOTHING_DONE
    step_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    steps: tuple[StepTime, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """One attempt at a unit ended with an error.

    Attributes:
        unit: Index of the unit.
        source: Name of its source.
        error: Message of the error.
        steps: Times of the steps of this attempt, as far as they are known; the step
            that raised the error is marked.
    """

    unit: int
    source: str
    error: str
    steps: tuple[StepTime, ...] = ()


# After an attempt that failed, unless the error is final.


@dataclass(frozen=True, slots=True)
class UnitRetried:
    """A unit will be tried again.

    Attributes:
        unit: Index of the unit.
        source: Name of its source.
        error: Message of the error that ended the last attempt.
        progressed: Sums of the progress of failed attempts, which is taken back.
    """

    unit: int
    source: str
    error: str
    progressed: Done = _NOTHING_DONE

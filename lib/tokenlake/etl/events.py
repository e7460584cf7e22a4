"""What a build tells whoever watches it.

A watcher is a plain callable, ``on_event(event)``. It is called from several threads and must return
quickly; what it raises is not caught.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tokenlake.etl.step_clock import StepTime
from tokenlake.runtime.store.ledger import UnitRecord

if TYPE_CHECKING:
    from tokenlake.config.stages import ObservabilityConfig


@dataclass(frozen=True, slots=True)
class BuildRequested:
    """The configuration is known, and how it wants to be watched; the first event where there is one."""

    observability: ObservabilityConfig


@dataclass(frozen=True, slots=True)
class BuildStep:
    """The next of several builds begins, where a configuration is more than one.

    Attributes:
        number, of: which one, from 1.
        what: ``tokens of code``, or ``the mixture``.
    """

    number: int
    of: int
    what: str


@dataclass(frozen=True, slots=True)
class Planning:
    """How far the plan is, a few times a second.

    Attributes:
        source: name of the source.
        step: ``listing`` (looking for files), ``hashing``, ``splitting`` (reading footers), ``counting``
            (records, up to `num_rows`).
        files, bytes: done so far.
        all_files, all_bytes: in all; 0 where that is not known yet.
    """

    source: str
    step: Literal["listing", "hashing", "splitting", "counting"]
    files: int
    all_files: int
    bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """Inputs are found and hashed.

    Attributes:
        source: name of the source.
        files: input files.
        bytes: their size.
    """

    source: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BuildPlanned:
    """The plan stands and its version is claimed.

    Attributes:
        dataset, version: what is being built.
        units: units of the plan.
        input_bytes: bytes of all units' inputs.
        pending: units still to build; the others were finished or reused.
        source_bytes: source name to bytes of its units' inputs.
    """

    dataset: str
    version: int
    units: int
    input_bytes: int
    pending: int
    source_bytes: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class EngineChosen:
    """The gate chose an engine for a tokenizer; ``reason`` says why."""

    tokenizer: str
    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """A worker began a unit of ``bytes`` input bytes."""

    unit: int
    source: str
    bytes: int


Done: TypeAlias = tuple[int, int, int]
"""Input bytes, documents and tokens that `UnitProgress` events reported."""

_NOTHING: Final[Done] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """More of a unit is done; all three are increments since its last event."""

    unit: int
    source: str
    bytes: int
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """A unit has its ledger record.

    Attributes:
        how: built now, found finished (`resumed`), or taken over from another version (`reused`).
        seconds: wall time of the unit, 0 unless built now.
        progressed: what was already reported of it, by attempts in vain as well.
        stages: of a unit built now, seconds by stage: load, tokenize, mix, pack and save.
        steps: Times of these stages, as the worker measured them.
    """

    unit: int
    source: str
    bytes: int
    record: UnitRecord
    how: Literal["built", "resumed", "reused"]
    seconds: float = 0.0
    progressed: Done = _NOTHING
    stages: Mapping[str, float] = field(default_factory=dict[str, float])
    steps: tuple[StepTime, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """One try of a unit ended with an error.

    Attributes:
        error: Message of the error.
        steps: Times of the stages of this try, as far as they are known. The one that raised the error says so.
    """

    unit: int
    source: str
    error: str
    steps: tuple[StepTime, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitRetried:
    """A unit will be tried again after an error worth a retry.

    Attributes:
        progressed: what was reported of attempts in vain, and is taken back.
    """

    unit: int
    source: str
    error: str
    progressed: Done = _NOTHING


@dataclass(frozen=True, slots=True)
class EngineCondemned:
    """An engine differed from the reference; its units are rebuilt with the reference.

    Attributes:
        undone: units that were finished, each as it was told; what they counted is taken back.
    """

    engine: str
    reason: str
    undone: tuple[UnitFinished, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The version is visible."""

    dataset: str
    version: int


Event: TypeAlias = (
    BuildRequested
    | BuildStep
    | Planning
    | Listed
    | BuildPlanned
    | EngineChosen
    | UnitStarted
    | UnitProgress
    | UnitFinished
    | UnitFailed
    | UnitRetried
    | EngineCondemned
    | Committed
)
Watcher: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A watcher that watches nothing."""

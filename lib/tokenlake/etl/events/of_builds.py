"""Events of a build as a whole: its plan, its tokenizer backends, its commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tokenlake.etl.events.of_units import UnitFinished

if TYPE_CHECKING:
    # A worker has no pydantic, with which sections of a configuration are defined.
    from tokenlake.config.stages import ObservabilityConfig


# Before the plan.


@dataclass(frozen=True, slots=True)
class BuildRequested:
    """The configuration was read; the first event of a build that has one.

    Attributes:
        observability: Section of the configuration that says how progress is shown.
    """

    observability: ObservabilityConfig


@dataclass(frozen=True, slots=True)
class BuildStep:
    """The next build begins, of a configuration that needs several.

    Attributes:
        number: Number of the build, from 1.
        of: Number of builds.
        what: Result of the build, ``tokens of code`` or ``the mixture``.
    """

    number: int
    of: int
    what: str


# The plan: these events come once or more for each source, and the last one once.


@dataclass(frozen=True, slots=True)
class Planning:
    """Progress of the plan, a few times a second.

    Attributes:
        source: Name of the source.
        step: ``listing`` (looking for files), ``hashing``, ``splitting`` (reading
            footers) or ``counting`` (records, up to `num_rows`).
        files: Number of files that are done.
        all_files: Number of all files; 0 where it is not known yet.
        bytes: Number of bytes that are done.
        all_bytes: Number of all bytes; 0 where it is not known yet.
    """

    source: str
    step: Literal["listing", "hashing", "splitting", "counting"]
    files: int
    all_files: int
    bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The input files of a source are found and hashed.

    Attributes:
        source: Name of the source.
        files: Number of input files.
        bytes: Size of all files.
    """

    source: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BuildPlanned:
    """The plan is complete and its version is claimed.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        units: Number of units of the plan.
        input_bytes: Bytes of the inputs of all units.
        pending: Number of units still to build; the others were finished before, or are
            reused.
        source_bytes: Bytes of the inputs of each source's units, by source name.
    """

    dataset: str
    version: int
    units: int
    input_bytes: int
    pending: int
    source_bytes: Mapping[str, int] = field(default_factory=dict[str, int])


# Work that is no unit, and the choice of tokenizer backends.


@dataclass(frozen=True, slots=True)
class Phase:
    """Work began that has no progress of its own, such as the start of workers.

    A build and the flow around it work at the same time. Each of them has one phase,
    which the next one replaces.

    Attributes:
        what: Work for people, ``starting 2 workers``; empty where the work is done.
        of: ``build``, or ``flow`` for the flow run around it.
    """

    what: str
    of: Literal["build", "flow"] = "build"


@dataclass(frozen=True, slots=True)
class BackendChosen:
    """The gate chose a backend for a tokenizer.

    Attributes:
        tokenizer: Name of the tokenizer.
        engine: Name of the backend.
        reason: Reason of the choice, for people.
    """

    tokenizer: str
    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class BackendDiscarded:
    """A backend differed from the reference.

    Its units are built again with the reference.

    Attributes:
        engine: Name of the backend.
        reason: Message of the error that found the difference.
        undone: Finished units that are taken back, each as it was reported.
    """

    engine: str
    reason: str
    undone: tuple[UnitFinished, ...] = ()


# The end.


@dataclass(frozen=True, slots=True)
class Committed:
    """The version is visible.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
    """

    dataset: str
    version: int

"""The type of a build's watcher, and of all events that it receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tokenlake.etl.events.of_builds import (
    BackendChosen,
    BackendDiscarded,
    BuildPlanned,
    BuildRequested,
    BuildStep,
    Committed,
    Listed,
    Phase,
    Planning,
)
from tokenlake.etl.events.of_units import (
    UnitFailed,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    UnitStarted,
)

# In the order in which a build emits them.
Event: TypeAlias = (
    BuildRequested
    | BuildStep
    | Planning
    | Listed
    | BuildPlanned
    | Phase
    | BackendChosen
    | UnitStarted
    | UnitProgress
    | UnitFinished
    | UnitFailed
    | UnitRetried
    | BackendDiscarded
    | Committed
)
"""An event of a build."""

Watcher: TypeAlias = Callable[[Event], None]
"""A callable that receives the events of a build."""


def ignore(event: Event) -> None:
    """Do nothing with an event."""

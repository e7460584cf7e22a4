"""How a flow is given an engine that somebody else started: the launcher, or the flow that called it.

Parameters of a flow must be JSON, so an engine cannot be one. A context variable holds it for the one
call that is made with it; every other run finds none and starts its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tokenlake.prefect.tasks.engine import LocalEngine
from tokenlake.prefect.tasks.steps import LocalSteps

_PREPARED: ContextVar[LocalEngine | LocalSteps | None] = ContextVar("tokenlake_engine", default=None)


@contextmanager
def prepared(engine: LocalEngine | LocalSteps) -> Generator[None]:
    """Flows called inside use ``engine``."""
    token = _PREPARED.set(engine)
    try:
        yield
    finally:
        _PREPARED.reset(token)


def take_engine() -> LocalEngine | None:
    """The engine of one build given by :func:`prepared`, if any."""
    found = _PREPARED.get()
    return found if isinstance(found, LocalEngine) else None


def take_steps() -> LocalSteps | None:
    """The engines of several builds given by :func:`prepared`, if any."""
    found = _PREPARED.get()
    return found if isinstance(found, LocalSteps) else None

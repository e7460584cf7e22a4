"""The engine that a command has made ready for the flow that it calls."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tokenlake.runs.engine import LocalEngine

# Parameters of a flow must be JSON, so an engine cannot be one. A context variable
# holds it for the one call that is made with it; every other run finds none and starts
# its own.
_PREPARED: ContextVar[LocalEngine | None] = ContextVar("tokenlake_engine", default=None)


@contextmanager
def prepared(engine: LocalEngine) -> Generator[None]:
    """Have flows that are called inside use ``engine``."""
    token = _PREPARED.set(engine)
    try:
        yield
    finally:
        _PREPARED.reset(token)


def take_engine() -> LocalEngine | None:
    """Return the engine given by :func:`prepared`, if any."""
    return _PREPARED.get()

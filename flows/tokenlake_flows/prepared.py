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
    former_value = _PREPARED.set(engine)
    try:
        yield
    finally:
        _PREPARED.reset(former_value)


def take_engine() -> LocalEngine | None:
    """Return the engine of :func:`prepared`, None in any other run."""
    return _PREPARED.get()

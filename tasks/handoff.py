"""How ``flows.launch`` gives a flow the engine that it started while Prefect was still being imported.

Parameters of a flow must be JSON, so an engine cannot be one. A context variable holds it for the one
call that the launcher makes; every other run finds none and starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tasks.engine import LocalEngine

_PREPARED: ContextVar[LocalEngine | None] = ContextVar("tokenlake_engine", default=None)


@contextmanager
def prepared(engine: LocalEngine) -> Iterator[None]:
    """Flows called inside use ``engine``."""
    token = _PREPARED.set(engine)
    try:
        yield
    finally:
        _PREPARED.reset(token)


def take_prepared() -> LocalEngine | None:
    """The engine given by :func:`prepared`, if any."""
    return _PREPARED.get()

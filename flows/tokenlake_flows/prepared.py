"""Build run that a command has prepared for the flow that it calls."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tokenlake.runs.build_run import BuildRun

# Parameters of a flow must be JSON, so a build run cannot be one. A context variable
# holds it during the call of the flow. In any other run the variable is None, and the
# flow starts a build run itself.
_PREPARED: ContextVar[BuildRun | None] = ContextVar("tokenlake_build_run", default=None)


@contextmanager
def prepared(build_run: BuildRun) -> Generator[None]:
    """Have flows that are called inside use a prepared build run."""
    former_value = _PREPARED.set(build_run)
    try:
        yield
    finally:
        _PREPARED.reset(former_value)


def take_prepared() -> BuildRun | None:
    """Return the build run of :func:`prepared`; None in any other run."""
    return _PREPARED.get()

"""The builds that one configuration is where text is mixed: the tokens of each source, then the mixture.

One engine each, one after the other, on one pool of workers. Like the engine, this module knows nothing of Prefect.

How a flow is given an engine that somebody else started: the launcher, or the flow that called it.

Parameters of a flow must be JSON, so an engine cannot be one. A context variable holds it for the one
call that is made with it; every other run finds none and starts its own.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, final

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.steps import first_steps, foreseen, last_step
from tokenlake.errors import CancelledError
from tokenlake.etl.events import BuildStep, Watcher, ignore
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import BuildResult
from tokenlake.prefect.engine import LocalEngine
from tokenlake.threads import available_cpus

_CANCELLED: Final = "the run was cancelled; what is finished stays, and the same command resumes it"


@final
@dataclass(frozen=True, slots=True)
class FirstStep:
    """The build of one source's tokens.

    Attributes:
        engine: does it.
        config: what it builds, as a parameter of the flow `tokenize`: JSON, secrets as references.
    """

    engine: LocalEngine
    config: dict[str, Any]


@final
class LocalSteps:
    """All builds of one configuration on this machine. The first of them starts with the object, in the background.

    Args:
        config: what to build.
        workers: worker processes; None: one per core that this process may use.
        on_event: told everything that happens, from several threads.

    Raises:
        ConfigError: a step is wrong, the last one too: hours of tokens must not come before that is known.
    """

    def __init__(
        self, config: PipelineConfig, *, workers: int | None = None, on_event: Watcher = ignore
    ) -> None:
        self.config = config
        self.workers = workers or available_cpus()
        self._sources = first_steps(config)
        foreseen(config)
        self._on_event = on_event
        self._versions: dict[str, int] = {}
        self._notes: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._cancelled = False
        self._engine: LocalEngine | None = None
        self._pool = WorkerPool(self.workers)
        self._ahead: LocalEngine | None = self._open()

    def first(self) -> Iterator[FirstStep]:
        """Yield a step for each source that is text still; each must be committed before the next is asked for."""
        for source, config in self._sources.items():
            engine = self._take()
            yield FirstStep(engine, config.model_dump(mode="json", exclude_unset=True))
            made = engine.result()
            self._versions[source], self._notes = made.version, self._notes + made.notes

    def last(self) -> LocalEngine:
        """The build of the mixture, the first steps being done."""
        return self._take()

    def result(self) -> BuildResult:
        """What the commit of the last step returned."""
        assert self._engine is not None
        last = self._engine.result()
        return replace(last, notes=self._notes + last.notes)

    def pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        return self._pool.pids()

    def cancel(self) -> None:
        """Kill the workers at once, whatever step they are at. Finished units stay."""
        with self._lock:
            self._cancelled = True
            engine = self._engine
        if engine is not None:
            engine.cancel()
        self._pool.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.cancel()
        self._pool.close()

    def _take(self) -> LocalEngine:
        engine, self._ahead = self._ahead or self._open(), None
        return engine

    def _open(self) -> LocalEngine:
        """Start the next step."""
        number, names = len(self._versions), list(self._sources)
        source = names[number] if number < len(names) else None
        if names:
            what = "the mixture" if source is None else f"tokens of {source}"
            self._on_event(BuildStep(number + 1, len(names) + 1, what))
        config = last_step(self.config, self._versions) if source is None else self._sources[source]
        with self._lock:
            if self._cancelled:
                raise CancelledError(_CANCELLED)
            self._engine = LocalEngine(config, on_event=self._on_event, pool=self._pool)
            return self._engine


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

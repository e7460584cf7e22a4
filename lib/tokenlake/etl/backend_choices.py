"""The tokenizer backend of every source of one build."""

from __future__ import annotations

import threading
from typing import final

from tokenlake.base import numbers
from tokenlake.etl.events.of_builds import BackendChosen, Phase
from tokenlake.etl.events.watcher import Watcher
from tokenlake.etl.job.messages import NO_BACKEND, REFERENCE
from tokenlake.etl.plan.plan import Plan, PlannedUnit, TextUnit
from tokenlake.etl.pool import Pool
from tokenlake.runtime.store.layout import Layout


@final
class BackendChoices:
    """The tokenizer backend of every source of one build; thread-safe.

    Args:
        plan: Plan of the build.
        layout: Layout of the version, which has the tokenizers' files.
        watcher: Function that receives each choice.

    Attributes:
        condemned: Backends that differed from the reference once. They are no longer
            used.
    """

    def __init__(self, plan: Plan, layout: Layout, watcher: Watcher) -> None:
        self._plan = plan
        self._layout = layout
        self._emit = watcher
        self._lock = threading.Lock()
        self._chosen: dict[str, str] = {}
        self.condemned: set[str] = set()

    def choose(self, unit: PlannedUnit, pool: Pool) -> str:
        """Return the backend of a unit's source.

        The first call for a source runs the gate in a worker.
        """
        # Stored rows and imported ids are not tokenized.
        if not isinstance(unit, TextUnit):
            return NO_BACKEND
        if self._plan.source(unit.source).tokens is not None:
            return NO_BACKEND
        # Threads that ask for the same source wait for the gate. A choice may have been
        # condemned since.
        with self._lock:
            if unit.source not in self._chosen:
                self._chosen[unit.source] = self._probe(unit, pool)
            backend = self._chosen[unit.source]
            if backend in self.condemned:
                return REFERENCE
            return backend

    def _probe(self, unit: TextUnit, pool: Pool) -> str:
        """Return the backend that the gate chooses in a worker.

        The start of the worker and the gate take up to two seconds each.
        """
        worker_count = min(pool.workers, len(self._plan.units))
        if not self._chosen:
            self._emit(Phase(f"starting {numbers.plural(worker_count, 'worker')}"))

        def on_progress(_: dict[str, int]) -> None:
            # The worker has started.
            self._emit(Phase(f"probing the tokenizer of {unit.source}"))

        verdict = pool.run(self._plan.backend_job(unit, self._layout), on_progress)
        tokenizer = self._plan.tokenizers[unit.source].files.name
        self._emit(BackendChosen(tokenizer, verdict["engine"], verdict["reason"]))
        self._emit(Phase(""))
        return verdict["engine"]

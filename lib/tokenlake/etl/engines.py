"""Which engine each source's units run with: chosen once by the gate, dropped once condemned."""

from __future__ import annotations

import threading
from typing import final

from tokenlake.etl.events import EngineChosen, Watcher
from tokenlake.etl.job import NO_ENGINE, REFERENCE
from tokenlake.etl.plan.plan import Plan, PlannedUnit, TextUnit
from tokenlake.etl.pool import WorkerPool
from tokenlake.store.address import StoreAddress
from tokenlake.store.layout import Layout


@final
class Engines:
    """The engine of every source of one build; thread-safe.

    Args:
        store, layout: where the tokenizers' files are.
    """

    def __init__(self, plan: Plan, store: StoreAddress, layout: Layout, watcher: Watcher) -> None:
        self._plan, self._store, self._layout = plan, store, layout
        self._emit = watcher
        self._lock = threading.Lock()
        self._chosen: dict[str, str] = {}
        self._condemned: set[str] = set()

    def choose(self, unit: PlannedUnit, pool: WorkerPool) -> str:
        """The engine for a unit's source; the first call for a source runs the gate in a worker."""
        if not isinstance(unit, TextUnit):
            return NO_ENGINE
        with self._lock:
            if unit.source not in self._chosen:
                self._chosen[unit.source] = self._ask(unit, pool)
            engine = self._chosen[unit.source]
            return REFERENCE if engine in self._condemned else engine

    def is_condemned(self, engine: str) -> bool:
        return engine in self._condemned

    def condemn(self, engine: str) -> bool:
        """Never use an engine again in this build; False if that was so already."""
        if engine == REFERENCE or engine in self._condemned:
            return False
        self._condemned.add(engine)
        return True

    def _ask(self, unit: TextUnit, pool: WorkerPool) -> str:
        verdict = pool.run(self._plan.engine_job(unit, self._store, self._layout))
        name = self._plan.tokenizers[unit.source].files.name
        self._emit(EngineChosen(name, verdict["engine"], verdict["reason"]))
        return verdict["engine"]

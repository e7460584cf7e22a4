"""Which engine each source's units run with: chosen once by the gate, dropped once condemned."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, final

from tokenlake.etl.events import EngineChosen, Watcher
from tokenlake.etl.job import EngineJob
from tokenlake.etl.plan.text import Plan
from tokenlake.etl.plan.units import WorkUnit
from tokenlake.etl.pool import WorkerPool
from tokenlake.store.address import StoreAddress

REFERENCE: Final = "tokenizers"


@final
class Engines:
    """The engine of every source of one build; thread-safe.

    Args:
        prefixes: source -> key prefix of its tokenizer files in the store.
    """

    def __init__(
        self, plan: Plan, store: StoreAddress, prefixes: Mapping[str, str], watcher: Watcher
    ) -> None:
        self._plan = plan
        self._store = store
        self._prefixes = prefixes
        self._emit = watcher
        self._lock = threading.Lock()
        self._chosen: dict[str, str] = {}
        self._condemned: set[str] = set()

    def choose(self, unit: WorkUnit, pool: WorkerPool) -> str:
        """The engine for a unit's source; the first call for a source runs the gate in a worker."""
        with self._lock:
            if unit.source not in self._chosen:
                self._chosen[unit.source] = self._ask(unit, pool)
            engine = self._chosen[unit.source]
            return REFERENCE if engine in self._condemned else engine

    def tokenizer_prefix(self, source: str) -> str:
        """Key prefix of a source's tokenizer files in the store."""
        return self._prefixes[source]

    def is_condemned(self, engine: str) -> bool:
        return engine in self._condemned

    def condemn(self, engine: str) -> bool:
        """Never use an engine again in this build; False if that was so already."""
        if engine == REFERENCE or engine in self._condemned:
            return False
        self._condemned.add(engine)
        return True

    def _ask(self, unit: WorkUnit, pool: WorkerPool) -> str:
        job = EngineJob(
            store=self._store,
            tokenizer=self.tokenizer_prefix(unit.source),
            tokenizer_files=self._plan.tokenizers[unit.source].facts["files"],
            source=self._plan.source(unit.source),
            ranges=unit.ranges,
        )
        verdict = pool.run(job.to_json())
        name = self._plan.tokenizers[unit.source].files.name
        self._emit(EngineChosen(name, verdict["engine"], verdict["reason"]))
        return verdict["engine"]

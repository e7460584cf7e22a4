"""Building units again, beside the store: in a folder of its own, with the layout of the version.

What comes out is compared before any of it goes near the store. The parents of a mixture are read where they are.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, final

from tokenlake.build.commit import publish_preamble
from tokenlake.build.engines import REFERENCE
from tokenlake.build.events import Watcher
from tokenlake.build.pool import WorkerPool
from tokenlake.build.project import Project, Work
from tokenlake.build.runlog import RunLog
from tokenlake.build.textproject import TextWork
from tokenlake.errors import TokenlakeError, WorkerDiedError
from tokenlake.manifest import UnitRecord
from tokenlake.storage import Layout, LocalStore, StoreAddress

_TRIES: Final = 3
_PREFIX: Final = "tokenlake-repair-"

OnBytes = Callable[[int], None]


@final
class Workshop:
    """Where units are built again; a context, whose files are gone after it.

    Attributes:
        store: what was built lies there, under the version's own keys.
    """

    def __init__(self, project: Project, layout: Layout, watcher: Watcher) -> None:
        self._project, self._layout, self._watcher = project, layout, watcher
        # Only its context may remove it: a report of a failure must not lose what was built.
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self.store = LocalStore(self._folder.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def build(
        self, units: Mapping[int, tuple[int, str | None]], workers: int, on_bytes: OnBytes
    ) -> dict[int, UnitRecord | TokenlakeError]:
        """Build units.

        Args:
            units: unit of the version -> (index in the plan, engine that encoded it; None: not known).
            workers: processes, at most.
            on_bytes: told of input bytes worked through, from several threads.

        Returns:
            Unit -> its record as it is now, or why it could not be built.
        """
        publish_preamble(self.store, self._project, self._layout)
        log = RunLog(self.store, self._layout)
        work = self._project.begin(StoreAddress(self.store.url), self._layout, log, self._watcher)
        count = max(1, min(workers, len(units)))
        with WorkerPool(count) as pool, ThreadPoolExecutor(count, "tokenlake-repair") as threads:
            try:
                futures = {
                    unit: threads.submit(self._one, unit, index, engine, work, pool, on_bytes)
                    for unit, (index, engine) in units.items()
                }
                return {unit: future.result() for unit, future in futures.items()}
            except BaseException:
                pool.cancel()
                raise

    def _one(
        self, unit: int, index: int, engine: str | None, work: Work, pool: WorkerPool, on_bytes: OnBytes
    ) -> UnitRecord | TokenlakeError:
        def progress(fields: Mapping[str, int]) -> None:
            on_bytes(fields["bytes"])

        try:
            for attempt in range(_TRIES):
                # Files are named by the unit's place in the version, which may be another one in the plan.
                job = {**_job(work, index, engine, pool), "unit": unit}
                try:
                    return UnitRecord.from_json(pool.run(job, progress))
                except WorkerDiedError:
                    if attempt == _TRIES - 1:
                        raise
                except TokenlakeError as error:
                    if work.redo(error, job, {}) is None:
                        raise
                    engine = REFERENCE
        except TokenlakeError as error:
            return error
        raise AssertionError("unreachable")


def _job(work: Work, index: int, engine: str | None, pool: WorkerPool) -> dict[str, Any]:
    """Return the job of a unit, with the engine of then if there is one: which one it is changes no id."""
    if engine is None or not isinstance(work, TextWork):
        return work.job(index, pool)
    installed = importlib.util.find_spec(engine) is not None
    return work.job_with(index, engine if installed else REFERENCE).to_json()

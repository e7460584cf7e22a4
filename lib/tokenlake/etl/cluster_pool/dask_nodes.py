"""Slots in the threads of Dask's workers."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from typing import Any, Final, final

from tokenlake import errors
from tokenlake.base.threads import available_cpus
from tokenlake.etl.cluster_pool.slots import Slot, SlotLostError

# The slot of each thread of a Dask worker, and all slots of its process.
_THREAD: Final = threading.local()
_SLOTS_OF_PROCESS: Final[list[Slot]] = []


def run_here(preflight: bytes, line: bytes) -> bytes:
    """Run a job in the slot of this thread of a Dask worker, and return the answer.

    See :meth:`Slot.run`.
    """
    if not hasattr(_THREAD, "slot"):
        _THREAD.slot = Slot()
        _SLOTS_OF_PROCESS.append(_THREAD.slot)
    return _THREAD.slot.run(preflight, line)


def close_here() -> None:
    """End the slots of this Dask worker."""
    while _SLOTS_OF_PROCESS:
        _SLOTS_OF_PROCESS.pop().close()
    _THREAD.__dict__.clear()


@final
class DaskNodes:
    """Dask cluster. Each job is a task, which runs in the slot of one thread.

    Args:
        workers: Number of jobs at a time; None for one for each thread of the cluster.

    Raises:
        MissingExtraError: Dask is not installed.
    """

    def __init__(self, workers: int | None) -> None:
        try:
            import distributed
            from dask import config as settings
        except ModuleNotFoundError as error:
            raise errors.MissingExtraError(
                "the executor dask needs distributed, which is not installed: pip install 'tokenlake[dask]'"
            ) from error
        # The cluster of the address, or one on this machine with a thread in each
        # process, as a slot is one process anyway.
        address: str | None = settings.get("scheduler-address", None)
        self._worker_died: Any = distributed.KilledWorker
        self._client: Any
        if address:
            self._client = distributed.Client(address)
        else:
            self._client = distributed.Client(
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                n_workers=workers or available_cpus(),
                silence_logs=logging.ERROR,
            )
        self._is_own_cluster = not address
        self.workers = workers or sum(self._client.nthreads().values()) or 1
        self._running_tasks: dict[int, Any] = {}

    def room(self) -> int:
        # Tasks for which there is no room wait with Dask's scheduler.
        return self.workers

    def start(self) -> Any:
        # Dask chooses the thread, so a slot is only a name of a running task.
        return object()

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        # With pure=False, Dask does not take equal jobs for one task.
        task = self._client.submit(run_here, preflight, line, pure=False)
        self._running_tasks[id(slot)] = task
        try:
            return task.result()
        except (self._worker_died, FutureCancelledError) as error:
            raise SlotLostError(str(error).strip().splitlines()[0]) from error
        finally:
            self._running_tasks.pop(id(slot), None)

    def end(self, slot: Any) -> None:
        task = self._running_tasks.get(id(slot))
        if task is not None:
            task.cancel()

    def close(self) -> None:
        # Workers may be gone, or stuck.
        with suppress(OSError, TimeoutError):
            self._client.run(close_here)
        self._client.close()
        if self._is_own_cluster and self._client.cluster is not None:
            self._client.cluster.close()

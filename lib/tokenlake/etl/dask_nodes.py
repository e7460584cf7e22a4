"""Slots on a Dask cluster: one for each thread of its workers, which does a job as a task.

``DASK_SCHEDULER_ADDRESS``, or Dask's own configuration, names the cluster; without it one is started on this machine,
and ends with the build.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from typing import Any, Final, final

from tokenlake.errors import MissingExtraError
from tokenlake.etl.cluster_pool import Slot, SlotLostError
from tokenlake.threads import available_cpus

_HERE: Final = threading.local()
_SLOTS: Final[list[Slot]] = []


def run_here(preflight: bytes, line: bytes) -> bytes:
    """Do a job in the slot of this thread of a worker of Dask."""
    if not hasattr(_HERE, "slot"):
        _HERE.slot = Slot()
        _SLOTS.append(_HERE.slot)
    return _HERE.slot.run(preflight, line)


def close_here() -> None:
    """End the slots of this worker of Dask."""
    while _SLOTS:
        _SLOTS.pop().close()
    _HERE.__dict__.clear()


@final
class DaskNodes:
    """Tasks of Dask.

    Args:
        workers: how many at a time; None: one for each thread of the cluster.

    Raises:
        MissingExtraError: Dask is not installed.
    """

    def __init__(self, workers: int | None) -> None:
        try:
            import distributed
            from dask import config as settings
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "the Dask engine needs distributed, which is not installed: pip install 'tokenlake[dask]'"
            ) from error
        address: str | None = settings.get("scheduler-address", None)
        self._lost: Any = distributed.KilledWorker
        self._client: Any = (
            distributed.Client(address)
            if address
            else distributed.Client(
                n_workers=workers or available_cpus(),
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.ERROR,
            )
        )
        self._ours = not address
        self.workers = workers or sum(self._client.nthreads().values()) or 1
        self._running: dict[int, Any] = {}

    def room(self) -> int:
        return self.workers  # tasks wait with Dask's scheduler

    def start(self) -> Any:
        return object()

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        future = self._running[id(slot)] = self._client.submit(run_here, preflight, line, pure=False)
        try:
            return future.result()
        except (self._lost, FutureCancelledError) as error:
            raise SlotLostError(str(error).strip().splitlines()[0]) from error
        finally:
            self._running.pop(id(slot), None)

    def end(self, slot: Any) -> None:
        if (future := self._running.get(id(slot))) is not None:
            future.cancel()

    def close(self) -> None:
        with suppress(OSError, TimeoutError):  # of workers that are gone, or stuck
            self._client.run(close_here)
        self._client.close()
        if self._ours and self._client.cluster is not None:
            self._client.cluster.close()

"""Slots of a cluster, and the cluster as a pool sees it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol, cast, final

from tokenlake import errors
from tokenlake.etl.job.lines import WorkerAnswer, job_of, to_line
from tokenlake.etl.job.messages import Job
from tokenlake.etl.pool import WorkerPool


@final
class Slot:
    """Worker process, owned by a process of the cluster."""

    def __init__(self) -> None:
        self._pool = WorkerPool(1)
        self._passed_preflights: set[bytes] = set()

    def run(self, preflight: bytes, line: bytes) -> bytes:
        """Return the answer to a job, as a line.

        Args:
            preflight: Line of a job that is done first, unless this slot has done it
                before; may be empty.
            line: Line of the job.
        """
        progress: Counter[str] = Counter()
        try:
            if preflight and preflight not in self._passed_preflights:
                self._pool.run(cast("Job", job_of(preflight)))
                self._passed_preflights.add(preflight)
            result = self._pool.run(cast("Job", job_of(line)), progress.update)
        except errors.TokenlakeError as error:
            # Errors travel as JSON, like results. An answer needs resident bytes, which
            # nobody reads here.
            error_fields = errors.to_json(error)
            answer = WorkerAnswer(progress=dict(progress), rss=1, error=error_fields)
        else:
            answer = WorkerAnswer(progress=dict(progress), rss=1, result=result)
        return to_line(answer)

    def close(self) -> None:
        """End the worker process."""
        self._pool.close()


class SlotLostError(Exception):
    """The process or the node of a slot is gone. It never leaves this package."""


class Nodes(Protocol):
    """Cluster, in which slots are started.

    Attributes:
        workers: Number of slots that the cluster has room for.
    """

    workers: int

    def room(self) -> int:
        """Return the number of slots for which there is room now.

        It includes existing ones. Clusters grow and shrink.
        """
        ...

    def start(self) -> Any:
        """Return a new slot, which may still be starting."""
        ...

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        """Return a slot's answer to a job, see :meth:`Slot.run`.

        Raises:
            SlotLostError: The slot is gone or was ended.
        """
        ...

    def end(self, slot: Any) -> None:
        """End a slot, also one that runs a job or is gone."""
        ...

    def close(self) -> None:
        """Leave the cluster, and end everything that was started of it."""
        ...

"""The workers of a build on the nodes of a cluster of Ray's or Dask's: slots, each with a worker process of its own.

A slot is this library's :class:`WorkerPool` of one process, on whatever node; a job goes to it as a line of JSON, and
the answer comes as one. With it goes what a machine must have (:class:`~tokenlake.etl.job.PreflightJob`), at which each
slot looks once. So a cluster's system moves a few short texts for each unit, and knows nothing of units. A slot
whose node died is replaced, and its job fails as that of a dead worker does: whoever asked tries it again.

``RAY_ADDRESS``, and ``DASK_SCHEDULER_ADDRESS`` or Dask's own configuration, name the cluster; without them one is
started on this machine, and ends with the build.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from typing import Any, Final, Protocol, cast, final

from tokenlake import errors
from tokenlake.base.threads import available_cpus
from tokenlake.config.stages import RayConfig
from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.lines import WorkerAnswer, answer_of, job_of, to_line
from tokenlake.etl.job.messages import NO_ENGINE, EngineJob, Job, PreflightJob, SignJob, UnitJob
from tokenlake.etl.job.versions import produced_by
from tokenlake.etl.pool import Jobs, Pool, WorkerPool
from tokenlake.etl.shared_plan.open_jobs import check_open

_LOOK: Final = 2.0  # seconds between two looks at whether the cluster has grown, or a slot has lost its place


@final
class Slot:
    """A worker process, in a process of the cluster's."""

    def __init__(self) -> None:
        self._pool = WorkerPool(1)
        self._passed: set[bytes] = set()

    def run(self, preflight: bytes, line: bytes) -> bytes:
        """Do the job of a line, after that of a preflight that was not done here before; the answer is a line, too."""
        told: Counter[str] = Counter()
        try:
            if preflight and preflight not in self._passed:
                self._pool.run(cast("Job", job_of(preflight)))
                self._passed.add(preflight)
            answer: dict[str, Any] = {"result": self._pool.run(cast("Job", job_of(line)), told.update)}
        except errors.TokenlakeError as error:
            answer = {"error": errors.to_json(error)}
        return to_line(WorkerAnswer(progress=dict(told), rss=1, **answer))

    def close(self) -> None:
        """End the process."""
        self._pool.close()


class SlotLostError(Exception):
    """The process or the node of a slot is gone. Never leaves this package."""


class Nodes(Protocol):
    """A cluster: where slots are.

    Attributes:
        workers: slots that it has room for.
    """

    workers: int

    def room(self) -> int:
        """Return for how many slots there is room now, those that are there included: clusters grow and shrink."""
        ...

    def start(self) -> Any:
        """Return a new slot, which may still be starting."""
        ...

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        """Have a slot do a job, as :meth:`Slot.run` does; SlotLostError where it is gone, or was ended."""
        ...

    def end(self, slot: Any) -> None:
        """End a slot, also one that is at a job, or gone."""
        ...

    def close(self) -> None:
        """Leave the cluster, and end what was started of it."""
        ...


@final
class ClusterPool(Pool):
    """A pool whose workers are slots of a cluster; they start as they are needed.

    Args:
        open_nodes: joins the cluster, or starts one.
    """

    def __init__(self, open_nodes: Callable[[], Nodes]) -> None:
        self._nodes = open_nodes()
        self.workers = self._nodes.workers
        self._changed = threading.Condition()
        self._all: list[Any] = []
        self._idle: list[Any] = []
        self._cancelled = False
        self._chosen: dict[str, tuple[EngineJob, str]] = {}
        self._preflights: dict[tuple[str, ...], bytes] = {}

    def expect(self, count: int, jobs: Jobs = tuple) -> None:
        """Start the slots that so many jobs need."""
        with self._changed:
            for _ in range(len(self._all), 0 if self._cancelled else min(count, self._most())):
                self._start_one()

    def run(self, job: Job, on_progress: Progress | None = None) -> Any:
        """Do one job in one slot; what is done of it is told at its end.

        Raises:
            ConfigError: the job holds secrets, or a machine of the cluster would make other bytes.
            WorkerDiedError: the slot or its worker is gone; the job may be tried again.
            CancelledError: :meth:`cancel` was called.
            TokenlakeError: what the job itself raised, rebuilt.
        """
        line, preflight = to_line(job), self._preflight(job)
        check_open(line.decode())
        slot = self._borrow()
        try:
            answer = answer_of(self._nodes.ask(slot, preflight, line))
        except BaseException as error:
            self._nodes.end(slot)
            with self._changed, suppress(ValueError):
                self._all.remove(slot)
                self._changed.notify()
            if self._cancelled:
                raise errors.CancelledError("the build was cancelled; run it again to resume") from None
            if isinstance(error, SlotLostError):
                raise errors.WorkerDiedError(f"a worker on the cluster is gone: {error}") from error
            raise
        with self._changed:
            self._idle.append(slot)
            self._changed.notify()
        if answer.progress and on_progress is not None:
            on_progress(answer.progress)
        if answer.error is not None:
            raise errors.from_json(answer.error)
        if isinstance(job, EngineJob):
            self._chosen[job.source.name] = job, answer.result["engine"]
        return answer.result

    def _preflight(self, job: Job) -> bytes:
        """Return the line of what a machine must have for a unit; an empty one for what is no unit."""
        if isinstance(job, EngineJob | PreflightJob | SignJob):
            return b""
        engine, source = (job.engine, job.source.name) if isinstance(job, UnitJob) else (None, "")
        key = (job.store.url, job.dataset, str(job.version), source, engine or "")
        if key not in self._preflights:
            probe, chosen = self._chosen.get(source, (None, NO_ENGINE))
            where: Any = {"store": job.store, "dataset": job.dataset, "version": job.version}
            versions = produced_by() | produced_by(engine)
            found = PreflightJob(versions=versions, probe=probe, engine=chosen, **where)
            self._preflights[key] = to_line(found)
        return self._preflights[key]

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            slots, self._all, self._idle = self._all, [], []
            self._changed.notify_all()
        for slot in slots:
            self._nodes.end(slot)

    def close(self) -> None:
        self.cancel()
        self._nodes.close()

    def _most(self) -> int:
        """Return how many slots there may be: one without room would wait for it, and a unit with it."""
        return max(1, min(self.workers, self._nodes.room()))

    def _start_one(self) -> None:
        slot = self._nodes.start()
        self._all.append(slot)
        self._idle.append(slot)

    def _borrow(self) -> Any:
        with self._changed:
            while not self._idle and not self._cancelled:
                if len(self._all) < self._most():
                    self._start_one()
                else:
                    self._changed.wait(_LOOK)
            if self._cancelled:
                raise errors.CancelledError("the build was cancelled; run it again to resume")
            return self._idle.pop()


@final
class RayNodes:
    """Actors of Ray, with the resources that the configuration reserves for each.

    Args:
        section: what each reserves.
        workers: how many; None: as the section says.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: the cluster has room for none.
    """

    def __init__(self, section: RayConfig, workers: int | None) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise errors.MissingExtraError(
                "the Ray engine needs ray, which is not installed: pip install 'tokenlake[ray]'"
            ) from error
        self._ray: Any = ray
        self.workers = workers or section.num_workers
        self._ours = not ray.is_initialized()
        if section.object_store_memory and (os.environ.get("RAY_ADDRESS") or not self._ours):
            raise errors.ConfigError(
                f"ray.object_store_memory: got {section.object_store_memory} for a cluster that runs already; leave it "
                "out, or give it to `ray start` of each node"
            )
        if self._ours:
            self._join(section)
        gpu = {"GPU": 1.0} if section.use_gpu else {}
        asked = {"CPU": 1.0, **(section.resources_per_worker or {}), **gpu}
        self._asked = {name: need for name, need in asked.items() if need > 0}
        self._slots: set[int] = set()
        self._answered: set[int] = set()
        there: dict[str, float] = self._ray.cluster_resources()
        short = [
            f"{name} {need:g} of {there.get(name, 0.0):g}"
            for name, need in asked.items()
            if need > there.get(name, 0.0)
        ]
        if short:  # a worker would wait for its resources for ever
            self.close()
            raise errors.ConfigError(
                f"ray: a worker reserves more than the whole cluster has: {', '.join(short)}; reserve less in "
                "resources_per_worker, or add nodes"
            )
        others = {name: count for name, count in asked.items() if name not in ("CPU", "GPU")}
        self._actor: Any = ray.remote(Slot).options(
            num_cpus=asked["CPU"], num_gpus=asked.get("GPU", 0), resources=others, max_restarts=0
        )

    def _join(self, section: RayConfig) -> None:
        more: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
        if not os.environ.get("RAY_ADDRESS"):
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            more["address"] = "local"  # or Ray joins whatever cluster runs here, and refuses the rest
            more["include_dashboard"] = False
            more["num_cpus"] = max(self.workers, os.cpu_count() or 1)
            if section.object_store_memory:
                more["object_store_memory"] = section.object_store_memory
        self._ray.init(**more)

    def room(self) -> int:
        there: dict[str, float] = self._ray.cluster_resources()
        found = (int(there.get(name, 0.0) / need) for name, need in self._asked.items())
        return min(found, default=self.workers)

    def start(self) -> Any:
        slot = self._actor.remote()
        self._slots.add(id(slot))
        return slot

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        try:
            answer = slot.run.remote(preflight, line)
            while not self._ray.wait([answer], timeout=_LOOK)[0]:
                if id(slot) not in self._answered and len(self._slots) > self.room():
                    raise SlotLostError("the cluster has no room for it any more")
            self._answered.add(id(slot))
            return self._ray.get(answer)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.WorkerCrashedError) as error:
            raise SlotLostError(str(error).strip().splitlines()[0]) from error

    def end(self, slot: Any) -> None:
        self._slots.discard(id(slot))
        self._answered.discard(id(slot))
        with suppress(Exception):  # of a node that is gone, in many ways
            self._ray.kill(slot)

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


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
    """Tasks of Dask, each in the slot of one thread of its workers.

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
            raise errors.MissingExtraError(
                "the Dask engine needs distributed, which is not installed: pip install 'tokenlake[dask]'"
            ) from error
        address: str | None = settings.get("scheduler-address", None)
        self._lost: Any = distributed.KilledWorker
        here: dict[str, Any] = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
        here |= {"n_workers": workers or available_cpus(), "silence_logs": logging.ERROR}
        self._client: Any = distributed.Client(address) if address else distributed.Client(**here)
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


def open_ray_pool(workers: int | None, ray: RayConfig) -> ClusterPool:
    """Return a pool on a cluster of Ray."""
    return ClusterPool(lambda: RayNodes(ray, workers))


def open_dask_pool(workers: int | None, ray: RayConfig) -> ClusterPool:
    """Return a pool on a cluster of Dask."""
    return ClusterPool(lambda: DaskNodes(workers))

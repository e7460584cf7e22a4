"""Slots on a Ray cluster: an actor each, with the resources that the configuration reserves for it.

``RAY_ADDRESS`` names the cluster; without it one is started on this machine, and ends with the build.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, final

from tokenlake.config.stages import RayConfig
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.etl.cluster_pool import Slot, SlotLostError

_LOOK: Final = 2.0  # seconds between two looks at whether a slot that never answered still has a place


@final
class RayNodes:
    """Actors of Ray.

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
            raise MissingExtraError(
                "the Ray engine needs ray, which is not installed: pip install 'tokenlake[ray]'"
            ) from error
        self._ray: Any = ray
        self.workers = workers or section.num_workers
        self._ours = not ray.is_initialized()
        if section.object_store_memory and (os.environ.get("RAY_ADDRESS") or not self._ours):
            raise ConfigError(
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
        self._check_room(asked)
        others = {name: count for name, count in asked.items() if name not in ("CPU", "GPU")}
        self._actor: Any = ray.remote(Slot).options(
            num_cpus=asked["CPU"], num_gpus=asked.get("GPU", 0), resources=others, max_restarts=0
        )

    def _check_room(self, asked: Mapping[str, float]) -> None:
        """Raise ConfigError for a worker that would wait for its resources for ever."""
        there: dict[str, float] = self._ray.cluster_resources()
        held = {name: there.get(name, 0.0) for name in asked}
        if short := [
            f"{name} {need:g} of {held[name]:g}" for name, need in asked.items() if need > held[name]
        ]:
            self.close()
            raise ConfigError(
                f"ray: a worker reserves more than the whole cluster has: {', '.join(short)}; reserve less in "
                "resources_per_worker, or add nodes"
            )

    def _join(self, section: RayConfig) -> None:
        more: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
        if not os.environ.get("RAY_ADDRESS"):
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            more["address"] = (
                "local"  # or Ray joins whatever cluster runs on this machine, and refuses the rest
            )
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

"""Slots as actors of Ray."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any, Final, final

from tokenlake import errors
from tokenlake.config.stages import RayConfig
from tokenlake.etl.cluster_pool.slots import Slot, SlotLostError

_SECONDS_BETWEEN_LOOKS: Final = 2.0
"""Number of seconds after which a call that waits for an answer checks whether the
slot has lost its room.
"""


@final
class RayNodes:
    """Ray cluster whose slots are actors.

    Each has the resources that the configuration reserves.

    Args:
        section: Section `ray` of the configuration.
        workers: Number of slots; None for `num_workers` of the section.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: The cluster has room for no slot.
    """

    def __init__(self, section: RayConfig, workers: int | None) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise errors.MissingExtraError(
                "the executor ray needs ray, which is not installed: pip install 'tokenlake[ray]'"
            ) from error
        # 1. The cluster: that of the caller, that of the address, or a new one.
        self._ray: Any = ray
        self.workers = workers or section.num_workers
        self._is_own_cluster = not ray.is_initialized()
        self._live_slots: set[int] = set()
        # Slots that have answered once, so that they are known to have room.
        self._answered_slots: set[int] = set()

        is_running_already = os.environ.get("RAY_ADDRESS") or not self._is_own_cluster
        if section.object_store_memory and is_running_already:
            raise errors.ConfigError(
                f"ray.object_store_memory: got {section.object_store_memory} for a cluster that is already running; "
                "leave it out, or give it to `ray start` of each node"
            )
        if self._is_own_cluster:
            self._join(section)

        # 2. The resources of a slot. Ray has parameters for processors and GPUs, and a
        #    mapping for all others.
        reserved = {"CPU": 1.0, **(section.resources_per_worker or {})}
        if section.use_gpu:
            reserved["GPU"] = 1.0
        self._reserved: dict[str, float] = {}
        other_resources: dict[str, float] = {}
        for resource, amount in reserved.items():
            if amount > 0:
                self._reserved[resource] = amount
            if resource not in ("CPU", "GPU"):
                other_resources[resource] = amount
        self._require_room(reserved)

        # 3. The actor. Ray does not restart it, because a restarted one may not answer;
        #    the pool starts a new one.
        self._actor: Any = ray.remote(Slot).options(
            num_cpus=reserved["CPU"],
            num_gpus=reserved.get("GPU", 0),
            resources=other_resources,
            max_restarts=0,
        )

    def _join(self, section: RayConfig) -> None:
        """Join the cluster of ``RAY_ADDRESS``, or start one on this machine."""
        options: dict[str, Any] = {
            "logging_level": logging.WARNING,
            "log_to_driver": False,
        }
        if not os.environ.get("RAY_ADDRESS"):
            # A cluster of our own sends no usage statistics unless the user wants it.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Without an address, Ray joins any cluster that runs on this machine, and
            # refuses the other options.
            options["address"] = "local"
            options["include_dashboard"] = False
            options["num_cpus"] = max(self.workers, os.cpu_count() or 1)
            if section.object_store_memory:
                options["object_store_memory"] = section.object_store_memory
        self._ray.init(**options)

    def _require_room(self, reserved: dict[str, float]) -> None:
        """Check that the whole cluster has room for one slot.

        A slot without room would wait for its resources forever.

        Raises:
            ConfigError: It has not.
        """
        resources: dict[str, float] = self._ray.cluster_resources()
        shortages: list[str] = []
        for resource, amount in reserved.items():
            if amount > resources.get(resource, 0.0):
                shortages.append(
                    f"{resource} {amount:g} of {resources.get(resource, 0.0):g}"
                )
        if shortages:
            self.close()
            raise errors.ConfigError(
                f"ray: a worker reserves more than the whole cluster has: {', '.join(shortages)}; reserve less in "
                "resources_per_worker, or add nodes"
            )

    def room(self) -> int:
        resources: dict[str, float] = self._ray.cluster_resources()
        # The scarcest resource decides. Resources in use count, as slots have them.
        slot_counts: list[int] = []
        for resource, amount in self._reserved.items():
            slot_counts.append(int(resources.get(resource, 0.0) / amount))
        return min(slot_counts, default=self.workers)

    def start(self) -> Any:
        slot = self._actor.remote()
        self._live_slots.add(id(slot))
        return slot

    def ask(self, slot: Any, preflight: bytes, line: bytes) -> bytes:
        try:
            answer = slot.run.remote(preflight, line)
            # A slot that never answered may wait for room that the cluster has lost.
            while not self._ray.wait([answer], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
                has_answered = id(slot) in self._answered_slots
                if not has_answered and len(self._live_slots) > self.room():
                    raise SlotLostError("the cluster has no room for it anymore")
            self._answered_slots.add(id(slot))
            return self._ray.get(answer)
        except (
            self._ray.exceptions.RayActorError,
            self._ray.exceptions.WorkerCrashedError,
        ) as error:
            raise SlotLostError(str(error).strip().splitlines()[0]) from error

    def end(self, slot: Any) -> None:
        self._live_slots.discard(id(slot))
        self._answered_slots.discard(id(slot))
        # A node that is gone raises many kinds of errors.
        with suppress(Exception):
            self._ray.kill(slot)

    def close(self) -> None:
        if self._is_own_cluster:
            self._ray.shutdown()

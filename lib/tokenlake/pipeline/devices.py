"""Batches of rows as global ``jax.Array``, put onto devices as the loader of packed datasets does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.hostbatches import HostBatch
from tokenlake.loader.steps import Batch as Step
from tokenlake.loader.steps import BatchSizes
from tokenlake.pipeline.batches import Batch
from tokenlake.pipeline.rowbatches import Stand


@final
@dataclass(frozen=True, slots=True)
class Made:
    """A batch, and how far delivery has come with it."""

    columns: Batch
    after: Stand


def first_device() -> Any:
    """Return the sharding of arrays that lie on the first device of this process; MissingExtraError without jax."""
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("batches on devices need jax: pip install 'tokenlake[jax]'") from error
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


@final
class RowPlacement:
    """Puts batches of `size` rows onto the devices of a sharding, which divides (rows, ids).

    Raises:
        MissingExtraError: jax is not installed.
    """

    def __init__(self, sharding: Any, size: int) -> None:
        from tokenlake.loader.jax import Placement

        self._kind, self._sharding, self._size = Placement, sharding, size
        self._placements: dict[int, Any] = {}
        self._of(_some_width(sharding))  # what is no sharding, or cannot cut the rows, is found now

    def ahead(self, made: Iterator[Made], prefetch: int) -> Iterator[Made]:
        """Return an iterator over the same batches on the devices; a thread puts `prefetch` of them ahead."""
        from tokenlake.loader.jax import DeviceBatches

        return cast("Iterator[Made]", DeviceBatches(cast("Any", made), cast("Any", self), prefetch=prefetch))

    def place(self, made: Made) -> Made:
        """Return a batch on the devices.

        Raises:
            ConfigError: a field is no array (rows, ids), or the sharding cannot cut it.
        """
        return Made({name: self._array(name, values) for name, values in made.columns.items()}, made.after)

    def _array(self, name: str, values: Any) -> Any:
        if not isinstance(values, np.ndarray) or values.ndim != 2:
            found = f"an array of shape {values.shape}" if isinstance(values, np.ndarray) else "no array"
            raise ConfigError(
                f"the field {name!r} is {found}; on devices batches hold arrays (rows, ids) alone. "
                "Leave it out: source.drop_fields([...])"
            )
        placement = self._of(values.shape[1])
        wanted = placement.wanted(self._size)
        step = Step(0, 0, 0, self._size, self._size)
        return placement.place(HostBatch(step, wanted, {name: values[wanted]})).columns[name]

    def _of(self, width: int) -> Any:
        if width not in self._placements:
            self._placements[width] = self._kind(self._sharding, BatchSizes.of(self._size), width)
        return self._placements[width]


def _some_width(sharding: Any) -> int:
    """A length of rows that any sharding of these devices can cut."""
    try:
        return len(sharding.device_set)
    except (AttributeError, ValueError):
        return 1

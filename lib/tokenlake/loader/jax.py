"""Host batches to global ``jax.Array``: which rows this host needs, and how they come onto its devices.

A global batch is a table of B rows and L ids that a sharding saws into pieces, one for each device. A host makes the
rows that its own devices' pieces lie in, whole and once each, and hands every device its piece of them. So what is
read follows from the sharding alone: hosts that share rows (a mesh with a model axis) read the same ones.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.ragged import Int64
from tokenlake.threads import end_threads

try:
    import jax
except ImportError as error:
    raise MissingExtraError("batches of jax.Array need jax: pip install 'tokenlake[jax]'") from error

_Index: TypeAlias = tuple[slice, ...]


@final
@dataclass(frozen=True, slots=True)
class _Share:
    """What a host has of batches of one size.

    Attributes:
        wanted: rows that its devices need, ascending, int64[m].
        places: first row of a device's piece -> where that is in `wanted`, and so in the host's arrays.
    """

    wanted: Int64
    places: dict[int, int]


@final
class Placement:
    """Where the elements of global batches lie.

    Args:
        sharding: of arrays of shape (B, L): batch axis first, ids of a row second.
        sizes: what B may be.
        lengths: what L may be, or a number that every L is a multiple of.

    Raises:
        ConfigError: it is no sharding, or cannot cut these shapes.
    """

    def __init__(self, sharding: Any, sizes: Sequence[int], lengths: Sequence[int]) -> None:
        if not isinstance(sharding, jax.sharding.Sharding):
            raise ConfigError(
                f"sharding: got a {type(sharding).__name__}, must be a jax.sharding.Sharding of global batches (B, L), "
                "e.g. NamedSharding(mesh, PartitionSpec('data'))"
            )
        self._sharding, self._lengths = sharding, lengths
        self._shares = {size: self._share(size) for size in sizes}

    def wanted(self, size: int) -> Int64:
        """Return the rows of a batch that the devices of this host need, ascending, int64[m]."""
        return self._shares[size].wanted

    def place(self, columns: Mapping[str, npt.NDArray[Any]], size: int) -> dict[str, Any]:
        """Return the columns of a batch on the devices, or on their way there: global arrays of shape (size, L).

        What has one value a row is cut as rows are: global arrays of shape (size,).

        On a CPU devices may share the memory of the host's arrays, and then hold a reference to it.

        Args:
            columns: the rows that this host needs, (m, L) or (m,).
            size: rows of the global batch.
        """
        # Moving batches is what was asked for, also where a guard against forgotten transfers is set.
        with jax.transfer_guard_host_to_device("allow"):
            return {name: self._array(values, size) for name, values in columns.items()}

    def _array(self, values: npt.NDArray[Any], size: int) -> jax.Array:
        places = self._shares[size].places

        def piece(index: _Index | None) -> npt.NDArray[Any]:
            assert index is not None
            start, stop, _ = index[0].indices(size)
            return values[(slice(places[start], places[start] + stop - start), *index[1:])]

        # A quarter of the cost of one device_put per piece, with 8 devices 0.3 ms a batch.
        sharding = self._sharding if values.ndim > 1 else self._of_rows
        return jax.make_array_from_callback((size, *values.shape[1:]), sharding, piece, dtype=values.dtype)

    @cached_property
    def _of_rows(self) -> jax.sharding.Sharding:
        """The sharding of what has one value a row."""
        if isinstance(self._sharding, jax.sharding.NamedSharding):
            rows = jax.sharding.PartitionSpec(*self._sharding.spec[:1])
            return jax.sharding.NamedSharding(self._sharding.mesh, rows)
        return self._sharding

    def _share(self, size: int) -> _Share:
        self._check(size)
        shape = (size, self._lengths[0])
        pieces = {
            index[0].indices(size)[:2]
            for index in self._sharding.addressable_devices_indices_map(shape).values()
            if index is not None
        }
        rows = [np.arange(start, stop, dtype=np.int64) for start, stop in pieces]
        wanted = np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
        return _Share(wanted, {start: int(np.searchsorted(wanted, start)) for start, _ in pieces})

    def _check(self, size: int) -> None:
        rank = len(getattr(self._sharding, "spec", ()))
        if rank > 2:
            raise ConfigError(
                f"sharding: got one of {rank} axes, {self._sharding}; a batch has two: rows and ids, "
                "as in PartitionSpec('data') or PartitionSpec('data', 'seq')"
            )
        try:
            devices = len(self._sharding.device_set)
        except ValueError as error:
            raise ConfigError(
                f"sharding: {self._sharding} names no devices; expected one over a Mesh of devices"
            ) from error
        rows, ids = (self._parts(axis, devices) for axis in (0, 1))
        if size % rows:
            raise ConfigError(
                f"batch_size: got {size}, and {self._sharding} cuts the rows of a batch into {rows} equal parts; "
                f"expected a multiple of {rows}, or a sharding of the rows over fewer devices"
            )
        for length in self._lengths:
            if length % ids:
                raise ConfigError(
                    f"sharding: {self._sharding} cuts rows into {ids} equal parts, and rows have {length} ids, or a "
                    f"multiple of them; expected a number of parts that divides {length}"
                )

    def _parts(self, axis: int, devices: int) -> int:
        """Into how many parts an axis is cut: the shortest axis that can be; the parts of both make up the devices."""
        for parts in range(1, devices):
            shape = (parts, devices) if axis == 0 else (devices, parts)
            try:
                self._sharding.shard_shape(shape)
            except ValueError:
                continue
            return parts
        return devices


# What is registered last runs first: threads must be out of JAX before JAX itself goes down.
atexit.register(end_threads)

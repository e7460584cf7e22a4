"""Host batches to global ``jax.Array``: which rows this host needs, and how they come onto its devices.

A global batch is a table of B rows and L ids that a sharding saws into pieces, one for each device. A host makes the
rows that its own devices' pieces lie in, whole and once each, and hands every device its piece of them. So what is
read follows from the sharding alone: hosts that share rows (a mesh with a model axis) read the same ones.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64
from tokenlake.base.threads import end_threads
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.loader.layout import BatchLayout

try:
    import jax
except ImportError as error:
    raise MissingExtraError("batches of jax.Array need jax: pip install 'tokenlake[jax]'") from error

_Index: TypeAlias = tuple[slice, ...]


_Share: TypeAlias = tuple[Int64, dict[int, int]]
"""Of batches of one size: the rows that a host needs, ascending, int64[m], and first row of a device's piece -> its
place among these, and so in the host's arrays."""


@final
class Placement:
    """Where the elements of global batches lie.

    Args:
        sharding: of arrays of shape (B, L): batch axis first, ids of a row second.
        sizes: what B may be.
        lengths: what L may be, or a number that every L is a multiple of.
        layout: of the arrays; flat ones are cut as rows are.

    Attributes:
        parts: how many parts of the rows of a batch this host's devices have.

    Raises:
        ConfigError: it is no sharding, or cannot cut these shapes or this layout.
    """

    def __init__(
        self, sharding: Any, sizes: Sequence[int], lengths: Sequence[int], layout: BatchLayout | None = None
    ) -> None:
        self._devices = _devices(sharding)
        self._sharding, self._lengths = sharding, lengths
        self._flat = layout is not None and layout.flat
        self._shares = {size: self._share(size) for size in sizes}
        self.parts = len(next(iter(self._shares.values()))[1])
        if layout is not None:
            self._check_layout(layout)

    def wanted(self, size: int) -> Int64:
        """Return the rows of a batch that the devices of this host need, ascending, int64[m]."""
        return self._shares[size][0]

    def place(self, columns: Mapping[str, npt.NDArray[Any]], size: int) -> dict[str, Any]:
        """Return the columns of a batch on the devices, or on their way there: global arrays of shape (size, L).

        What has one value a row is cut as rows are: global arrays of shape (size,). So is what is flat, (size * L,),
        and what there is of each part of the rows, (parts, ...).

        On a CPU devices may share the memory of the host's arrays, and then hold a reference to it.

        Args:
            columns: the rows that this host needs, (m, L) or (m,).
            size: rows of the global batch.
        """
        # Moving batches is what was asked for, also where a guard against forgotten transfers is set.
        with jax.transfer_guard_host_to_device("allow"):
            return {name: self._array(values, size) for name, values in columns.items()}

    def _array(self, values: npt.NDArray[Any], size: int) -> jax.Array:
        wanted, places = self._shares[size]
        here, there = len(values), len(wanted)
        whole = size * here // there if there else size  # entries of all hosts on the first axis

        def piece(index: _Index | None) -> npt.NDArray[Any]:
            assert index is not None
            start, stop, _ = index[0].indices(whole)
            begin = places[start * size // whole] * here // there
            return values[(slice(begin, begin + stop - start), *index[1:])]

        # A quarter of the cost of one device_put per piece, with 8 devices 0.3 ms a batch.
        sharding = self._of_rows if self._flat or values.ndim == 1 else self._sharding
        return jax.make_array_from_callback((whole, *values.shape[1:]), sharding, piece, dtype=values.dtype)

    @cached_property
    def _of_rows(self) -> jax.sharding.Sharding:
        """The sharding of what is cut as rows are."""
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
        return wanted, {start: int(np.searchsorted(wanted, start)) for start, _ in pieces}

    def _check_layout(self, layout: BatchLayout) -> None:
        cut = _parts(self._sharding, 1, self._devices)
        if layout.flat and (cut > 1 or not isinstance(self._sharding, jax.sharding.NamedSharding)):
            raise ConfigError(
                f"layout: flat batches are cut between rows, got {self._sharding}; expected a NamedSharding that does "
                "not cut the second axis, as PartitionSpec('data')"
            )
        if layout.flat and layout.max_segments is None:
            raise ConfigError(
                "layout.max_segments: got None, and arrays on devices must be of one shape; expected the most "
                "documents, and paddings, that the rows of one device have: rows times "
                "`select max(len(segment_lengths)) + 1 from 'DATASET'` is enough"
            )
        if layout.context_parallel > 1 and layout.context_parallel != cut:
            raise ConfigError(
                f"layout.context_parallel: got {layout.context_parallel}, and {self._sharding} cuts rows into {cut} "
                "parts; expected the same number"
            )

    def _check(self, size: int) -> None:
        rows, ids = (_parts(self._sharding, axis, self._devices) for axis in (0, 1))
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


def row_parts(sharding: Any) -> int:
    """Return into how many parts a sharding cuts the rows of a batch; ConfigError where it is none."""
    return _parts(sharding, 0, _devices(sharding))


def _devices(sharding: Any) -> int:
    """Of how many devices a sharding of batches is; ConfigError where it is none."""
    if not isinstance(sharding, jax.sharding.Sharding):
        raise ConfigError(
            f"sharding: got a {type(sharding).__name__}, must be a jax.sharding.Sharding of global batches (B, L), "
            "e.g. NamedSharding(mesh, PartitionSpec('data'))"
        )
    rank = len(getattr(sharding, "spec", ()))
    if rank > 2:
        raise ConfigError(
            f"sharding: got one of {rank} axes, {sharding}; a batch has two: rows and ids, "
            "as in PartitionSpec('data') or PartitionSpec('data', 'seq')"
        )
    try:
        return len(sharding.device_set)
    except ValueError as error:
        raise ConfigError(
            f"sharding: {sharding} names no devices; expected one over a Mesh of devices"
        ) from error


def _parts(sharding: jax.sharding.Sharding, axis: int, devices: int) -> int:
    """Into how many parts an axis is cut: the shortest axis that can be; the parts of both make up the devices."""
    for parts in range(1, devices):
        shape = (parts, devices) if axis == 0 else (devices, parts)
        try:
            sharding.shard_shape(shape)
        except ValueError:
            continue
        return parts
    return devices


# What is registered last runs first: threads must be out of JAX before JAX itself goes down.
atexit.register(end_threads)

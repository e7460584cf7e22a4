"""Placement of batches on devices: batches of each host become global ``jax.Array``.

A global batch is a table of B rows and L ids. A sharding divides it into pieces, one
for each device. A host makes the rows that its devices need, each once, and passes
every device its piece. The sharding alone therefore decides the rows that a host reads:
hosts that share rows (a mesh with a model axis) read the same ones.

Example: 4 rows over a mesh of 2 x 2 devices (data x model), and 2 hosts with a row of
the mesh each. Host 1 needs rows 2 and 3, of which both of its devices have a part of
the ids. In the host's array these are rows 0 and 1.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64
from tokenlake.base.threads import end_threads
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.loader.layout import BatchLayout
from tokenlake.runtime.loader.transfer import TRANSFER

try:
    import jax

    from tokenlake.runtime.loader.jax_columns import column_maker
except ImportError as error:
    raise MissingExtraError(
        "batches of jax.Array need jax: pip install 'tokenlake[jax]'"
    ) from error

_Index: TypeAlias = tuple[slice, ...]
"""Slices of a global array, one for each axis."""


class _HostRows(NamedTuple):
    """Rows of batches of one size that a host needs.

    Attributes:
        wanted: The rows, ascending, int64[m].
        places: First row of each device's piece -> index of the row among the wanted
            ones.
    """

    wanted: Int64
    places: dict[int, int]


@final
class Placement:
    """Placement of global batches on the devices of a sharding.

    Args:
        sharding: Sharding of arrays of shape (B, L): rows on the first axis, ids of a
            row on the second.
        sizes: Possible numbers of rows, B.
        lengths: Possible lengths L, or a number that divides every L.
        layout: Layout of the arrays. The only axis of flat ones is divided as rows are.

    Attributes:
        parts: Number of parts of a batch's rows that the devices of this host have.
        SHARING: Platforms whose devices share the memory of the host's arrays. Batches
            for other devices cross as bytes, from which the devices compute the
            columns.

    Raises:
        ConfigError: It is not a sharding, or cannot divide these shapes or this layout.
    """

    SHARING: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(
        self,
        sharding: Any,
        sizes: Sequence[int],
        lengths: Sequence[int],
        layout: BatchLayout | None = None,
    ) -> None:
        self._devices = _device_count(sharding)
        self._sharding = sharding
        self._lengths = lengths
        self._is_flat = layout is not None and layout.flat
        self._rows_of_size = {size: self._host_rows(size) for size in sizes}
        self.parts = len(next(iter(self._rows_of_size.values())).places)
        if layout is not None:
            self._check_layout(layout)

    def wanted(self, size: int) -> Int64:
        """Return the rows of a batch that this host needs, ascending, int64[m].

        The batch has `size` rows over all hosts.
        """
        return self._rows_of_size[size].wanted

    @property
    def computes_columns(self) -> bool:
        """Whether devices compute the columns of a batch from its bytes.

        Only devices of one process do, each for whole rows and in its own memory:
        processes need not compute in step.
        """
        sharding = self._sharding
        if not isinstance(
            sharding, jax.sharding.NamedSharding | jax.sharding.SingleDeviceSharding
        ):
            return False
        is_for_whole_rows = _parts(sharding, 1, self._devices) == 1
        if not sharding.is_fully_addressable or not is_for_whole_rows:
            return False
        for device in sharding.device_set:
            has_own_memory = sharding.memory_kind in (
                None,
                device.default_memory().kind,
            )
            if device.platform in self.SHARING or not has_own_memory:
                return False
        return True

    def place_computed(
        self,
        batch: Mapping[str, npt.NDArray[Any]],
        size: int,
        *,
        names: tuple[str, ...],
    ) -> dict[str, Any]:
        """Return the columns of a batch, computed by devices, as global arrays.

        :meth:`computes_columns` tells whether they can.

        Args:
            batch: Bytes of the batch under the name
                :data:`~tokenlake.runtime.loader.transfer.TRANSFER`.
            size: Rows of the global batch.
            names: Names of the columns.
        """
        with jax.transfer_guard_host_to_device("allow"):
            planes = self._global_array(
                batch[TRANSFER], size, self._sharding_of_arithmetic
            )
            columns = column_maker(names, self._sharding_of_arithmetic)(planes)
            if self._sharding_of_arithmetic is not self._sharding:
                columns = jax.device_put(columns, self._sharding)  # only renames them
        return dict(zip(names, columns, strict=True))

    def place(
        self, columns: Mapping[str, npt.NDArray[Any]], size: int
    ) -> dict[str, Any]:
        """Return the columns of a batch as global arrays.

        They may still be on their way to the devices. Columns of shape (m, L) become
        global arrays of shape (size, L). Columns with one value per row, of shape (m,),
        become (size,). Flat columns become (size * L,), and columns with one entry for
        each part of the rows (parts, ...).

        Devices of a CPU may share the memory of the host's arrays; they hold a
        reference to it then.

        Args:
            columns: Columns of the rows that this host needs, (m, L) or (m,).
            size: Rows of the global batch.
        """
        # This transfer is intended, even where a guard against accidental transfers is
        # set.
        with jax.transfer_guard_host_to_device("allow"):
            placed: dict[str, Any] = {}
            for column_name, values in columns.items():
                is_divided_as_rows = self._is_flat or values.ndim == 1
                sharding = (
                    self._sharding_of_rows if is_divided_as_rows else self._sharding
                )
                placed[column_name] = self._global_array(values, size, sharding)
            return placed

    def _global_array(
        self, values: npt.NDArray[Any], size: int, sharding: jax.sharding.Sharding
    ) -> jax.Array:
        """Return a column of this host's rows as a global array.

        Args:
            values: Column of the rows that this host needs.
            size: Rows of the global batch.
            sharding: Sharding of the column.
        """
        rows = self._rows_of_size[size]
        host_entries = len(values)
        host_rows = len(rows.wanted)
        # Entries of all hosts on the first axis: `host_entries / host_rows` for each
        # row.
        entries = size * host_entries // host_rows if host_rows else size

        def piece(index: _Index | None) -> npt.NDArray[Any]:
            """Return the part of this host's array that a device holds."""
            assert index is not None
            start, stop, _ = index[0].indices(entries)
            first_row = start * size // entries
            begin = rows.places[first_row] * host_entries // host_rows
            return values[(slice(begin, begin + stop - start), *index[1:])]

        # One call takes a quarter of the time of a device_put per piece: with 8
        # devices, 0.3 ms less a batch.
        return jax.make_array_from_callback(
            (entries, *values.shape[1:]), sharding, piece, dtype=values.dtype
        )

    @cached_property
    def _sharding_of_arithmetic(self) -> jax.sharding.Sharding:
        """The sharding, over axes of type ``Auto``.

        Arithmetic over these may be written without naming shardings.
        """
        sharding = self._sharding
        if not isinstance(sharding, jax.sharding.NamedSharding):
            return sharding
        axis_types = set(sharding.mesh.axis_types)
        if axis_types <= {jax.sharding.AxisType.Auto}:
            return sharding
        devices = sharding.mesh.devices
        assert devices is not None  # a mesh without devices was refused
        mesh = jax.sharding.Mesh(devices, sharding.mesh.axis_names)
        return jax.sharding.NamedSharding(
            mesh, sharding.spec, memory_kind=sharding.memory_kind
        )

    @cached_property
    def _sharding_of_rows(self) -> jax.sharding.Sharding:
        """Sharding of arrays whose first axis is divided as rows are, and no other."""
        if isinstance(self._sharding, jax.sharding.NamedSharding):
            rows = jax.sharding.PartitionSpec(*self._sharding.spec[:1])
            return jax.sharding.NamedSharding(self._sharding.mesh, rows)
        return self._sharding

    def _host_rows(self, size: int) -> _HostRows:
        """Return the rows of a batch that the devices of this host need.

        The batch has `size` rows over all hosts.
        """
        self._check_shapes(size)
        shape = (size, self._lengths[0])
        # First row, and row after the last, of each device's piece.
        pieces: set[tuple[int, int]] = set()
        for index in self._sharding.addressable_devices_indices_map(shape).values():
            if index is not None:
                start, stop, _ = index[0].indices(size)
                pieces.add((start, stop))
        # The rows of all pieces, each once, and the place of each piece among them. The
        # empty array serves hosts without a piece.
        piece_rows = [np.zeros(0, np.int64)]
        for start, stop in pieces:
            piece_rows.append(np.arange(start, stop, dtype=np.int64))
        host_rows = np.unique(np.concatenate(piece_rows))
        places: dict[int, int] = {}
        for start, _ in pieces:
            places[start] = int(np.searchsorted(host_rows, start))
        return _HostRows(host_rows, places)

    def _check_layout(self, layout: BatchLayout) -> None:
        """Raise ConfigError where the sharding cannot divide a layout."""
        row_cuts = _parts(self._sharding, 1, self._devices)
        is_named = isinstance(self._sharding, jax.sharding.NamedSharding)
        if layout.flat and (row_cuts > 1 or not is_named):
            raise ConfigError(
                f"layout: flat batches are cut between rows, got {self._sharding}; expected a NamedSharding that does "
                "not cut the second axis, as PartitionSpec('data')"
            )
        if layout.flat and layout.max_segments is None:
            raise ConfigError(
                "layout.max_segments: got None, and arrays on devices must be of one shape; expected the largest "
                "number of documents, and paddings, in the rows of one device: rows times "
                "`select max(len(segment_lengths)) + 1 from 'DATASET'` is enough"
            )
        if layout.context_parallel > 1 and layout.context_parallel != row_cuts:
            raise ConfigError(
                f"layout.context_parallel: got {layout.context_parallel}, and {self._sharding} cuts rows into "
                f"{row_cuts} parts; expected the same number"
            )

    def _check_shapes(self, size: int) -> None:
        """Raise ConfigError where the sharding cannot divide batches of `size` rows.

        The lengths of rows are checked, too.
        """
        row_parts = _parts(self._sharding, 0, self._devices)
        id_parts = _parts(self._sharding, 1, self._devices)
        if size % row_parts:
            raise ConfigError(
                f"batch_size: got {size}, and {self._sharding} cuts the rows of a batch into {row_parts} equal parts; "
                f"expected a multiple of {row_parts}, or a sharding of the rows over fewer devices"
            )
        for row_length in self._lengths:
            if row_length % id_parts:
                raise ConfigError(
                    f"sharding: {self._sharding} cuts rows into {id_parts} equal parts, and rows have {row_length} "
                    f"ids, or a multiple of them; expected a number of parts that divides {row_length}"
                )


def row_parts(sharding: Any) -> int:
    """Return the number of parts into which a sharding divides the rows of a batch.

    Raises:
        ConfigError: It is not a sharding of batches.
    """
    return _parts(sharding, 0, _device_count(sharding))


def _device_count(sharding: Any) -> int:
    """Return the number of devices of a sharding of batches.

    Raises:
        ConfigError: It is not a sharding of batches.
    """
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
            f"sharding: {sharding} has no devices; expected one over a Mesh of devices"
        ) from error


def _parts(sharding: jax.sharding.Sharding, axis: int, devices: int) -> int:
    """Return the number of parts into which a sharding divides an axis.

    It is the length of the shortest axis that can be divided. The parts of both axes
    multiply to the devices at most.

    Args:
        sharding: Sharding of batches.
        axis: 0 for rows, 1 for ids.
        devices: Number of devices of the sharding.
    """
    for parts in range(1, devices):
        shape = (parts, devices) if axis == 0 else (devices, parts)
        try:
            sharding.shard_shape(shape)
        except ValueError:
            continue
        return parts
    return devices


# Functions that are registered last run first: threads must have left JAX before JAX
# shuts down.
atexit.register(end_threads)

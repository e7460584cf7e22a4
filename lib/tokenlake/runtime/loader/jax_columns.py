"""Columns of a batch of packed rows, computed on devices from ids and marks.

:mod:`tokenlake.runtime.loader.transfer` describes the bytes of a batch, and
:mod:`tokenlake.runtime.loader.columns` the columns. With the marks of a row, numbered as there::

    segment_ids   number of first ids up to this one; 0 in padding
    positions     place of this id minus the place of the latest first id; 0 in padding
    loss_mask     whether the mark is 0: neither first, nor padding, nor excluded
    labels        the id where loss_mask is true, else -100
    targets       labels, moved one place to the left; the last is -100
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from tokenlake.runtime.loader.columns import IGNORED
from tokenlake.runtime.loader.transfer import FIRST_OF_SEGMENT, PADDING


@lru_cache(maxsize=16)
def column_maker(names: tuple[str, ...], sharding: jax.sharding.Sharding) -> Any:
    """Return the compiled function from the bytes of a batch to its columns.

    Args:
        names: Names of the columns.
        sharding: Sharding of the columns, arrays of shape (rows, L).
    """
    return jax.jit(partial(make_columns, names=names), out_shardings=sharding)


def make_columns(planes: jax.Array, names: Sequence[str]) -> tuple[jax.Array, ...]:
    """Return the columns of a batch in the order of their names.

    Ids are int32[rows, L], and masks bool[rows, L].

    Args:
        planes: Bytes of the batch, uint8[rows, planes, L].
        names: Names of the columns.
    """
    rows, count, length = planes.shape
    id_bytes = count - count % 2
    words = planes[:, :id_bytes].reshape(rows, length, id_bytes)
    id_type = jnp.uint16 if id_bytes == 2 else jnp.int32
    ids = jax.lax.bitcast_convert_type(words, id_type).astype(jnp.int32)
    columns = {"input_ids": ids}
    if count > id_bytes:
        columns |= _columns_of_marks(ids, planes[:, -1], frozenset(names))
    return tuple(columns[name] for name in names)


def _columns_of_marks(
    ids: jax.Array, marks: jax.Array, names: frozenset[str]
) -> dict[str, jax.Array]:
    """Return the columns that need marks, those of some names at least."""
    columns: dict[str, jax.Array] = {}
    is_first = marks & FIRST_OF_SEGMENT != 0
    is_padding = marks & PADDING != 0
    if "segment_ids" in names:
        numbers = jnp.cumsum(is_first, axis=1, dtype=jnp.int32)
        columns["segment_ids"] = jnp.where(is_padding, 0, numbers)
    if "positions" in names:
        places = jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1)
        first_places = jax.lax.cummax(jnp.where(is_first, places, 0), axis=1)
        columns["positions"] = jnp.where(is_padding, 0, places - first_places)

    # The columns of the loss.
    loss_mask = marks == 0
    labels = jnp.where(loss_mask, ids, IGNORED)
    columns["loss_mask"] = loss_mask
    columns["labels"] = labels
    columns["targets"] = jnp.pad(
        labels[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORED
    )
    return columns

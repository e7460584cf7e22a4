"""What the cases of :mod:`tests.loader.jax_worker` compare: global arrays with the
arrays of a loader without JAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

import tokenlake as tl

Host = dict[str, np.ndarray]


def reference(data: Any, batch_size: Any, **options: Any) -> Iterator[Host]:
    """All batches of a pass, whole, as one process without JAX has them."""
    return iter(
        tl.DataLoader(data, batch_size, pad_last=True, prefetch=0, workers=0, **options)
    )


def check_batch(
    got: Mapping[str, jax.Array], expected: Host, sharding: jax.sharding.Sharding
) -> None:
    """Every piece that lies here is that of the whole batch, in kind and content."""
    assert list(got) == list(expected)
    for name, whole in expected.items():
        array = got[name]
        assert array.sharding == sharding
        assert (array.shape, array.dtype) == (whole.shape, whole.dtype)
        assert array.is_fully_addressable == sharding.is_fully_addressable
        assert len(array.addressable_shards) == len(sharding.addressable_devices)
        for piece in array.addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(piece.data), whole[piece.index], err_msg=name
            )

"""One process with eight devices: a batch that is kept never changes, however many are
made after it.

A CPU's devices take aligned memory of numpy over without a copy, and the loader uses
memory again. Both is right only as long as JAX holds a reference to what it took over,
and that is what these tests stand on.
"""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tokenlake as tl
from tests.loader.jax_checks import reference
from tokenlake.runtime.loader import Placement
from tokenlake.runtime.reading import Blocks

LENGTH = 256


def main(facts: dict[str, Any]) -> None:
    for count in (1, 8):
        for spec in (P("data"), P(), P(None, "data")):
            sharding = NamedSharding(
                Mesh(np.array(jax.devices()[:count]), ("data",)), spec
            )
            for kind in (np.int32, np.bool_):
                _check_one(sharding, kind, shared=count == 1 or spec != P(None, "data"))
            _check_under_way(sharding)
    small = tl.open(facts["store"], "small")
    for count in (1, 8):
        _check_loader(
            small,
            NamedSharding(Mesh(np.array(jax.devices()[:count]), ("data",)), P("data")),
        )


def _check_one(sharding: NamedSharding, kind: Any, *, shared: bool) -> None:
    """One array is kept, and nothing but it; hundreds more take their turn in the
    same buffers.
    """
    rows = 16
    placement, blocks = Placement(sharding, (rows,), (LENGTH,)), Blocks()
    dice = np.random.default_rng(0)

    def put() -> tuple[jax.Array, np.ndarray, set[int]]:
        ours = (
            blocks.take(rows * LENGTH * np.dtype(kind).itemsize)
            .view(kind)
            .reshape(rows, LENGTH)
        )
        ours[...] = dice.integers(0, 2 if kind is np.bool_ else 1 << 31, ours.shape)
        copy, begin = ours.copy(), ours.ctypes.data
        array = placement.place({"ids": ours}, rows)["ids"].block_until_ready()
        places = {
            piece.data.unsafe_buffer_pointer() for piece in array.addressable_shards
        }
        inside = {place for place in places if begin <= place < begin + ours.nbytes}
        return array, copy, inside

    kept, copy, inside = put()
    # If no memory was shared, this would show nothing.
    assert bool(inside) == shared, (sharding, kind)
    piece, part = (
        kept.addressable_shards[-1].data,
        copy[kept.addressable_shards[-1].index],
    )
    seen: list[int] = []
    for turn in range(120):
        later, its_copy, its_inside = put()
        np.testing.assert_array_equal(later, its_copy)
        assert not its_inside & inside
        seen += its_inside
        if turn == 60:
            np.testing.assert_array_equal(kept, copy)
            del kept  # one device's piece is enough to hold what all pieces lie in
            gc.collect()
    np.testing.assert_array_equal(piece, part)
    assert not shared or len(seen) > len(set(seen)), (
        "no memory was used again: this test shows nothing"
    )


def _check_under_way(sharding: NamedSharding) -> None:
    """A step that is still computed reads the batch that it was given, though nobody
    else has it any more.
    """
    rows = 16
    placement, blocks = Placement(sharding, (rows,), (LENGTH,)), Blocks()

    @jax.jit
    def slow(ids: jax.Array) -> jax.Array:
        spun = jax.lax.fori_loop(
            0, 3_000_000, lambda _, x: x * 0.5 + 1.0, jnp.float32(ids[0, 0])
        )
        return ids + jnp.int32(spun > 1e9)  # never, and not known before

    def put(value: int) -> jax.Array:
        ours = blocks.take(rows * LENGTH * 4).view(np.int32).reshape(rows, LENGTH)
        ours[...] = value
        return placement.place({"ids": ours}, rows)["ids"]

    slow(put(0)).block_until_ready()
    under_way = 0
    for value in range(6):
        ids = put(value)
        made = slow(ids)
        del ids
        under_way += not made.is_ready()
        for _ in range(10):
            put(-1)
        assert np.unique(made).tolist() == [value]
    assert under_way, (
        "every step was over before its batch was let go of: this test shows nothing"
    )


def _check_loader(data: Any, sharding: NamedSharding) -> None:
    """Every third batch of many epochs is kept to the end."""
    options: dict[str, Any] = {"seed": 2, "epochs": 25}
    kept: list[dict[str, jax.Array]] = []
    seen: list[int] = []
    for step, batch in enumerate(tl.DataLoader(data, 16, sharding=sharding, **options)):
        if step % 3 == 0 and step < 100:
            kept.append(batch)
        elif step >= 100:
            seen += [
                piece.data.unsafe_buffer_pointer()
                for piece in batch["input_ids"].addressable_shards
            ]
    assert len(kept) == 34
    assert len(seen) > len(set(seen)), (
        "no memory was used again: this test shows nothing"
    )
    for step, expected in enumerate(reference(data, 16, **options)):
        if step % 3 == 0 and step < 100:
            for name, whole in expected.items():
                np.testing.assert_array_equal(
                    kept[step // 3][name], whole, err_msg=f"step {step}, {name}"
                )

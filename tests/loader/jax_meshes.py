"""One process with eight devices: any sharding gives the batches of a loader without
one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    Sharding,
    SingleDeviceSharding,
)
from jax.sharding import PartitionSpec as P

import tokenlake as tl
from tests.loader.jax_checks import check_batch, reference
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import Placement


def main(facts: dict[str, Any]) -> None:
    store = facts["store"]
    if facts["computed"]:
        # As on an accelerator: columns are computed on the devices.
        Placement.SHARING = frozenset()
    small, learned = tl.open(store, "small"), tl.open(store, "learned")
    mixture = tl.Mixture({"a": small, "b": learned}, {"a": 0.6, "b": 0.4}, rows=150)
    for sharding in _shardings():
        _check_pass(small, 16, sharding, seed=3)
    for sharding in _shardings()[:3]:
        _check_pass(small, {0: 8, 3: 16, 5: 24}, sharding, seed=1)
        _check_pass(small, 16, sharding, drop_last=True)
        _check_pass(small, 8, sharding, shuffle=False, prefetch=0, workers=0)
        _check_pass(
            learned, 16, sharding, columns=("labels", "targets", "loss_mask"), epochs=2
        )
        _check_pass(mixture, 16, sharding, seed=5)
        _check_pass(
            learned,
            {0: 8, 3: 16},
            sharding,
            seed=5,
            lengths={0: 8, 2: 16, 4: 32},
            balance="attention",
        )
    for sharding in (_shardings()[0], _shardings()[6], _shardings()[11]):
        _check_flat(learned, sharding)
    _check_cut_rows(learned)
    for sharding, ranks in (
        (_shardings()[0], 8),
        (_shardings()[6], 4),
        (_shardings()[11], 1),
    ):
        _check_balanced(learned, sharding, ranks)
    # JAX 0.6 has the experimental name alone.
    enable_x64: Any = (
        jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    )
    with enable_x64(True):
        _check_pass(small, 16, _shardings()[0], prefetch=0)
    with jax.transfer_guard("disallow"):
        _check_pass(small, 16, _shardings()[0], prefetch=0)
    _check_steps(small)
    _check_refusals(small)
    # The interpreter goes down while threads put batches: nothing is said of it, and no
    # harm done.
    global _left
    _left = iter(tl.DataLoader(small, 16, epochs=None, sharding=_shardings()[0]))
    next(_left)


def _shardings() -> list[Sharding]:
    devices = np.array(jax.devices())
    assert len(devices) == 8
    line, square = (
        Mesh(devices, ("data",)),
        Mesh(devices.reshape(4, 2), ("data", "model")),
    )
    upside_down = Mesh(devices[[3, 7, 1, 0, 2, 6, 5, 4]], ("data",))
    cube = Mesh(devices.reshape(2, 2, 2), ("data", "model", "seq"))
    few = [
        NamedSharding(Mesh(devices[:count], ("data",)), P("data"))
        for count in (1, 2, 4)
    ]
    # JAX below 0.7 has no pinned host memory on CPU devices.
    host_memory = next(
        memory.kind
        for memory in devices[0].addressable_memories()
        if "host" in memory.kind
    )
    return [
        NamedSharding(line, P("data")),
        NamedSharding(square, P("data", "model")),
        NamedSharding(cube, P("data", "seq")),
        NamedSharding(line, P("data", None)),
        # Axes are explicit.
        NamedSharding(jax.make_mesh((4, 2), ("data", "model")), P("data")),
        NamedSharding(upside_down, P("data")),
        NamedSharding(square, P("data")),
        NamedSharding(square, P(("data", "model"))),
        NamedSharding(square, P(("model", "data"), None)),
        NamedSharding(cube, P(("data", "model"), "seq")),
        NamedSharding(line, P(None, "data")),
        NamedSharding(line, P()),
        NamedSharding(line, P("data"), memory_kind=host_memory),
        SingleDeviceSharding(devices[3]),
        *few,
    ]


def _check_pass(data: Any, batch_size: Any, sharding: Sharding, **options: Any) -> None:
    loader = tl.DataLoader(data, batch_size, sharding=sharding, **options)
    plain = {
        name: value
        for name, value in options.items()
        if name not in ("prefetch", "workers")
    }
    if "balance" in options:
        plain["balance"] = {"ranks": loader.plan.ranks}
    twin = tl.DataLoader(data, batch_size, pad_last=True, **plain)
    count = 0
    batches = len(loader)
    for got, expected in zip(loader, twin, strict=True):
        check_batch(got, expected, sharding)
        count += 1
        assert loader.step == count
        assert loader.get_state() == twin.get_state()
    assert count == batches > 1
    groups = sum(len(rows.group_rows) for rows in loader.plan.sources)
    assert loader.decoded.groups <= groups * (
        options.get("epochs", 1) + isinstance(data, tl.Mixture)
    )


def _check_flat(data: Any, sharding: Any) -> None:
    """Each device has its rows end to end, with the runs of these alone."""
    layout = tl.BatchLayout(flat=True, max_segments=64)
    loader = tl.DataLoader(data, 16, sharding=sharding, layout=layout)
    for got, rows in zip(loader, reference(data, 16), strict=True):
        parts = got["max_seqlen"].shape[0]
        assert got["input_ids"].shape == (16 * 32,) and got["cu_seqlens"].shape == (
            parts,
            65,
        )
        np.testing.assert_array_equal(got["input_ids"], rows["input_ids"].reshape(-1))
        for ids, bounds in zip(
            got["input_ids"].addressable_shards,
            got["cu_seqlens"].addressable_shards,
            strict=True,
        ):
            assert ids.device == bounds.device
            mine = rows["segment_ids"].reshape(-1)[ids.index[0]].reshape(-1, 32)
            runs = [
                len(run)
                for row in mine
                for run in np.split(row, np.flatnonzero(np.diff(row)) + 1)
            ]
            there = np.asarray(bounds.data)[0]
            assert np.diff(there).tolist() == runs + [0] * (64 - len(runs))


def _check_cut_rows(data: Any) -> None:
    """A device of the second axis has the ids that the split gives it."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "seq"))
    sharding, layout = (
        NamedSharding(mesh, P("data", "seq")),
        tl.BatchLayout(context_parallel=4),
    )
    loader = tl.DataLoader(data, 16, sharding=sharding, layout=layout)
    for got, rows in zip(loader, reference(data, 16), strict=True):
        for piece in got["positions"].addressable_shards:
            of, part = piece.index[0], piece.index[1].start // 8
            head, tail = (
                slice(4 * part, 4 * part + 4),
                slice(28 - 4 * part, 32 - 4 * part),
            )
            expected = np.concatenate(
                [rows["positions"][of, head], rows["positions"][of, tail]], axis=1
            )
            np.testing.assert_array_equal(piece.data, expected)


def _check_balanced(data: Any, sharding: Any, ranks: int) -> None:
    """The parts that a sharding cuts rows into are the ranks."""
    loader = tl.DataLoader(data, 16, sharding=sharding, balance="attention")
    assert loader.plan.ranks == ranks
    for got, expected in zip(
        loader, reference(data, 16, balance={"ranks": ranks}), strict=True
    ):
        check_batch(got, expected, sharding)


def _check_steps(data: Any) -> None:
    """A jitted step takes batches as they are, also where it takes their memory
    over.
    """
    sharding = _shardings()[1]
    add = jax.jit(lambda ids, mask: (ids + 1) * mask, donate_argnums=0)
    kept = [
        (add(batch["input_ids"], batch["loss_mask"]), batch["input_ids"].is_deleted())
        for batch in tl.DataLoader(data, 16, sharding=sharding)
    ]
    for (made, _), expected in zip(kept, reference(data, 16), strict=True):
        np.testing.assert_array_equal(
            made, (expected["input_ids"] + 1) * expected["loss_mask"]
        )
    total = jax.jit(jnp.sum)
    sums = [
        int(total(batch["positions"]))
        for batch in tl.DataLoader(data, 16, sharding=sharding)
    ]
    assert sums == [
        int(expected["positions"].sum()) for expected in reference(data, 16)
    ]


def _check_refusals(data: Any) -> None:
    devices = np.array(jax.devices())
    line, three = Mesh(devices, ("data",)), Mesh(devices[:3], ("seq",))
    cases: list[tuple[Any, Any, str]] = [
        (
            NamedSharding(line, P("data")),
            {"batch_size": 12},
            r"got 12, .* into 8 equal .* a multiple of 8",
        ),
        (NamedSharding(line, P("data")), {"batch_size": {0: 8, 2: 20}}, "got 20, "),
        (
            NamedSharding(three, P(None, "seq")),
            {},
            "rows into 3 equal parts, and rows have 32 ids",
        ),
        (
            NamedSharding(line, P("data", None, None)),
            {},
            "of 3 axes, .* a batch has two",
        ),
        (NamedSharding(AbstractMesh((8,), ("data",)), P("data")), {}, "has no devices"),
        (P("data"), {}, "must be a jax.sharding.Sharding"),
        (line, {}, "got a Mesh, must be a jax.sharding.Sharding"),
        (NamedSharding(line, P("data")), {"host": (0, 2)}, "leave out host"),
        (
            NamedSharding(line, P("data")),
            {"pad_last": False},
            "leave out host and pad_last",
        ),
        (
            NamedSharding(line, P("data")),
            {"layout": "flat"},
            "max_segments: got None, and arrays on devices",
        ),
        (
            NamedSharding(line, P(None, "data")),
            {"layout": "flat"},
            "flat batches are cut between rows",
        ),
        (
            NamedSharding(line, P(None, "data")),
            {"layout": {"context_parallel": 4}},
            "cuts rows into 8 parts",
        ),
        (
            NamedSharding(line, P("data")),
            {"balance": {"ranks": 4}},
            "got 4, and sharding cuts batches into 8",
        ),
        (line, {"balance": "attention"}, "got a Mesh, must be a jax.sharding.Sharding"),
    ]
    for sharding, options, says in cases:
        with pytest.raises(ConfigError, match=says):
            tl.DataLoader(data, **({"batch_size": 16} | options), sharding=sharding)

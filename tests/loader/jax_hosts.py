"""Several processes that JAX knows of each other, each with devices of its own: one
global batch on all of them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tokenlake as tl
from tests.loader.jax_checks import check_batch, reference
from tests.sources.batch_digest import digest
from tokenlake import LoaderRestore, LoaderSave
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import LoaderHandler

ROWS = 16


def main(facts: dict[str, Any]) -> dict[str, Any]:
    small, large, learned = (
        tl.open(facts["store"], name) for name in ("small", "large", "learned")
    )
    mixture = tl.Mixture({"a": large, "b": learned}, {"a": 0.8, "b": 0.2}, rows=500)
    for sharding, share in _shardings() if facts["passes"] else ():
        _check_pass(small, ROWS, sharding, share, seed=3)
    sharding = _shardings()[0][0]
    _check_pass(small, {0: 8, 3: 16, 5: 24}, sharding, 1 / jax.process_count())
    _check_pass(learned, ROWS, sharding, 1 / jax.process_count(), drop_last=True)
    _check_global(small, sharding)
    return {
        "decoded": {
            "dataset": _decoded(large, sharding),
            "mixture": _decoded(mixture, sharding),
        },
        "elastic": _go_on(large, sharding, facts),
    }


def _shardings() -> list[tuple[NamedSharding, float]]:
    """And which share of a batch's rows each process needs."""
    devices = np.array(jax.devices())
    hosts = jax.process_count()
    here = devices.reshape(hosts, -1)
    across = here.T
    return [
        (NamedSharding(Mesh(devices, ("data",)), P("data")), 1 / hosts),
        (NamedSharding(Mesh(here, ("data", "model")), P("data")), 1 / hosts),
        (NamedSharding(Mesh(here, ("data", "seq")), P("data", "seq")), 1 / hosts),
        (
            NamedSharding(Mesh(here, ("data", "model")), P(("data", "model"), None)),
            1 / hosts,
        ),
        # The axis that is not of rows goes across processes: each has a part of every
        # row.
        (NamedSharding(Mesh(across, ("data", "seq")), P("data", "seq")), 1.0),
        (NamedSharding(Mesh(across, ("data", "model")), P("data")), 1.0),
        (NamedSharding(Mesh(devices, ("data",)), P()), 1.0),
        # Each process has rows from all over the batch.
        (NamedSharding(Mesh(across.reshape(-1), ("data",)), P("data")), 1 / hosts),
        # Some processes have no part in it at all.
        (
            NamedSharding(Mesh(here[0], ("data",)), P("data")),
            1.0 if jax.process_index() == 0 else 0.0,
        ),
    ]


def _check_pass(
    data: Any, batch_size: Any, sharding: NamedSharding, share: float, **options: Any
) -> None:
    loader = tl.DataLoader(data, batch_size, sharding=sharding, **options)
    for size in loader.plan.sizes.points:
        wanted = loader._reader.wanted(size[1])
        assert len(wanted) == share * size[1]
    twin = tl.DataLoader(data, batch_size, pad_last=True, **options)
    for got, expected in zip(loader, twin, strict=True):
        check_batch(got, expected, sharding)
        assert loader.get_state() == twin.get_state()
    if share == 0.0:
        assert loader.decoded.groups == 0


def _check_global(data: Any, sharding: NamedSharding) -> None:
    """What all processes compute of a batch together is what one computes of all of
    it.
    """
    total = jax.jit(jnp.sum)
    for got, expected in zip(
        tl.DataLoader(data, ROWS, sharding=sharding), reference(data, ROWS), strict=True
    ):
        assert int(total(got["positions"])) == expected["positions"].sum()
        last = got
    gathered = multihost_utils.process_allgather(last, tiled=True)
    assert gathered.keys() == expected.keys()
    for name, whole in expected.items():
        np.testing.assert_array_equal(gathered[name], whole)


def _decoded(data: Any, sharding: NamedSharding) -> dict[str, int]:
    """Row groups that this process decodes in a pass, and (said by the first one)
    those that one alone would.
    """
    # A process needs the row groups of its lanes only in an order of windows or
    # strands.
    loaders = [tl.DataLoader(data, ROWS, sharding=sharding, window=1)]
    if jax.process_index() == 0:
        loaders.append(tl.DataLoader(data, ROWS, window=1))
    for loader in loaders:
        assert sum(1 for _ in loader) == len(loader)
    here, *whole = [loader.decoded.groups for loader in loaders]
    return {"here": here, "whole": sum(whole)}


def _go_on(data: Any, sharding: NamedSharding, facts: dict[str, Any]) -> dict[str, Any]:
    """Take a run over from other processes for some steps: from their state, or from
    their checkpoint.
    """
    loader = tl.DataLoader(data, ROWS, seed=7, sharding=sharding)
    params = {
        "w": jax.jit(lambda: jnp.arange(64.0).reshape(8, 8), out_shardings=sharding)()
    }
    with ocp.CheckpointManager(facts["folder"]) as manager:
        if facts["state"] is not None:
            loader.set_state(facts["state"])
        else:
            args = ocp.args.Composite(
                model=ocp.args.StandardRestore(params), data=LoaderRestore(loader)
            )
            restored = manager.restore(manager.latest_step(), args=args)
            check_batch(
                {"w": restored.model["w"]},
                {"w": np.arange(64.0, dtype="f").reshape(8, 8)},
                sharding,
            )
        batches = iter(loader)
        gathered = [
            multihost_utils.process_allgather(next(batches), tiled=True)
            for _ in range(facts["steps"])
        ]
        state = loader.get_state()
        args = ocp.args.Composite(
            model=ocp.args.StandardSave(params), data=LoaderSave(loader)
        )
        manager.save(loader.step, args=args)
        _check_ahead(loader, manager)
    _check_one_writes(data, epath.Path(facts["folder"]) / f"of-{jax.process_count()}")
    return {"batches": [digest(batch) for batch in gathered], "state": state}


def _check_ahead(loader: tl.DataLoader, manager: ocp.CheckpointManager) -> None:
    """A process that has gone on alone is found out, by all of them."""
    manager.wait_until_finished()
    ours = [loader.step, loader.step + (jax.process_index() == 1)]
    state = loader.get_state()
    loader.set_state(
        state | {"step": ours[1], "rows": state["rows"] + ROWS * (ours[1] - ours[0])}
    )
    at = f"{{0: {ours[0]}, 1: {ours[0] + 1}"
    with pytest.raises(
        ConfigError, match=rf"different states of the loader, at these steps: {at}"
    ):
        manager.save(ours[0] + 1, args=ocp.args.Composite(data=LoaderSave(loader)))


def _check_one_writes(data: Any, folder: epath.Path) -> None:
    """Of the processes that take part: each is given a folder of its own, and one of
    them writes.
    """
    if jax.process_index() > 1:
        return
    options = ocp.options.MultiprocessingOptions(
        primary_host=1, active_processes={0, 1}
    )
    mine = folder / str(jax.process_index())
    mine.mkdir(parents=True)
    loader = tl.DataLoader(data, ROWS)
    LoaderHandler(multiprocessing_options=options).save(mine, args=LoaderSave(loader))
    assert [path.name for path in mine.iterdir()] == ["metadata"] * (
        jax.process_index() == 1
    )

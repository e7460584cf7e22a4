"""One process: the states of model and loader in one checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tokenlake as tl
from tests.loader.jax_checks import check_batch, reference
from tokenlake import LoaderRestore, LoaderSave
from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.runtime.loader import LoaderHandler

ROWS = 16


def main(facts: dict[str, Any]) -> None:
    small, folder = tl.open(facts["store"], "small"), Path(facts["folder"])
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    _check_together(small, sharding, folder / "together")
    _check_plain_json(small, folder / "json")
    _check_refusals(small, folder / "together")
    _check_alone(small, folder / "alone")


def _check_together(data: Any, sharding: NamedSharding, folder: Path) -> None:
    params = {
        "w": jax.device_put(np.arange(64.0, dtype=np.float32).reshape(8, 8), sharding)
    }
    loader = tl.DataLoader(data, ROWS, seed=1, sharding=sharding)
    batches = iter(loader)
    _skip(batches, 2)
    told = loader.get_state()
    with ocp.CheckpointManager(folder) as manager:
        saved = ocp.args.Composite(
            model=ocp.args.StandardSave(params), data=LoaderSave(loader)
        )
        _skip(batches, 1)
        manager.save(2, args=saved)
        # It is written by a thread; the loader goes on meanwhile.
        _skip(batches, 2)
        manager.wait_until_finished()
        manager.save(
            5,
            args=ocp.args.Composite(
                model=ocp.args.StandardSave(params), data=LoaderSave(loader)
            ),
        )
    assert json.loads((folder / "2" / "data" / "metadata").read_text()) == told
    loader.close()

    for step in (2, 5):
        again = tl.DataLoader(data, ROWS, seed=1, sharding=sharding)
        with ocp.CheckpointManager(folder) as manager:
            empty = {"w": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding)}
            restored = manager.restore(
                step,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore(empty), data=LoaderRestore(again)
                ),
            )
            assert (restored.data is again, again.step) == (True, step)
            np.testing.assert_array_equal(restored.model["w"], params["w"])
        rest = list(reference(data, ROWS, seed=1))[step:]
        for got, expected in zip(again, rest, strict=True):
            check_batch(got, expected, sharding)

    with ocp.CheckpointManager(folder) as manager:
        assert manager.restore(2)["data"] == told


def _check_plain_json(data: Any, folder: Path) -> None:
    """What Orbax brings along writes and reads the same file."""
    loader = tl.DataLoader(data, ROWS, seed=1)
    _skip(iter(loader), 3)
    with ocp.CheckpointManager(folder) as manager:
        manager.save(
            3, args=ocp.args.Composite(data=ocp.args.JsonSave(loader.get_state()))
        )
    with ocp.CheckpointManager(folder) as manager:
        again = tl.DataLoader(data, ROWS, seed=1)
        manager.restore(3, args=ocp.args.Composite(data=LoaderRestore(again)))
        assert again.get_state() == loader.get_state()
        manager.save(4, args=ocp.args.Composite(data=LoaderSave(again)))
    with ocp.CheckpointManager(folder) as manager:
        restored = manager.restore(
            4, args=ocp.args.Composite(data=ocp.args.JsonRestore())
        )
        assert restored.data == loader.get_state()


def _check_refusals(data: Any, folder: Path) -> None:
    other = tl.DataLoader(data, ROWS, seed=2)
    with ocp.CheckpointManager(folder) as manager:
        with pytest.raises(ConfigError, match="seed is 1 there and 2 here"):
            manager.restore(2, args=ocp.args.Composite(data=LoaderRestore(other)))
        assert other.step == 0
        with pytest.raises(
            NotFoundError, match=r"there is no state of a loader in .*model"
        ):
            manager.restore(2, args=ocp.args.Composite(model=LoaderRestore(other)))


def _check_alone(data: Any, folder: Path) -> None:
    """Without a manager, and without threads."""
    loader = tl.DataLoader(data, ROWS, seed=1)
    _skip(iter(loader), 1)
    with ocp.Checkpointer(LoaderHandler()) as checkpointer:
        checkpointer.save(folder, args=LoaderSave(loader))
        assert checkpointer.restore(folder) == loader.get_state()
        again = tl.DataLoader(data, ROWS, seed=1)
        assert checkpointer.restore(folder, args=LoaderRestore(again)) is again
        assert again.get_state() == loader.get_state()


def _skip(batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(batches)

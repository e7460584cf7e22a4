"""Loading onto the devices of several processes: the same global batches, each
process reading its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.loader.jax_support import packed_store, run
from tests.sources.batch_digest import digest

ROWS = 16


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_store(tmp_path_factory)


@pytest.mark.integration
def test_two_and_four_processes_take_a_run_over_from_eight_and_give_it_back(
    store: Path, tmp_path: Path
) -> None:
    large = tl.open(str(store), "large")
    whole = [
        digest(batch) for batch in tl.DataLoader(large, ROWS, seed=7, pad_last=True)
    ]
    said, state = _eight_hosts(large, None, 4)
    places = {"store": str(store), "folder": str(tmp_path)}
    # Two take the state of the eight, and save a checkpoint; four go on from that.
    two = run(
        "tests.loader.jax_hosts",
        processes=2,
        devices=4,
        state=state,
        steps=3,
        passes=True,
        **places,
    )
    four = run(
        "tests.loader.jax_hosts",
        processes=4,
        devices=2,
        state=None,
        steps=3,
        passes=False,
        **places,
    )
    for answers in (two, four):
        assert all(answer["elastic"] == answers[0]["elastic"] for answer in answers)
        said += answers[0]["elastic"]["batches"]
        _check_share([answer["decoded"] for answer in answers])
    more, state = _eight_hosts(large, four[0]["elastic"]["state"], len(whole) - 10)
    assert said + more == whole
    assert state["step"] == len(whole)
    # There is one state, not one for each process (and Orbax's own mark, on some file
    # systems).
    files = {path.name for path in (tmp_path / "7" / "data").iterdir()}
    assert files - {"commit_success.txt"} == {"metadata"}


@pytest.mark.parametrize("hosts", [2, 8])
def test_hosts_together_have_the_batches_of_one(store: Path, hosts: int) -> None:
    small, learned = tl.open(str(store), "small"), tl.open(str(store), "learned")
    # The last batch has 2 rows: most hosts have none of them.
    mixture = tl.Mixture(
        {"a": small, "b": learned}, {"a": 0.6, "b": 0.4}, rows=ROWS * 9 + 2
    )
    options: tuple[tuple[Any, dict[str, Any]], ...] = (
        (small, {"batch_size": ROWS}),
        (learned, {"batch_size": {0: 8, 3: 16}, "drop_last": True, "epochs": 2}),
        (mixture, {"batch_size": ROWS}),
    )
    for data, given in options:
        whole = list(tl.DataLoader(data, **given))
        parts = [
            tl.DataLoader(data, host=(index, hosts), **given) for index in range(hosts)
        ]
        count = 0
        for expected, *got in zip(whole, *parts, strict=True):
            count += 1
            for name, values in expected.items():
                np.testing.assert_array_equal(
                    np.concatenate([batch[name] for batch in got]), values
                )
        states = [part.get_state() for part in parts]
        assert states == states[:1] * hosts
        assert states[0]["step"] == count > 5


def _eight_hosts(
    data: tl.Dataset, state: dict[str, Any] | None, steps: int
) -> tuple[list[str], dict[str, Any]]:
    """Take a run over from others for some steps: what each host has, put together,
    and the state of them all.
    """
    loaders = [
        tl.DataLoader(data, ROWS, seed=7, host=(index, 8), pad_last=True)
        for index in range(8)
    ]
    for loader in loaders:
        if state is not None:
            loader.set_state(state)
    iterators: list[Iterator[Any]] = [iter(loader) for loader in loaders]
    said: list[str] = []
    for _ in range(steps):
        parts = [next(iterator) for iterator in iterators]
        said.append(
            digest(
                {
                    name: np.concatenate([part[name] for part in parts])
                    for name in parts[0]
                }
            )
        )
    states = [loader.get_state() for loader in loaders]
    assert states == states[:1] * 8
    for loader in loaders:
        loader.close()
    return said, states[0]


def _check_share(decoded: list[dict[str, Any]]) -> None:
    """A process decodes its share of the row groups, not more."""
    for data in ("dataset", "mixture"):
        whole = decoded[0][data]["whole"]
        for process in decoded:
            assert 0 < process[data]["here"] <= 1.2 * whole / len(decoded)

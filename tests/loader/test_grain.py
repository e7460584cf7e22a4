"""Grain: the loader's batches under Grain's own checkpoints and processes, and rows
by number.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.lazily import lazily
from tests.loader.grain_step import shifted
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime import loader

grain: Any = lazily("grain")
ocp: Any = lazily("orbax.checkpoint")
flags: Any = lazily("absl.flags")
experimental: Any = lazily("grain._src.python.testing.experimental")

OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 3}


@pytest.fixture(scope="module", autouse=True)
def parsed_flags():
    """What absl's app does in a program; Grain's processes want it."""
    flags.FLAGS.mark_as_parsed()


@pytest.fixture
def mixture(root: str, learned: tl.Dataset) -> tl.Mixture:
    return tl.Mixture(
        {"a": learned, "b": tl.open(root, "plain")}, {"a": 0.6, "b": 0.4}, rows=41
    )


def ids(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


def test_batches_are_those_of_the_loader(mixture: tl.Mixture):
    dataset = tl.grain_dataset(mixture, **OPTIONS)
    for batch, wanted in zip(dataset, tl.DataLoader(mixture, **OPTIONS), strict=True):
        assert batch.keys() == wanted.keys()
        assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)
        assert batch["input_ids"].dtype == np.int32
    assert str(dataset) == "GrainBatches(learned@v1/train, plain@v1/train)"


def test_grain_finds_the_same_after_every_checkpoint(
    learned: tl.Dataset, mixture: tl.Mixture
):
    experimental.assert_equal_output_after_checkpoint(
        tl.grain_dataset(mixture, **OPTIONS)
    )
    dataset = tl.grain_dataset(learned, **OPTIONS)
    experimental.assert_equal_output_after_checkpoint(
        dataset.map(shifted).filter(lambda batch: batch["input_ids"][0, 0] % 2)
    )
    experimental.assert_equal_output_after_checkpoint(
        dataset.batch(2, drop_remainder=False)
    )


@pytest.mark.integration
def test_processes_of_grain_take_turns(learned: tl.Dataset):
    wanted = [
        (np.array(batch) + 1).tolist()
        for batch in ids(tl.DataLoader(learned, **OPTIONS))
    ]
    options = grain.MultiprocessingOptions(num_workers=2)
    iterator = iter(
        tl.grain_dataset(learned, **OPTIONS).map(shifted).mp_prefetch(options)
    )
    try:
        head = ids(islice(iterator, 3))
        state = json.loads(json.dumps(iterator.get_state()))
        assert head + ids(iterator) == wanted
        iterator.set_state(state)
        assert ids(iterator) == wanted[3:]
    finally:
        iterator.close()


def test_slices_of_slices_are_every_nth_batch(learned: tl.Dataset):
    wanted = ids(tl.DataLoader(learned, 4))
    dataset = tl.grain_dataset(learned, 4)
    dataset.set_slice(slice(1, None, 2))
    assert ids(dataset) == wanted[1::2]
    dataset.set_slice(slice(1, None, 3))
    assert ids(dataset) == wanted[1::2][1::3]
    state = iter(dataset).get_state()
    with pytest.raises(ConfigError, match=r"worker 3 of 6, this is 0 of 1"):
        iter(tl.grain_dataset(learned, 4)).set_state(state)
    with pytest.raises(ConfigError, match="sequential_slice"):
        dataset.set_slice(slice(0, None, 2), sequential_slice=True)
    with pytest.raises(ConfigError, match="slice: got"):
        dataset.set_slice(slice(0, 5))


def test_states_are_those_of_the_loader_too(learned: tl.Dataset):
    loader = tl.DataLoader(learned, **OPTIONS)
    list(islice(loader, 4))
    iterator = iter(tl.grain_dataset(learned, **OPTIONS))
    iterator.set_state(loader.get_state())
    wanted = ids(loader)
    assert ids(iterator) == wanted
    iterator.set_state(iter(tl.grain_dataset(learned, **OPTIONS)).get_state())
    assert len(ids(iterator)) == len(wanted) + 4
    with pytest.raises(ConfigError, match="seed is 4 there and 3 here"):
        iterator.set_state(
            iter(tl.grain_dataset(learned, batch_size=8, seed=4)).get_state()
        )


def test_orbax_saves_and_restores_the_iterator(learned: tl.Dataset, tmp_path: Path):
    dataset = tl.grain_dataset(learned, **OPTIONS).map(shifted)
    iterator = iter(dataset)
    list(islice(iterator, 3))
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(
            3, args=ocp.args.Composite(loader=grain.checkpoint.CheckpointSave(iterator))
        )
        manager.wait_until_finished()
        wanted = ids(iterator)
        restored = iter(dataset)
        manager.restore(
            3,
            args=ocp.args.Composite(
                loader=grain.checkpoint.CheckpointRestore(restored)
            ),
        )
        assert ids(restored) == wanted
        assert wanted


def test_threads_end_with_the_iterator(learned: tl.Dataset):
    before = set(threading.enumerate())
    iterator = iter(tl.grain_dataset(learned, 4))
    next(iterator)
    started = set(threading.enumerate()) - before
    assert started
    iterator.close()
    assert not any(thread.is_alive() for thread in started)
    with pytest.raises(ValueError, match="closed"):
        next(iterator)


def test_rows_by_number_in_pipelines_of_grain(learned: tl.Dataset):
    source = tl.grain_source(learned, columns=["input_ids", "loss_mask"])
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    copy = pickle.loads(pickle.dumps(source))
    assert repr(copy) == repr(source) != repr(tl.grain_source(learned))
    rows = list(grain.MapDataset.source(copy).shuffle(seed=1))
    assert sorted(ids(rows)) == sorted(learned[:]["input_ids"].tolist())
    assert rows[0]["loss_mask"].dtype == np.bool_
    sampler = grain.samplers.IndexSampler(
        len(source), grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=2
    )
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(8)]
    )
    iterator = iter(loader)
    list(islice(iterator, 2))
    state = iterator.get_state()
    wanted = ids(iterator)
    again = iter(
        grain.DataLoader(
            data_source=copy, sampler=sampler, operations=[grain.transforms.Batch(8)]
        )
    )
    again.set_state(state)
    assert ids(again) == wanted
    with pytest.raises(IndexError, match="there is no row"):
        source[len(source)]


def test_wrong_arguments_are_refused(
    root: str, learned: tl.Dataset, mixture: tl.Mixture
):
    with pytest.raises(ConfigError, match="batch_size: got 0"):
        tl.grain_dataset(learned, 0)
    with pytest.raises(ConfigError, match="rows of a mixture have no numbers"):
        tl.grain_source(mixture)  # pyright: ignore[reportArgumentType]


def test_a_missing_grain_is_named_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delitem(sys.modules, "tokenlake.runtime.loader.grain", raising=False)
    monkeypatch.delattr(loader, "grain", raising=False)
    monkeypatch.setitem(sys.modules, "grain", None)
    monkeypatch.delitem(vars(tl), "grain_dataset", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'tokenlake\[grain\]'"):
        _ = tl.grain_dataset


def test_iterators_of_one_dataset_are_independent(learned: tl.Dataset):
    dataset = tl.grain_dataset(learned, **OPTIONS)
    pairs = list(zip(dataset, dataset, strict=True))
    assert ids(one for one, _ in pairs) == ids(two for _, two in pairs) == ids(dataset)
    with pytest.raises(ConfigError, match="grain_dataset has no option 'num_workers'"):
        tl.grain_dataset(learned, 8, num_workers=2)

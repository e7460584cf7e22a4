"""Preferences: what is chosen and rejected, each with its prompt, however it is
stored; and through every adapter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.loader.preference_store import JUDGED, preference_store
from tests.seeds import promise
from tokenlake.errors import ConfigError

Row = dict[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preference_store(tmp_path_factory)


def opened(store: Path, name: str) -> tl.Dataset:
    return tl.open(store, name)


def expected(ds: tl.Dataset) -> list[tuple[list[int], list[int], list[int]]]:
    """Of each pair the ids of the prompt, and of it with each answer."""
    rows = ds.read(0, len(ds)).to_pylist()
    if "chosen_ids" in rows[0]:
        prompts = [row["prompt_ids"] for row in rows]
        return [
            (prompt, prompt + row["chosen_ids"], prompt + row["rejected_ids"])
            for prompt, row in zip(prompts, rows, strict=True)
        ]
    return [
        (row["prompt_input_ids"], row["chosen_input_ids"], row["rejected_input_ids"])
        for row in rows
    ]


def unpadded(batch: Row, run: str, at: int) -> list[int]:
    return batch[f"{run}_input_ids"][at][batch[f"{run}_attention_mask"][at]].tolist()


@promise(277, 278, 334)
@pytest.mark.parametrize("name", ["dpo-trl", "dpo-easydel", "orpo-trl"])
@pytest.mark.parametrize(
    "padding", [{}, {"length": 80, "side": "left"}, {"buckets": 3}], ids=str
)
def test_pairs_come_with_their_prompts_whichever_way_they_are_stored(
    store: Path, name: str, padding: Row
):
    ds = opened(store, name)
    runs = ("prompt", "chosen", "rejected")
    columns = [
        f"{run}_{what}"
        for run in runs
        for what in ("input_ids", "attention_mask", "lengths")
    ]
    marked = [
        f"{run}_{what}"
        for run in runs[1:]
        for what in ("labels", "loss_mask", "positions")
    ]
    got = list[tuple[list[int], ...]]()
    for batch in tl.DataLoader(ds, 8, padding=padding, columns=[*columns, *marked]):
        shape = batch["chosen_input_ids"].shape
        assert all(values.shape in (shape, shape[:1]) for values in batch.values())
        for at in range(len(batch["chosen_input_ids"])):
            row = tuple(unpadded(batch, run, at) for run in runs)
            assert [int(batch[f"{run}_lengths"][at]) for run in runs] == list(
                map(len, row)
            )
            for run, each in zip(runs[1:], row[1:], strict=True):
                here = batch[f"{run}_attention_mask"][at]
                labels = [-100] * len(row[0]) + each[len(row[0]) :]
                assert batch[f"{run}_labels"][at][here].tolist() == labels
                assert (
                    batch[f"{run}_loss_mask"][at]
                    == (batch[f"{run}_labels"][at] != -100)
                ).all()
                assert batch[f"{run}_positions"][at][here].tolist() == list(
                    range(len(each))
                )
            got.append(row)
    assert sorted(got) == sorted(expected(ds))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["dpo-trl", "dpo-easydel"])
def test_what_is_cut_is_counted(store: Path, name: str, side: str):
    ds = opened(store, name)
    limit = 20
    pairs = expected(ds)
    loader = tl.DataLoader(ds, 8, padding={"length": limit, "truncate": side})
    cut = slice(-limit, None) if side == "left" else slice(0, limit)
    got = [
        (unpadded(batch, "chosen", at), unpadded(batch, "rejected", at))
        for batch in loader
        for at in range(len(batch["chosen_labels"]))
    ]
    assert sorted(got) == sorted(
        (chosen[cut], rejected[cut]) for _, chosen, rejected in pairs
    )
    over = [pair for pair in pairs if max(len(pair[1]), len(pair[2])) > limit]
    assert loader.truncated.rows == len(over) > 0
    assert loader.truncated.ids == sum(
        max(len(each) - limit, 0) for pair in over for each in pair[1:]
    )
    silent = sum(len(pair[0]) >= limit for pair in over) if side == "right" else 0
    assert loader.truncated.without_loss == silent
    with pytest.raises(ConfigError, match=r"are longer than 20 ids.*truncate"):
        tl.DataLoader(ds, 8, padding={"length": limit})


@promise(277)
@pytest.mark.parametrize("trainer", ["trl", "easydel"])
def test_other_methods_have_their_runs(store: Path, trainer: str):
    (batch, *_) = tl.DataLoader(opened(store, f"kto-{trainer}"), 20, shuffle=False)
    assert list(batch) == [
        "completion_input_ids",
        "completion_attention_mask",
        "completion_labels",
        "label",
    ]
    assert batch["label"].tolist() == [row["label"] for row in JUDGED]
    assert batch["label"].dtype == np.bool_
    (batch, *_) = tl.DataLoader(opened(store, f"reward-{trainer}"), 8)
    assert list(batch) == [
        f"{run}_{what}"
        for run in ("chosen", "rejected")
        for what in ("input_ids", "attention_mask")
    ]
    (batch, *_) = tl.DataLoader(
        opened(store, f"grpo-{trainer}"), 8, padding={"side": "left"}
    )
    assert list(batch) == ["prompt_input_ids", "prompt_attention_mask"]
    assert batch["prompt_attention_mask"][:, -1].all()
    with pytest.raises(ConfigError, match=r"columns: got .*prompt_labels"):
        tl.DataLoader(opened(store, f"dpo-{trainer}"), 8, columns=["prompt_labels"])


def test_both_ways_of_storing_give_the_same_batches(store: Path):
    options: Row = {"padding": {"buckets": 3}, "seed": 5}
    ours, theirs = (
        list(tl.DataLoader(opened(store, f"dpo-{name}"), 8, **options))
        for name in ("trl", "easydel")
    )
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all((one[name] == other[name]).all() for name in one)


def same(batches: list[Row], others: list[Row], *names: str) -> bool:
    return len(batches) == len(others) and all(
        np.array_equal(np.asarray(one[name]), np.asarray(other[name]))
        for one, other in zip(batches, others, strict=True)
        for name in names
    )


BUCKETS: Row = {"padding": {"buckets": 3}, "seed": 2, "epochs": 2}
ANSWERS = ("chosen_input_ids", "rejected_labels")


def test_torch_workers_give_the_batches_of_the_loader_and_resume(store: Path):
    torch = pytest.importorskip("torch")
    ds = opened(store, "dpo-trl")
    whole = list(tl.DataLoader(ds, 8, **BUCKETS))
    dataset = tl.torch_dataset(ds, 8, host=(0, 1), **BUCKETS)
    assert len(dataset) == len(whole)
    got = list(torch.utils.data.DataLoader(dataset, batch_size=None))
    assert same(got, whole, *ANSWERS)
    assert got[0]["chosen_labels"].dtype == torch.int64
    assert got[0]["chosen_input_ids"].dtype == torch.int32
    dataset.set_state(dataset.state_after(3))
    assert same(list(dataset), whole[3:], *ANSWERS)
    with pytest.raises(ConfigError, match="rows: got True"):
        tl.torch_dataset(ds, 8, host=(0, 1), rows=True, **BUCKETS)
    rows = tl.torch_dataset(ds, 8, host=(0, 2), rows=True)
    assert len(rows) == len(list(rows)) == 20


def test_grain_gives_the_batches_of_the_loader_and_resumes(store: Path):
    pytest.importorskip("grain")
    ds = opened(store, "dpo-trl")
    whole = list(tl.DataLoader(ds, 8, **BUCKETS))
    iterator = iter(tl.grain_dataset(ds, 8, **BUCKETS))
    assert same([next(iterator) for _ in range(2)], whole[:2], *ANSWERS)
    state = json.loads(json.dumps(iterator.get_state()))
    other = iter(tl.grain_dataset(ds, 8, **BUCKETS))
    other.set_state(state)
    assert same(list(other), whole[2:], *ANSWERS)
    iterator.close()


def test_hugging_face_gives_the_rows_of_the_loader(store: Path):
    pytest.importorskip("datasets")
    ds = opened(store, "dpo-trl")
    padding = {"length": 80}
    (whole, *_) = tl.DataLoader(ds, 40, padding=padding)
    rows = list(
        tl.hf_dataset(ds, 40, padding=padding, rename={"chosen_labels": "labels"})
    )
    assert set(rows[0]) == {*whole, "labels"} - {"chosen_labels"}
    assert (np.array([row["labels"] for row in rows]) == whole["chosen_labels"]).all()
    assert (
        np.array([row["chosen_attention_mask"] for row in rows])
        == whole["chosen_attention_mask"]
    ).all()


@pytest.mark.parametrize("name", ["dpo-trl", "kto-trl"])
def test_rows_by_number_are_those_of_the_loader(store: Path, name: str):
    pytest.importorskip("grain")
    ds = opened(store, name)
    source = tl.grain_source(ds)
    (batch,) = tl.DataLoader(ds, len(ds), shuffle=False, padding={})
    for at in range(len(ds)):
        row = source[at]
        assert row.keys() == batch.keys()
        for column, values in row.items():
            whole = batch[column][at]
            assert (
                values.tolist()
                == (whole[: values.size] if values.ndim else whole).tolist()
            )
        masks = [column for column in row if column.endswith("attention_mask")]
        assert [row[column].sum() for column in masks] == [
            batch[column][at].sum() for column in masks
        ]
        # The longest run is not padded.
        assert any(row[column].all() for column in masks)


@promise(278)
def test_devices_get_what_hosts_make(store: Path):
    jax = pytest.importorskip("jax")
    ds = opened(store, "kto-trl")
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(jax.devices("cpu")[:1], ("data",)),
        jax.sharding.PartitionSpec("data"),
    )
    columns = ["completion_input_ids", "completion_lengths", "label"]
    options: Row = {"columns": columns, "padding": {"buckets": 2, "multiple": 8}}
    on_devices = tl.DataLoader(ds, 4, sharding=sharding, **options)
    got = list(on_devices)
    assert same(got, list(tl.DataLoader(ds, 4, pad_last=True, **options)), *columns)
    assert {batch["completion_input_ids"].shape for batch in got} <= set(
        on_devices.shapes or ()
    )
    assert all(
        isinstance(values, jax.Array) for batch in got for values in batch.values()
    )


def test_other_methods_are_not_mixed(store: Path):
    pairs, judged = opened(store, "dpo-trl"), opened(store, "kto-trl")
    mixture = tl.Mixture({"a": pairs, "b": judged}, {"a": 0.5, "b": 0.5}, rows=40)
    with pytest.raises(ConfigError, match="rows of one kind and the same columns"):
        tl.DataLoader(mixture, 8)
    twice = tl.Mixture({"a": pairs, "b": pairs}, {"a": 0.5, "b": 0.5}, rows=40)
    assert len(list(tl.DataLoader(twice, 8, padding={"multiple": 8}))) == 5

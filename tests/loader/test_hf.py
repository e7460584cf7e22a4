"""Hugging Face: rows by number and in the loader's order, as models of transformers
take them.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.lazily import lazily
from tokenlake.errors import ConfigError, IntegrityError, MissingExtraError
from tokenlake.runtime.reading import StoredRows

datasets: Any = lazily("datasets")
torch: Any = lazily("torch")
torch_data: Any = lazily("torch.utils.data")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

OPTIONS: dict[str, Any] = {"batch_size": 5, "seed": 3}
ALL = (
    "input_ids",
    "labels",
    "position_ids",
    "attention_mask",
    "segment_ids",
    "loss_mask",
    "targets",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "tokenlake"


def ids(rows: Any) -> list[Any]:
    return [np.asarray(row["input_ids"]).tolist() for row in rows]


def rows_of(batches: Any) -> list[Any]:
    return [row for batch in ids(batches) for row in batch]


def test_all_rows_by_number(learned: tl.Dataset):
    found = learned.to_hf(columns=ALL)
    rows = np.arange(len(learned))
    wanted = learned.take(
        rows,
        ["input_ids", "segment_ids", "positions", "loss_mask", "labels", "targets"],
    )
    wanted["position_ids"] = wanted.pop("positions")
    wanted["attention_mask"] = (wanted["segment_ids"] > 0).astype(np.int8)
    assert found.split == "train"
    assert found.column_names == list(ALL)
    table = found.with_format("numpy")[:]
    for name in ALL:
        assert np.array_equal(table[name], wanted[name]), name
    types = {
        name: (feature.feature.dtype, feature.length)
        for name, feature in found.features.items()
    }
    assert types.pop("attention_mask") == ("int8", 32)
    assert types.pop("loss_mask") == ("bool", 32)
    assert set(types.values()) == {("int32", 32)}
    assert learned.to_hf().column_names == ["input_ids", "labels", "position_ids"]


def test_columns_may_have_other_names(learned: tl.Dataset):
    found = learned.to_hf(
        columns=["input_ids", "attention_mask"], rename={"input_ids": "tokens"}
    )
    assert found.column_names == ["tokens", "attention_mask"]
    assert found[3]["tokens"] == learned[3]["input_ids"].tolist()


@pytest.mark.parametrize("name", ["texts", "answers", "left", "judged"])
def test_other_kinds_come_as_they_are_stored(root: str, name: str):
    data = tl.open(root, name)
    assert data.to_hf()[:] == data.read(0, len(data)).to_pydict()
    first = data.schema.names[0]
    assert data.to_hf(columns=[first], rename={first: "x"}).column_names == ["x"]


def test_files_are_made_once_and_hashed_when_they_are_used_again(
    learned: tl.Dataset, cache: Path
):
    wanted = learned.to_hf()[:]
    files = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert {path.suffix for path in files} == {".arrow", ".sha256"}
    assert len(files) == 2 * sum(
        shard.split == "train" for shard in learned.manifest.files
    )
    assert learned.to_hf()[:] == wanted
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == files
    damaged = next(path for path in files if path.suffix == ".arrow")
    data = bytearray(damaged.read_bytes())
    data[-len(data) // 2] ^= 1
    damaged.write_bytes(data)
    assert learned.to_hf()[:] == wanted
    assert cache.exists()
    assert sorted(cache.iterdir()) == sorted(files)


def test_a_damaged_shard_makes_no_file(root: str, tmp_path: Path, cache: Path):
    shutil.copytree(root, tmp_path / "store")
    for path in (tmp_path / "store" / "learned").rglob("*.parquet"):
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[len(data) // 8] ^= 1  # in the ids, which come first
        path.write_bytes(data)
    with pytest.raises(
        IntegrityError, match=r"learned@v1: data/train-.*\.parquet: row group"
    ):
        tl.open(str(tmp_path / "store"), "learned").to_hf()
    assert list(cache.iterdir()) == []


def test_all_libraries_give_the_same_rows_in_the_same_order(
    learned: tl.Dataset, root: str
):
    mixture = tl.Mixture(
        {"a": learned, "b": tl.open(root, "plain")}, {"a": 0.6, "b": 0.4}, rows=33
    )
    for data in (learned, mixture):
        wanted = rows_of(tl.DataLoader(data, **OPTIONS))
        assert rows_of(tl.torch_dataset(data, **OPTIONS)) == wanted
        assert rows_of(tl.grain_dataset(data, **OPTIONS)) == wanted
        assert ids(tl.hf_dataset(data, **OPTIONS)) == wanted
        assert (
            rows_of(
                tl.AsyncDataLoader(
                    data, 5, seed=3, shuffle_buffer_size=1, drop_last=False
                )
            )
            == wanted
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_torch_are_those_of_the_loader(learned: tl.Dataset, workers: int):
    dataset = tl.hf_dataset(
        learned, **OPTIONS, columns=["input_ids", "labels", "attention_mask"]
    )
    batches = list(torch_data.DataLoader(dataset, batch_size=5, num_workers=workers))
    wanted = list(tl.DataLoader(learned, **OPTIONS, columns=["input_ids", "labels"]))
    assert ids(batches) == ids(wanted)
    for batch, right in zip(batches, wanted, strict=True):
        assert np.array_equal(batch["labels"], right["labels"])
    assert {name: values.dtype for name, values in batches[0].items()} == {
        "input_ids": torch.int32,
        "labels": torch.int64,
        "attention_mask": torch.int8,
    }


@pytest.mark.parametrize("cut", [0, 3, 5, 12])
def test_a_state_of_datasets_goes_on_exactly(learned: tl.Dataset, cut: int):
    dataset = tl.hf_dataset(learned, **OPTIONS, epochs=2)
    wanted = rows_of(tl.DataLoader(learned, **OPTIONS, epochs=2))
    rows = iter(dataset)
    head = ids(islice(rows, cut))
    state = json.loads(json.dumps(dataset.state_dict()))
    other = tl.hf_dataset(learned, **OPTIONS, epochs=2)
    other.load_state_dict(state)
    assert head + ids(other) == wanted


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are decoded from now on."""
    found: list[int] = []
    original = StoredRows.packed

    def packed(rows: StoredRows, group: int, **needed: bool) -> Any:
        found.append(group)
        return original(rows, group, **needed)

    monkeypatch.setattr(StoredRows, "packed", packed)
    return found


def test_what_came_before_a_state_is_not_read_again(
    learned: tl.Dataset, decoded: list[int]
):
    dataset = tl.hf_dataset(learned, **OPTIONS)
    rows = iter(dataset)
    list(islice(rows, 55))
    state = dataset.state_dict()
    del rows
    other = tl.hf_dataset(learned, **OPTIONS)
    other.load_state_dict(state)
    decoded.clear()
    assert len(list(other)) == len(learned) - 55
    assert 0 < len(decoded) < len(learned.rows.group_rows)


def test_steps_of_one_of_several_workers_are_read_ahead(
    learned: tl.Dataset, decoded: list[int]
):
    wanted = ids(tl.DataLoader(learned, **OPTIONS))
    groups = len(learned.rows.group_rows)
    dataset = tl.hf_dataset(learned, **OPTIONS, columns=["input_ids"])
    decoded.clear()
    # Each batch is a shard of ``datasets``; the second of two workers reads every
    # second one.
    share = dataset.shard(num_shards=2, index=1, contiguous=False)
    assert ids(share) == [row for batch in wanted[1::2] for row in batch]
    assert (
        len(decoded) <= 2 * groups
    )  # the second step shows the stride; after it each row group is decoded once


def test_threads_end_with_a_loop_that_is_left(learned: tl.Dataset):
    dataset = tl.hf_dataset(learned, **OPTIONS)
    before, started = set(threading.enumerate()), set[threading.Thread]()
    for _ in islice(dataset, 7):
        started |= set(threading.enumerate()) - before
    assert started
    assert not any(thread.is_alive() for thread in started)


def test_transformers_keeps_the_segments_of_a_row_apart(learned: tl.Dataset):
    from transformers import LlamaConfig, LlamaForCausalLM, default_data_collator

    tokens = int(learned[:]["input_ids"].max()) + 1
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
    }
    config = LlamaConfig(
        vocab_size=tokens, **sizes, num_attention_heads=2, use_cache=False
    )
    model = LlamaForCausalLM(config).eval()
    rows = list(tl.hf_dataset(learned, 2, shuffle=False))[:2]
    batch = default_data_collator(rows)
    assert (
        default_data_collator([learned.to_hf()[row] for row in range(2)]).keys()
        == batch.keys()
    )
    with torch.no_grad():
        out = model(**batch)
        lengths = np.bincount(learned[0]["segment_ids"])[1:]
        assert len(lengths) > 1
        for begin, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
            alone = model(
                input_ids=batch["input_ids"][:1, begin : begin + length]
            ).logits[0]
            torch.testing.assert_close(out.logits[0, begin : begin + length], alone)
    targets = learned.take([0, 1], ["targets"])["targets"]
    loss = torch.nn.functional.cross_entropy(
        out.logits.flatten(0, 1), torch.from_numpy(targets).long().flatten()
    )
    torch.testing.assert_close(out.loss, loss)


def test_wrong_arguments_are_refused(learned: tl.Dataset, texts: tl.Dataset):
    with pytest.raises(ConfigError, match=r"columns: got .*positions"):
        learned.to_hf(columns=["positions"])
    with pytest.raises(ConfigError, match="rename: got x"):
        learned.to_hf(rename={"x": "y"})
    with pytest.raises(ConfigError, match="two columns would have one name"):
        learned.to_hf(rename={"labels": "input_ids"})
    endless = tl.Mixture({"a": learned}, {"a": 1.0})
    with pytest.raises(ConfigError, match="must end"):
        tl.hf_dataset(endless, 4)
    with pytest.raises(ConfigError, match=r"columns: got .*positions"):
        tl.hf_dataset(texts, 4, columns=["positions"])
    for padding, more in (
        ({"buckets": 2}, {"drop_last": True}),
        ({"buckets": 2, "equal_rows": True}, {}),
    ):
        with pytest.raises(ConfigError, match="have a constant number of rows"):
            tl.hf_dataset(texts, 4, padding=padding, **more)


@pytest.mark.parametrize("full", ["drop_last", "pad_last"])
def test_buckets_of_equal_rows_come_row_by_row(texts: tl.Dataset, full: str):
    """What makes batches of as many rows of them has the loader's batches, also
    after a stop.
    """
    options: dict[str, Any] = {
        "padding": {"buckets": 3, "equal_rows": True},
        "seed": 3,
        full: True,
    }
    whole = [batch["input_ids"] for batch in tl.DataLoader(texts, 4, **options)]
    assert len({ids.shape[1] for ids in whole}) == 3
    dataset = tl.hf_dataset(texts, 4, **options).batch(4)
    rows, state = [], {}
    for number, batch in enumerate(dataset):
        rows.append(np.array(batch["input_ids"]))
        if number == 2:
            state = dataset.state_dict()
    assert len(rows) == len(whole)
    assert all((one == other).all() for one, other in zip(rows, whole, strict=True))
    dataset.load_state_dict(state)
    rest = [np.array(batch["input_ids"]) for batch in dataset]
    assert all((one == other).all() for one, other in zip(rest, whole[3:], strict=True))
    items = tl.torch_dataset(texts, 4, rows=True, **options)
    assert [len(item["input_ids"]) for item in items] == [
        ids.shape[1] for ids in whole for _ in ids
    ]


def test_missing_datasets_are_named_with_their_install_line(
    learned: tl.Dataset, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="pip install datasets"):
        learned.to_hf()


def test_loops_over_one_dataset_are_independent(learned: tl.Dataset):
    dataset = tl.hf_dataset(learned, **OPTIONS)
    pairs = list(zip(dataset, dataset, strict=True))
    assert ids(one for one, _ in pairs) == ids(two for _, two in pairs) == ids(dataset)
    with pytest.raises(ConfigError, match="hf_dataset has no option 'split'"):
        tl.hf_dataset(learned, 8, split="validation")

"""PyTorch: the loader's batches in worker processes, resumed by torchdata, and rows
by number.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.lazily import lazily
from tokenlake.errors import ConfigError, IntegrityError, MissingExtraError
from tokenlake.runtime import loader

torch: Any = lazily("torch")
torch_data: Any = lazily("torch.utils.data")
stateful: Any = lazily("torchdata.stateful_dataloader")

# Workers are forked from a process where other tests have left threads; torchdata calls
# what torch deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

Data = tl.Dataset | tl.Mixture
OPTIONS: dict[str, Any] = {"batch_size": 5, "seed": 3}


@pytest.fixture
def mixture(root: str, learned: tl.Dataset) -> tl.Mixture:
    return tl.Mixture(
        {"a": learned, "b": tl.open(root, "plain")}, {"a": 0.6, "b": 0.4}, rows=33
    )


def expected(data: Data, passes: int = 1, **options: Any) -> list[list[list[int]]]:
    loader = tl.DataLoader(data, **{**OPTIONS, **options})
    return [batch["input_ids"].tolist() for _ in range(passes) for batch in loader]


def ids(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


def end(*iterators: Any) -> None:
    """End workers now: the garbage collector may take PyTorch's queues apart first,
    and then it waits 5 s for each.
    """
    for iterator in iterators:
        iterator._shutdown_workers()


@pytest.mark.parametrize(
    ("integers", "wide"),
    [
        ("mixed", {"labels", "targets"}),
        ("int64", {"input_ids", "segment_ids", "positions", "labels", "targets"}),
        ("int32", set[str]()),
    ],
)
def test_batches_are_those_of_the_loader_as_tensors(
    learned: tl.Dataset, integers: Any, wide: set[str]
):
    names = ("input_ids", "segment_ids", "positions", "loss_mask", "labels", "targets")
    dataset = tl.torch_dataset(learned, **OPTIONS, columns=names, integers=integers)
    wanted = list(tl.DataLoader(learned, **OPTIONS, columns=names))
    batches = list(torch_data.DataLoader(dataset, batch_size=None))
    assert len(dataset) == len(batches) == len(wanted)
    for batch, right in zip(batches, wanted, strict=True):
        for name in names:
            assert np.array_equal(batch[name].numpy(), right[name]), name
    types = {name: tensor.dtype for name, tensor in batches[0].items()}
    assert types.pop("loss_mask") == torch.bool
    assert {name for name, kind in types.items() if kind == torch.int64} == wide
    assert {kind for name, kind in types.items() if name not in wide} <= {torch.int32}


def test_tensors_that_are_kept_are_never_written_again(learned: tl.Dataset):
    options: dict[str, Any] = {
        **OPTIONS,
        "epochs": 4,
        "columns": ["input_ids", "labels"],
    }
    kept = list(tl.torch_dataset(learned, **options, integers="int64"))
    wanted = [
        (batch["input_ids"].tolist(), batch["labels"].tolist())
        for batch in tl.DataLoader(learned, **options)
    ]
    assert [
        (batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in kept
    ] == wanted


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_share_out_steps_and_change_nothing_of_the_order(
    mixture: tl.Mixture, persistent: bool
):
    dataset = tl.torch_dataset(mixture, **OPTIONS)
    loader = torch_data.DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=persistent
    )
    got = ids(loader)
    # Without set_epoch the same pass again.
    assert got == ids(loader) == expected(mixture)
    dataset.set_epoch(1)
    assert got + ids(loader) == expected(mixture, passes=2)
    assert len(loader) == len(got)
    if persistent:
        end(loader._iterator)


def test_an_endless_run_in_one_worker(learned: tl.Dataset):
    dataset = tl.torch_dataset(learned, **OPTIONS, epochs=None)
    batches = iter(torch_data.DataLoader(dataset, batch_size=None, num_workers=1))
    wanted = iter(tl.DataLoader(learned, **OPTIONS, epochs=None))
    assert ids(islice(batches, 20)) == ids(islice(wanted, 20))
    end(batches)
    with pytest.raises(TypeError):
        len(dataset)
    with pytest.raises(ConfigError, match="never ends"):
        dataset.set_epoch(1)


@pytest.mark.parametrize(
    ("workers", "every", "rows"), [(0, 1, False), (2, 3, False), (2, 1, True)]
)
def test_a_stateful_loader_goes_on_exactly(
    learned: tl.Dataset, workers: int, every: int, rows: bool
):
    def loader() -> stateful.StatefulDataLoader[Any]:
        dataset = tl.torch_dataset(learned, **OPTIONS, rows=rows)
        size = OPTIONS["batch_size"] if rows else None
        return stateful.StatefulDataLoader(
            dataset,
            batch_size=size,
            num_workers=workers,
            snapshot_every_n_steps=every,
            persistent_workers=False,
        )

    wanted = expected(learned)
    first = loader()
    begun = iter(first)
    head = ids(islice(begun, 5))
    state = json.loads(json.dumps(first.state_dict()))
    assert head + ids(begun) == wanted
    second = loader()
    second.load_state_dict(state)
    assert ids(second) == wanted[5:]
    second.dataset.set_epoch(1)
    assert wanted + ids(second) == expected(learned, passes=2)


def test_persistent_workers_go_on_with_the_next_pass_after_a_state(learned: tl.Dataset):
    def loader() -> stateful.StatefulDataLoader[Any]:
        dataset = tl.torch_dataset(learned, **OPTIONS)
        return stateful.StatefulDataLoader(
            dataset, batch_size=None, num_workers=2, persistent_workers=True
        )

    first = loader()
    first.dataset.set_epoch(1)
    begun = iter(first)
    ids(islice(begun, 3))
    state = pickle.loads(pickle.dumps(first.state_dict()))
    wanted = expected(learned, passes=3)
    length = len(wanted) // 3
    second = loader()
    second.load_state_dict(state)
    assert ids(second) == wanted[length + 3 : 2 * length]
    second.dataset.set_epoch(2)
    assert ids(second) == wanted[2 * length :]
    end(begun, second._iterator)


def test_a_state_of_other_workers_or_of_another_run_is_refused(learned: tl.Dataset):
    state = iter(tl.torch_dataset(learned, **OPTIONS)).state_dict()
    with pytest.raises(
        ConfigError,
        match="of worker 1 of 4, this is 0 of 1; expected the same number of workers",
    ):
        iter(tl.torch_dataset(learned, **OPTIONS)).load_state_dict(
            {**state, "turn": [1, 4]}
        )
    with pytest.raises(ConfigError, match="seed is 3 there and 4 here"):
        iter(tl.torch_dataset(learned, batch_size=5, seed=4)).load_state_dict(state)
    with pytest.raises(ConfigError, match="state of one worker"):
        tl.torch_dataset(learned, **OPTIONS).set_state(state)


def test_the_state_of_a_run_is_that_of_the_loader_for_any_number_of_workers(
    learned: tl.Dataset,
):
    wanted = expected(learned, passes=2)
    step = len(wanted) - 4
    loader = tl.DataLoader(learned, **OPTIONS)
    dataset = tl.torch_dataset(learned, **OPTIONS)
    loader.set_state(dataset.state_after(step))
    assert ids(loader) == wanted[step:]
    dataset.set_state(dataset.state_after(step))
    assert dataset.epoch == 1
    assert (
        ids(torch_data.DataLoader(dataset, batch_size=None, num_workers=2))
        == wanted[step:]
    )
    dataset.set_epoch(0)
    assert ids(dataset) == wanted[: len(wanted) // 2]


def test_rows_come_in_the_order_of_batches(learned: tl.Dataset):
    dataset = tl.torch_dataset(learned, **OPTIONS, rows=True)
    wanted = [row for batch in expected(learned) for row in batch]
    assert ids(dataset) == wanted
    assert len(dataset) == len(wanted)
    iterator = iter(dataset)
    ids(islice(iterator, 13))
    again = iter(dataset)
    again.load_state_dict(iterator.state_dict())
    assert ids(again) == wanted[13:]
    # rows of a host that a last, short batch has none of
    parts = [
        tl.torch_dataset(learned, 8, seed=3, rows=True, host=(index, 8))
        for index in range(8)
    ]
    assert [len(part) for part in parts] == [len(ids(part)) for part in parts]
    assert sum(len(part) for part in parts) == len(learned)


def _rank(rank: int, file: Path, where: str, answers: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    answers.put((rank, ids(tl.torch_dataset(tl.open(where, "learned"), batch_size=6))))
    torch.distributed.destroy_process_group()


def test_processes_of_torch_distributed_read_their_rows(
    root: str, learned: tl.Dataset, tmp_path: Path
):
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    processes = [
        fork.Process(target=_rank, args=(rank, tmp_path / "meet", root, answers))
        for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    parts = dict(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    whole = [batch["input_ids"].tolist() for batch in tl.DataLoader(learned, 6)]
    assert [
        left + right for left, right in zip(parts[0], parts[1], strict=True)
    ] == whole


def test_one_of_several_processes_must_know_which_it_is(
    learned: tl.Dataset, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="one of 4 processes"):
        tl.torch_dataset(learned, **OPTIONS)
    assert ids(tl.torch_dataset(learned, **OPTIONS, host=(0, 1))) == expected(learned)


def test_rows_by_number_with_a_sampler_in_workers(learned: tl.Dataset):
    rows = tl.torch_rows(learned, columns=["input_ids", "labels"])
    generator = torch.Generator().manual_seed(1)
    sampler = torch_data.RandomSampler(rows, generator=generator)
    batches = list(
        torch_data.DataLoader(
            pickle.loads(pickle.dumps(rows)), 7, sampler=sampler, num_workers=2
        )
    )
    generator.manual_seed(1)
    order = list(torch_data.RandomSampler(rows, generator=generator))
    found = learned.take(order, ["input_ids", "labels"])
    for name in ("input_ids", "labels"):
        assert (
            torch.cat([batch[name] for batch in batches]).tolist()
            == found[name].tolist()
        )
    assert rows[-1]["input_ids"].tolist() == learned[-1]["input_ids"].tolist()
    with pytest.raises(IndexError, match="there is no row"):
        rows[len(rows)]


def test_a_damaged_shard_is_named_where_its_batch_would_be(root: str, tmp_path: Path):
    shutil.copytree(root, tmp_path / "store")
    for path in (tmp_path / "store" / "learned").rglob("*.parquet"):
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    dataset = tl.torch_dataset(tl.open(str(tmp_path / "store"), "learned"), 5)
    batches = iter(torch_data.DataLoader(dataset, batch_size=None, num_workers=1))
    with pytest.raises(
        IntegrityError, match=r"learned@v1: data/train-.*\.parquet: row group"
    ):
        list(batches)
    end(batches)


def test_nothing_that_is_open_travels_to_a_process(learned: tl.Dataset):
    dataset = tl.torch_dataset(learned, **OPTIONS)
    head = ids(islice(iter(dataset), 2))
    copy = pickle.loads(pickle.dumps(dataset))
    assert ids(islice(iter(copy), 2)) == head
    assert (
        copy.reader.get().plan.sources[0]
        is not dataset.reader.get().plan.sources[0]
        is not learned.rows
    )


def test_a_forked_process_makes_its_own(learned: tl.Dataset):
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    dataset = tl.torch_dataset(learned, **OPTIONS)
    reader = dataset.reader.get()
    assert dataset.reader.get() is reader

    def answer() -> None:
        own = dataset.reader.get()
        answers.put([own is reader, own is dataset.reader.get()])

    process = fork.Process(target=answer)
    process.start()
    assert answers.get(timeout=60) == [False, True]
    process.join()


def test_wrong_arguments_are_refused(
    root: str, learned: tl.Dataset, mixture: tl.Mixture
):
    with pytest.raises(ConfigError, match="integers is 'int16', expected one of"):
        tl.torch_dataset(learned, 4, integers="int16")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="data: got a str"):
        tl.torch_dataset(root, 4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="workers: got -1"):
        tl.torch_dataset(learned, 4, workers=-1)
    with pytest.raises(ConfigError, match="host: got"):
        tl.torch_dataset(learned, 4, host=(1, 3))
    with pytest.raises(ConfigError, match="rows of a mixture have no numbers"):
        tl.torch_rows(mixture)  # pyright: ignore[reportArgumentType]


def test_documents_by_number_have_their_own_lengths(texts: tl.Dataset):
    rows = pickle.loads(
        pickle.dumps(
            tl.torch_rows(texts, columns=["input_ids", "attention_mask", "lengths"])
        )
    )
    for at in (0, len(texts) - 1, 1):
        ids = texts[at]["input_ids"]
        assert rows[at]["input_ids"].tolist() == ids
        assert rows[at]["attention_mask"].all() and int(rows[at]["lengths"]) == len(ids)
    assert [row["input_ids"].tolist() for row in rows.__getitems__([2, 0])] == [
        texts[at]["input_ids"] for at in (2, 0)
    ]
    with pytest.raises(ConfigError, match="columns"):
        tl.torch_rows(texts, columns=["nonsense"])


def test_a_missing_torch_is_named_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delitem(sys.modules, "tokenlake.runtime.loader.torch", raising=False)
    monkeypatch.delattr(loader, "torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(tl), "torch_rows", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'tokenlake\[torch\]'"):
        _ = tl.torch_rows


def test_loops_over_one_dataset_are_independent(learned: tl.Dataset):
    """It keeps no place of its own, so that a second iterator takes nothing from the
    first one.
    """
    for rows in (False, True):
        dataset = tl.torch_dataset(learned, rows=rows, **OPTIONS)
        pairs = list(zip(dataset, dataset, strict=True))
        assert (
            [one["input_ids"].tolist() for one, _ in pairs]
            == ids(two for _, two in pairs)
            == ids(dataset)
        )


def test_options_of_other_loaders_say_where_they_belong(learned: tl.Dataset):
    with pytest.raises(
        ConfigError,
        match=r"torch_dataset has no option 'split': .*tl\.open\(path, split=",
    ):
        tl.torch_dataset(learned, 8, split="validation")
    with pytest.raises(
        ConfigError, match=r"torch_dataset has no option 'sharding': .*tl\.DataLoader\("
    ):
        tl.torch_dataset(learned, 8, sharding=None)

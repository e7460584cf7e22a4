"""What a loader delivers: the laws that a training run rests on."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.loader.support import LENGTH, ids, same
from tests.reading.shards import indexed, ours, packed_rows, stored
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.loader import batch as batch_module
from tokenlake.runtime.store import open_store


def rows_of(batches: list[np.ndarray]) -> list[bytes]:
    return sorted(row.tobytes() for batch in batches for row in batch)


ALL_KINDS: list[dict[str, object]] = [
    {},
    {"shuffle": False},
    {"epochs": 3},
    {"drop_last": True},
    {"lanes": 1},
    {"window": 2},
    {"batch_size": {0: 8, 3: 16, 5: 24}},
]


@pytest.mark.parametrize("options", ALL_KINDS, ids=str)
def test_resuming_at_every_step_gives_the_rest(
    ds: tl.Dataset, options: dict[str, object]
):
    options = {
        "batch_size": 8,
        "seed": 5,
        "columns": ("input_ids",),
        "workers": 1,
        **options,
    }

    def loader() -> tl.DataLoader:
        return tl.DataLoader(ds, **options)  # type: ignore[arg-type]

    whole = ids(loader())
    assert len(loader()) == len(whole)
    for step in range(0, len(whole) + 1, 1 if len(whole) < 25 else 4):
        first = loader()
        batches = iter(first)
        begun = [next(batches)["input_ids"].copy() for _ in range(step)]
        state = json.loads(json.dumps(first.get_state()))
        first.close()
        second = loader()
        second.set_state(state)
        assert second.step == step
        assert same([*begun, *ids(second)], whole)
        third = loader()
        assert same(
            ids(third.iter_from_step(step)) if step < len(whole) else [], whole[step:]
        )


def test_an_epoch_is_every_row_once_and_the_next_one_another_order(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8, seed=1, columns=["input_ids"])
    stored = rows_of([ds[:]["input_ids"]])
    first, second = ids(loader), ids(loader)
    assert rows_of(first) == rows_of(second) == stored
    assert not same(first, second)
    assert loader.epoch == 1
    assert not same(first, ids(tl.DataLoader(ds, 8, seed=2, columns=["input_ids"])))


def test_drop_last_alone_leaves_rows_out(ds: tl.Dataset):
    whole = ids(tl.DataLoader(ds, 10, columns=["input_ids"]))
    dropped = ids(tl.DataLoader(ds, 10, columns=["input_ids"], drop_last=True))
    assert len(ds) % 10
    assert len(whole[-1]) == len(ds) % 10
    assert same(dropped, whole[:-1])


def test_a_last_batch_may_be_filled_up_with_padding(ds: tl.Dataset):
    columns = (
        "input_ids",
        "segment_ids",
        "positions",
        "loss_mask",
        "labels",
        "targets",
    )
    *_, short = tl.DataLoader(ds, 10, columns=columns)
    *_, padded = tl.DataLoader(ds, 10, columns=columns, pad_last=True)
    real = len(ds) % 10
    empty = {
        "input_ids": ds.pad_id,
        "segment_ids": 0,
        "positions": 0,
        "loss_mask": False,
        "labels": -100,
    }
    for name in columns:
        assert padded[name].shape == (10, LENGTH)
        assert (padded[name][:real] == short[name]).all()
        assert (padded[name][real:] == empty.get(name, -100)).all()


def test_a_run_goes_on_with_other_numbers_of_hosts(ds: tl.Dataset):
    whole = ids(tl.DataLoader(ds, 8, seed=3, columns=["input_ids"], pad_last=True))
    state, got = None, list[np.ndarray]()
    for hosts, steps in ((8, 3), (2, 5), (1, 1), (4, 4), (8, 99)):
        loaders = [
            tl.DataLoader(
                ds,
                8,
                seed=3,
                columns=["input_ids"],
                pad_last=True,
                host=(host, hosts),
                workers=0,
            )
            for host in range(hosts)
        ]
        for loader in loaders:
            if state is not None:
                loader.set_state(state)
        iterators = [iter(loader) for loader in loaders]
        for _, parts in zip(range(steps), zip(*iterators, strict=True), strict=False):
            got.append(np.concatenate([part["input_ids"] for part in parts]))
        state = loaders[-1].get_state()
        assert all(loader.get_state() == state for loader in loaders)
        for loader in loaders:
            loader.close()
    assert same(got[: len(whole)], whole)


def test_columns_follow_from_the_stored_lengths(ds: tl.Dataset):
    stored = ds.take(
        np.arange(len(ds)), ["input_ids", "segment_ids", "positions", "loss_mask"]
    )
    by_row = {row.tobytes(): at for at, row in enumerate(stored["input_ids"])}
    for batch in tl.DataLoader(ds, 8):
        for at, row in enumerate(batch["input_ids"]):
            for name, values in stored.items():
                assert (batch[name][at] == values[by_row[row.tobytes()]]).all()
        assert {name: str(values.dtype) for name, values in batch.items()} == {
            "input_ids": "int32",
            "segment_ids": "int32",
            "positions": "int32",
            "loss_mask": "bool",
        }


def test_stored_masks_come_along(learned: tl.Dataset):
    stored = learned.read(0, len(learned))
    masks = np.array(stored["loss_mask"].to_pylist())
    got = learned.take(
        np.arange(len(learned)), ["loss_mask", "segment_ids", "positions"]
    )
    expected = masks & (got["positions"] > 0) & (got["segment_ids"] > 0)
    assert (got["loss_mask"] == expected).all()
    assert masks.any() and not masks.all()
    (batch, *_) = tl.DataLoader(learned, 4, shuffle=False, columns=["loss_mask"])
    assert (batch["loss_mask"] == expected[:4]).all()


@pytest.mark.parametrize("rows_together", [1, 5, 24])
def test_rows_stored_in_16_and_in_32_bits_come_in_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_together: int
):
    monkeypatch.setattr(batch_module, "_IDS_AT_ONCE", 8 * rows_together)
    table = packed_rows(12, 8)
    manifest = stored(tmp_path, [indexed(table, 4), ours(table, 5)], 8).manifest
    both = tl.Dataset(open_store(tmp_path), manifest, "train")
    kinds = [
        both.rows.packed(group, loss_mask=False).ids.dtype.name for group in (0, 3)
    ]
    assert kinds == ["uint16", "int32"]
    rows = np.random.default_rng(0).permutation(24)
    expected = np.array(table["input_ids"].to_pylist())[rows % 12]
    assert np.array_equal(both.take(rows, ["input_ids"])["input_ids"], expected)


def test_batches_that_are_kept_stay_what_they_were(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8, epochs=4)
    kept = list(loader)
    copies = [{name: values.copy() for name, values in batch.items()} for batch in kept]
    _ = [batch["input_ids"].sum() for batch in loader]
    for batch, copied in zip(kept, copies, strict=True):
        assert all((batch[name] == copied[name]).all() for name in batch)


def test_a_loop_that_was_left_goes_on_behind_the_last_batch_delivered(ds: tl.Dataset):
    whole = ids(tl.DataLoader(ds, 8, columns=["input_ids"]))
    loader = tl.DataLoader(ds, 8, columns=["input_ids"], prefetch=4)
    got = list[np.ndarray]()
    for batch in loader:
        got.append(batch["input_ids"].copy())
        if len(got) == 3:
            break
    assert loader.step == 3
    assert same([*got, *ids(loader)], whole)


@pytest.mark.parametrize(
    ("caller", "replace"),
    [
        (r"iter\(loader\)", lambda loader: iter(loader)),
        (r"iter_from_step\(\)", lambda loader: loader.iter_from_step(1)),
        (r"set_state\(\)", lambda loader: loader.set_state(loader.get_state())),
    ],
)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iterator_that_was_replaced_raises(
    ds: tl.Dataset, caller: str, replace: Any, prefetch: int
):
    """It never looks like the end of a pass, in no way that takes its place."""
    loader = tl.DataLoader(ds, 8, columns=["input_ids"], prefetch=prefetch)
    before = set(threading.enumerate())
    old = iter(loader)
    next(old)
    kept = replace(loader)
    for _ in range(2):
        with pytest.raises(
            ConfigError,
            match=rf"replaced after step 1: .* {caller} began .*peek\(\).* two loaders",
        ):
            next(old)
    assert not loader.ended
    del kept
    loader.close()
    assert not set(threading.enumerate()) - before


def test_two_loops_over_one_loader_are_an_error(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8)
    with pytest.raises(ConfigError, match="a DataLoader has one iterator at a time"):
        list(zip(loader, loader, strict=True))
    one, two = tl.DataLoader(ds, 8), tl.DataLoader(ds, 8)
    assert len(list(zip(one, two, strict=True))) == len(one)


def test_an_iterator_that_ended_or_was_closed_stays_at_its_end(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8)
    ended = iter(loader)
    assert len(list(ended)) == len(loader)
    closed = iter(loader)
    next(closed)
    loader.close()
    new = iter(loader)
    next(new)
    assert next(ended, None) is None
    assert next(closed, None) is None
    assert next(new)["input_ids"].shape == (8, LENGTH)
    loader.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_peek_returns_the_next_batch_and_takes_none(ds: tl.Dataset, prefetch: int):
    reference = tl.DataLoader(ds, 8, columns=["input_ids"])
    both = [*ids(reference), *ids(reference)]
    loader = tl.DataLoader(ds, 8, columns=["input_ids"], prefetch=prefetch)
    assert same([loader.peek()["input_ids"]], both[:1])
    got = list[np.ndarray]()
    for _ in range(2):
        for batch in loader:
            got.append(batch["input_ids"].copy())
            if len(got) < len(both):
                assert np.array_equal(loader.peek()["input_ids"], both[len(got)])
            assert loader.step == len(got)
    assert same(got, both)


def test_a_loader_says_how_it_goes_to_another_process(ds: tl.Dataset):
    for dump in (pickle.dumps, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"cannot be pickled.*get_state\(\).*set_state\(\)"
        ):
            dump(tl.DataLoader(ds, 8))
    with pytest.raises(
        TypeError, match=r"AsyncDataLoader cannot be pickled.*load_state_dict\(\)"
    ):
        pickle.dumps(tl.AsyncDataLoader([{"id": 1}], 1))


def test_integers_of_numpy_are_integers_everywhere(ds: tl.Dataset):
    plain = tl.DataLoader(
        ds,
        {0: 8, 3: 4},
        seed=3,
        epochs=2,
        lanes=2,
        window=2,
        host=(0, 2),
        prefetch=1,
        workers=0,
    )
    numbers = {
        name: np.int64(value)
        for name, value in {"seed": 3, "epochs": 2, "lanes": 2, "window": 2}.items()
    }
    sizes = {np.int32(0): np.uint8(8), np.int64(3): np.int16(4)}
    host = (np.int64(0), np.int8(2))
    loader = tl.DataLoader(
        ds, sizes, **numbers, host=host, prefetch=np.int64(1), workers=np.int64(0)
    )
    state = json.loads(json.dumps(loader.get_state()))
    assert state == plain.get_state()
    at = json.loads(json.dumps(plain.plan.identity)) | {
        "format": np.int64(1),
        "step": np.int64(4),
        "epoch": np.uint8(0),
        "rows": np.int32(28),
        "batch_size": ((np.int64(0), np.int64(8)), (np.int64(3), np.int64(4))),
    }
    loader.set_state(at)
    assert json.loads(json.dumps(loader.get_state()))["rows"] == 28
    assert same(ids(loader.iter_from_step(np.int64(4))), ids(plain.iter_from_step(4)))


def test_len_is_that_of_the_pass_that_comes(ds: tl.Dataset):
    """Before each loop, during it, and where sizes change from pass to pass."""
    loader = tl.DataLoader(ds, {0: 16, 7: 48, 12: 16}, columns=["input_ids"])
    for _ in range(4):
        wanted = len(loader)
        assert [len(loader) for _ in loader] == [wanted] * wanted


@pytest.mark.parametrize(
    "step", [10**18, 10**40, -1, True, 1.0, "1", None, np.arange(2)]
)
@pytest.mark.parametrize("epochs", [1, None])
def test_a_step_that_cannot_be_is_refused(
    ds: tl.Dataset, step: Any, epochs: int | None
):
    loader = tl.DataLoader(ds, 8, epochs=epochs)
    with pytest.raises(
        ConfigError, match=r"step: got .*, must be a whole number from 0 to "
    ):
        loader.iter_from_step(step)
    far = (1 << 50) // 8 - 1  # rows are counted up to 2^50
    assert next(loader.iter_from_step(far))["input_ids"].shape[1] == LENGTH
    assert loader.get_state()["step"] == far + 1
    loader.close()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("split", r"tl\.open\(path, split='validation'\)"),
        ("num_workers", "workers=THREADS"),
        ("shuffle_buffer", "shuffled as a whole"),
        ("shuffle_buffer_size", "shuffled as a whole"),
        ("collate_fn", r"grain_dataset\(\.\.\.\)\.map"),
        ("sampler", "torch_rows"),
        ("operations", "batches are arrays already"),
        ("rank", r"host=\(index, number of hosts\)"),
        ("epoch", "did you mean 'epochs'"),
        ("zzz", "it takes batch_size, seed, shuffle"),
    ],
)
def test_options_of_other_loaders_say_where_they_belong(
    ds: tl.Dataset, option: str, says: str
):
    with pytest.raises(
        ConfigError, match=f"DataLoader has no option '{option}': .*{says}"
    ):
        tl.DataLoader(ds, batch_size=8, **{option: 4})  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(("prefetch", "workers"), [(0, 0), (0, 2), (1, 0), (4, 3)])
def test_threads_change_nothing_and_end(ds: tl.Dataset, prefetch: int, workers: int):
    # The default order depends on cache_bytes; one that is stated does not.
    for order in ({"window": 1}, {"window": "all"}, {"interleave": 2}):
        _check_threads(ds, prefetch, workers, order)


def _check_threads(
    ds: tl.Dataset, prefetch: int, workers: int, order: dict[str, Any]
) -> None:
    expected = ids(tl.DataLoader(ds, 8, columns=["input_ids"], **order))
    before = set(threading.enumerate())
    loader = tl.DataLoader(
        ds,
        8,
        columns=["input_ids"],
        prefetch=prefetch,
        workers=workers,
        cache_bytes=2000,
        **order,
    )
    assert same(ids(loader), expected)
    assert not set(threading.enumerate()) - before
    iterator = iter(loader)
    next(iterator)
    assert bool(set(threading.enumerate()) - before) == (prefetch + workers > 0)
    loader.close()
    assert not set(threading.enumerate()) - before


def test_a_forgotten_iterator_ends_its_threads(ds: tl.Dataset):
    before = set(threading.enumerate())
    iterator = iter(tl.DataLoader(ds, 8, epochs=None))
    next(iterator)
    started = set(threading.enumerate()) - before
    assert started
    del iterator
    for thread in started:
        thread.join(timeout=120)
        assert not thread.is_alive()


def test_each_row_group_is_decoded_once_an_epoch(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 4, lanes=1, columns=["input_ids"])
    assert len(ids(loader)) == len(ds) // 4
    assert loader.decoded.groups == len(ds.rows.group_rows)
    sequential = tl.DataLoader(ds, 4, shuffle=False, columns=["input_ids"])
    assert (np.concatenate(ids(sequential)) == ds[:]["input_ids"]).all()
    assert sequential.decoded.groups == len(ds.rows.group_rows)


@pytest.mark.parametrize(
    ("rows", "group", "sizes", "lanes"),
    [
        (40_000, 4, 256, 64),
        (40_000, 4, 1024, 256),
        (40_000, 4, 8192, 512),
        (40_000, 4, {0: 2048, 9: 3072}, 256),
        (40_000, 400, 8192, 64),  # no more than there are row groups
    ],
)
def test_large_batches_have_lanes_for_many_hosts(
    ds: tl.Dataset, rows: int, group: int, sizes: Any, lanes: int
):
    assert tl.DataLoader(tiny(ds, rows, group), sizes, workers=0).plan.lanes == lanes


def test_damage_is_raised_where_its_batch_would_be(ds: tl.Dataset, tmp_path):
    import shutil

    store = tmp_path / "store"
    shutil.copytree(ds.store.url, store)
    path = store / "plain" / "v1" / ds.manifest.files[0].path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    damaged = tl.open(store, "plain", split="train")
    before = set(threading.enumerate())
    loader = tl.DataLoader(damaged, 8, shuffle=False, columns=["input_ids"])
    good = 0
    with pytest.raises(IntegrityError, match=r"data/train-.*row group"):
        for _ in loader:
            good += 1
    assert loader.step == good < len(loader)
    assert not set(threading.enumerate()) - before


WRONG: list[tuple[dict[str, object], str]] = [
    ({"batch_size": 0}, "batch_size: got 0"),
    ({"batch_size": 1000, "drop_last": True}, "fewer than a batch of 1000"),
    ({"epochs": 0}, "epochs: got 0"),
    ({"lanes": 3}, "lanes: got 3, which does not divide"),
    ({"window": 0}, "window: got 0"),
    (
        {"window": "every"},
        "window: got 'every', must be a whole number from 1 on, or 'all'",
    ),
    ({"interleave": 0}, "interleave: got 0"),
    (
        {"interleave": 20},
        "interleave: got 20, but a lane has 19 rows; expected at most 19",
    ),
    (
        {"interleave": 2, "window": 1},
        "window and interleave: got 1 and 2, which are two orders",
    ),
    (
        {"shuffle": False, "interleave": 2},
        "lanes, window and interleave are of a shuffled order",
    ),
    (
        {"shuffle": False, "lanes": 2},
        "lanes, window and interleave are of a shuffled order",
    ),
    ({"host": (2, 2)}, r"host: got \(2, 2\)"),
    ({"host": (0, 3)}, "a number that divides 8"),
    ({"columns": ["input_id"]}, "did you mean 'input_ids'"),
    ({"columns": "input_ids"}, "columns: got 'input_ids'"),
    ({"columns": []}, "columns: got"),
    ({"prefetch": -1}, "prefetch: got -1"),
    ({"workers": True}, "workers: got True"),
    ({"data": "plain"}, "must be a Dataset"),
    (
        {"batch_size": "8"},
        "batch_size: got '8', must be a whole number of rows from 1 on",
    ),
    ({"batch_size": 8.0}, "batch_size: got 8.0, must be a whole number"),
    ({"batch_size": None}, "batch_size: got None, must be a whole number"),
    ({"batch_size": {0: "8"}}, "batch_size: got {0: '8'}, must be a whole number"),
    ({"seed": "7"}, "seed: got '7', must be a whole number"),
    ({"seed": 0.5}, "seed: got 0.5, must be a whole number"),
    ({"shuffle": "no"}, "shuffle: got 'no', must be True or False"),
    ({"drop_last": 1}, "drop_last: got 1, must be True or False"),
    ({"pad_last": "yes"}, "pad_last: got 'yes', must be True or False"),
    ({"epochs": "2"}, "epochs: got '2', must be a whole number from 1 on"),
    ({"lanes": "2"}, "lanes: got '2', must be a whole number from 1 on"),
    ({"window": 1.5}, "window: got 1.5, must be a whole number from 1 on"),
    ({"columns": 3}, "columns: got 3, must be some of input_ids"),
    ({"host": 1}, r"host: got 1, must be \(index, number of hosts\)"),
    (
        {"host": ("0", "2")},
        r"host: got \('0', '2'\), must be \(index, number of hosts\)",
    ),
    ({"prefetch": "2"}, "prefetch: got '2', must be a whole number from 0 on"),
    (
        {"cache_bytes": "1 giga"},
        "cache_bytes: got '1 giga': a size must be a whole number of bytes or a text like '500MB'",
    ),
]


@pytest.mark.parametrize(
    ("options", "message"), WRONG, ids=lambda value: str(value)[:40]
)
def test_wrong_arguments_are_refused_in_a_sentence(
    ds: tl.Dataset, options: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        tl.DataLoader(**{"data": ds, "batch_size": 8, **options})
    if options.keys() <= {"seed", "drop_last"}:
        with pytest.raises(ConfigError, match=message.partition(",")[0]):
            tl.AsyncDataLoader(ds, **options)


def test_packed_and_other_rows_are_not_mixed(ds: tl.Dataset, texts: tl.Dataset):
    mixture = tl.Mixture({"a": ds, "b": texts}, {"a": 0.5, "b": 0.5})
    with pytest.raises(
        ConfigError, match="expected datasets that are packed to one length"
    ):
        tl.DataLoader(mixture, 8)


def test_an_endless_loader_has_no_length_and_goes_on(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8, epochs=None, columns=["input_ids"])
    with pytest.raises(TypeError, match="endless"):
        len(loader)
    batches = loader.iter_from_step(10**12)
    assert next(batches)["input_ids"].shape == (8, LENGTH)
    assert loader.step == 10**12 + 1
    loader.close()


def tiny(ds: tl.Dataset, rows: int, group: int) -> tl.Dataset:
    """A version of so few rows, of which only the plan is asked."""
    shard = replace(
        ds.manifest.files[0],
        split="train",
        rows=rows,
        row_groups=tuple(range(0, rows, group)),
    )
    return tl.Dataset(ds.store, replace(ds.manifest, files=(shard,)), "train")


@given(
    rows=st.integers(1, 70),
    group=st.integers(1, 9),
    lanes=st.sampled_from([None, 1, 2, 4, 8]),
    sizes=st.sampled_from([8, 64, {0: 8, 46: 8, 53: 16}, {0: 16, 1: 8, 3: 64}]),
    window=st.sampled_from([1, 2]),
    options=st.fixed_dictionaries(
        {"seed": st.integers(-3, 3), "epochs": st.sampled_from([None, 1, 2])}
    ),
)
@settings(max_examples=40)
def test_every_row_of_a_tiny_dataset_comes_once_in_an_epoch(
    ds: tl.Dataset,
    rows: int,
    group: int,
    lanes: int | None,
    sizes: int | dict[int, int],
    window: int,
    options: dict[str, Any],
):
    plan = tl.DataLoader(
        tiny(ds, rows, group), sizes, lanes=lanes, window=window, workers=0, **options
    ).plan
    total = 3 * rows if options["epochs"] is None else plan.steps.rows or 0
    seen, step = list[tuple[int, ...]](), 0
    while len(seen) < total:
        (found,) = plan.rows([plan.batch(step)], np.arange)
        seen += zip(
            found.epoch.tolist(), found.group.tolist(), found.row.tolist(), strict=True
        )
        step += 1
    assert len(set(seen)) == len(seen)
    if options["epochs"] is not None:
        assert len(seen) == rows * options["epochs"]
        assert len({row[1:] for row in seen}) == rows
    elif plan.lanes == 1:
        assert len({row[1:] for row in seen[:rows]}) == rows

"""Documents, padded and not: rectangles whose rows are a function of the position,
nothing lost or cut unsaid.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.etl.outputs_support import build_here, write_jsonl
from tests.etl.outputs_support import settings as settings_of_build
from tests.loader.support import ids, same
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.reading import Unfamiliar

Row = tuple[int, ...]
ALL = (
    "input_ids",
    "attention_mask",
    "segment_ids",
    "positions",
    "loss_mask",
    "labels",
    "targets",
    "lengths",
)


@pytest.fixture(scope="module")
def longest(texts: tl.Dataset) -> int:
    return max(map(len, stored(texts)))


def stored(ds: tl.Dataset) -> list[Row]:
    table = ds.read(0, len(ds))
    masks = (
        table["attention_mask"].to_pylist()
        if "attention_mask" in table.schema.names
        else None
    )
    rows = table["input_ids"].to_pylist()
    if masks is None:
        return [tuple(row) for row in rows]
    return [
        tuple(each for each, bit in zip(row, mask, strict=True) if bit)
        for row, mask in zip(rows, masks, strict=True)
    ]


def rows_of(batch: dict[str, Any]) -> list[Row]:
    """The rows of a batch that are not padding, without theirs."""
    found = [
        tuple(row[mask].tolist())
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    return [row for row in found if row]


def delivered(loader: Any) -> list[Row]:
    return [row for batch in loader for row in rows_of(batch)]


PADDINGS: list[dict[str, Any]] = [
    {},
    {"multiple": 8},
    {"length": 80, "side": "left"},
    {"buckets": (8, 16, 24, 80)},
    {"buckets": 3, "multiple": 4, "side": "left"},
]


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_an_epoch_is_every_row_once_in_rectangles(
    texts: tl.Dataset, padding: dict[str, Any]
):
    expected = sorted(stored(texts))
    loader = tl.DataLoader(
        texts, 8, seed=3, padding=padding, columns=["input_ids", "attention_mask"]
    )
    first, second = delivered(loader), delivered(loader)
    assert sorted(first) == sorted(second) == expected
    assert first != second
    orders = [
        delivered(tl.DataLoader(texts, 8, seed=seed, padding=padding))
        for seed in (3, 4)
    ]
    assert orders[0] == first != orders[1]
    in_place = tl.DataLoader(texts, 8, shuffle=False, padding=padding)
    assert sorted(delivered(in_place)) == expected


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_columns_follow_from_the_rows(texts: tl.Dataset, padding: dict[str, Any]):
    pad = texts.pad_id
    for batch in tl.DataLoader(texts, 8, padding=padding, columns=ALL, pad_last=True):
        rows, length = batch["input_ids"].shape
        assert {name: values.shape for name, values in batch.items()} == {
            name: (rows,) if name == "lengths" else (rows, length) for name in ALL
        }
        for at in range(rows):
            size = int(batch["lengths"][at])
            there = (
                slice(length - size, length)
                if padding.get("side") == "left"
                else slice(0, size)
            )
            mask = np.zeros(length, np.bool_)
            mask[there] = True
            assert (batch["attention_mask"][at] == mask).all()
            assert (batch["segment_ids"][at] == mask).all()
            assert batch["positions"][at][there].tolist() == list(range(size))
            assert not batch["positions"][at][~mask].any()
            assert (batch["input_ids"][at][~mask] == pad).all()
            learned = mask & (batch["positions"][at] > 0)
            assert (batch["loss_mask"][at] == learned).all()
            assert (
                batch["labels"][at] == np.where(learned, batch["input_ids"][at], -100)
            ).all()
            assert (
                batch["targets"][at] == np.append(batch["labels"][at][1:], -100)
            ).all()


def test_batches_are_as_long_as_was_asked_for(texts: tl.Dataset, longest: int):
    for batch in tl.DataLoader(texts, 8):
        assert batch["input_ids"].shape[1] == batch["attention_mask"].sum(axis=1).max()
    for batch in tl.DataLoader(texts, 8, padding=tl.BatchPadding(multiple=5)):
        need = batch["attention_mask"].sum(axis=1).max()
        assert batch["input_ids"].shape[1] == -(-need // 5) * 5
    fixed = tl.DataLoader(
        texts, 8, padding=tl.BatchPadding(length=longest + 3), drop_last=True
    )
    assert (
        {batch["input_ids"].shape for batch in fixed}
        == set(fixed.shapes or ())
        == {(8, longest + 3)}
    )
    assert tl.DataLoader(texts, 8).shapes is None


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_buckets_keep_rows_of_like_lengths_and_as_many_ids(
    texts: tl.Dataset, longest: int, data: st.DataObject
):
    bounds = sorted(
        {*data.draw(st.lists(st.integers(1, longest), max_size=5)), longest}
    )
    size, lanes = data.draw(st.sampled_from([(4, None), (6, 2), (8, 8), (5, 1)]))
    loader = tl.DataLoader(
        texts,
        size,
        lanes=lanes,
        seed=data.draw(st.integers(0, 9)),
        padding={"buckets": bounds},
        pad_last=True,
    )
    shapes, below = (
        dict.fromkeys(loader.shapes or ()),
        {high: low for low, high in pairwise([0, *bounds])},
    )
    rows = list[Row]()
    for batch in loader:
        there = rows_of(batch)
        rows += there
        count, length = batch["input_ids"].shape
        assert (count, length) in shapes
        assert all(below[length] < len(row) <= length for row in there)
        assert count % loader.plan.lanes == 0
        assert count * length <= size * longest < (count + loader.plan.lanes) * length
    assert sorted(rows) == sorted(stored(texts))


@pytest.mark.parametrize(
    "options", [{}, {"epochs": 2}, {"drop_last": True}, {"epochs": None}], ids=str
)
def test_any_step_of_buckets_is_reached_without_a_state(
    texts: tl.Dataset, options: dict[str, Any]
):
    options = {"padding": {"buckets": (8, 16, 80)}, "seed": 2, **options}
    whole = ids(
        batch
        for _, batch in zip(range(60), tl.DataLoader(texts, 8, **options), strict=False)
    )
    for step in range(0, len(whole), 5):
        loader = tl.DataLoader(texts, 8, **options)
        rest = ids(
            batch
            for _, batch in zip(
                range(60 - step), loader.iter_from_step(step), strict=False
            )
        )
        assert same(rest[: len(whole) - step], whole[step:])
    if options.get("epochs") is None and "epochs" in options:
        assert next(tl.DataLoader(texts, 8, **options).iter_from_step(10**12))[
            "input_ids"
        ].size


def test_an_endless_run_goes_through_every_epoch(texts: tl.Dataset):
    loader = tl.DataLoader(
        texts, 4, epochs=None, padding={"buckets": (8, 24, 80)}, seed=5
    )
    counts: dict[Row, int] = {}
    rows = 0
    for batch in loader:
        for row in rows_of(batch):
            counts[row] = counts.get(row, 0) + 1
        rows += len(batch["input_ids"])
        if rows > 5 * len(texts):
            break
    expected = Counter(stored(texts))
    assert counts.keys() == expected.keys()
    assert all(
        3 * expected[row] <= times <= 7 * expected[row] for row, times in counts.items()
    )


@pytest.mark.parametrize("name", ["left", "right"])
def test_padding_that_is_stored_is_none_of_ours(
    name: str, root: str, texts: tl.Dataset
):
    padded = tl.open(root, name)
    assert sorted(stored(padded)) == sorted(stored(texts))
    for padding in ({}, {"length": 80, "side": "left"}, {"buckets": 3}):
        assert sorted(delivered(tl.DataLoader(padded, 8, padding=padding))) == sorted(
            stored(texts)
        )


def test_stored_loss_masks_come_along(root: str):
    answers = tl.open(root, "answers")
    table = answers.read(0, len(answers))
    expected = {
        tuple(row): mask
        for row, mask in zip(
            table["input_ids"].to_pylist(), table["loss_mask"].to_pylist(), strict=True
        )
    }
    for side in ("left", "right"):
        columns = ["input_ids", "attention_mask", "loss_mask"]
        for batch in tl.DataLoader(answers, 8, padding={"side": side}, columns=columns):
            for row, there, mask in zip(
                batch["input_ids"],
                batch["attention_mask"],
                batch["loss_mask"],
                strict=True,
            ):
                assert mask[there].tolist() == [
                    False,
                    *expected[tuple(row[there].tolist())][1:],
                ]
                assert not mask[~there].any()


def test_rows_that_are_too_long_are_named_or_cut_and_counted(
    texts: tl.Dataset, longest: int
):
    rows = stored(texts)
    limit = longest - 3
    over = [number for number, row in enumerate(rows) if len(row) > limit]
    for padding in ({"length": limit}, {"buckets": (8, limit)}, {"max_length": limit}):
        named = rf"{len(over)} of {len(rows)} rows are longer than {limit} ids, .*{longest}: row {over[0]} of texts@v1"
        with pytest.raises(ConfigError, match=named + r".*truncate"):
            tl.DataLoader(texts, 8, padding=padding)
        for side, cut in (("right", slice(0, limit)), ("left", slice(-limit, None))):
            loader = tl.DataLoader(texts, 8, padding={**padding, "truncate": side})
            assert sorted(delivered(loader)) == sorted(row[cut] for row in rows)
            assert loader.truncated.rows == len(over)
            assert loader.truncated.ids == sum(
                len(rows[number]) - limit for number in over
            )
    assert tl.DataLoader(texts, 8).truncated.rows == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 4),
    st.sampled_from([1, 2, 8]),
)
def test_chosen_buckets_have_the_least_padding(
    lengths: list[int], number: int, multiple: int
):
    found = tl.BatchPadding(buckets=number, multiple=multiple).chosen(
        np.bincount(lengths)
    )

    def padding(bounds: tuple[int, ...]) -> int:
        return sum(
            min(bound for bound in bounds if bound >= each) - each for each in lengths
        )

    last = -(-max(lengths) // multiple) * multiple
    others = range(multiple, last, multiple)
    if multiple == 1:
        others = sorted(set(lengths) - {last})
    best = min(
        padding((*some, last))
        for count in range(min(number, len(others) + 1))
        for some in combinations(others, count)
    )
    assert found[-1] == last
    assert len(found) <= number
    assert padding(found) == best


def test_a_mixture_is_padded_and_resumed(root: str, texts: tl.Dataset):
    left = tl.open(root, "left")
    mixture = tl.Mixture({"a": texts, "b": left}, {"a": 0.25, "b": 0.75}, rows=160)
    options: dict[str, Any] = {
        "padding": {"multiple": 8},
        "columns": ["input_ids", "attention_mask"],
    }
    whole = list(tl.DataLoader(mixture, 8, **options))
    assert {row for batch in whole for row in rows_of(batch)} <= set(stored(texts))
    loader = tl.DataLoader(mixture, 8, **options)
    assert same(ids(loader.iter_from_step(7)), ids(whole[7:]))


BUCKETED: list[dict[str, Any]] = [{"rows": 150}, {"stop": "all_exhausted"}, {}]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_padded_batches_of_mixtures_and_of_sizes_that_change_are_functions_of_the_position(
    root: str, texts: tl.Dataset, longest: int, data: st.DataObject
):
    """Resumed equals uninterrupted, hosts together equal one, and sizes may change
    behind a state.
    """
    left, mixing = tl.open(root, "left"), data.draw(st.sampled_from([None, *BUCKETED]))
    source: Any = (
        texts
        if mixing is None
        else tl.Mixture(
            {"a": texts, "b": left}, {"a": 0.25, "b": 0.75}, block_size=16, **mixing
        )
    )
    bounds = sorted({*data.draw(st.sets(st.integers(1, longest), max_size=3)), longest})
    buckets = {"buckets": bounds, "equal_rows": data.draw(st.booleans())}
    points = sorted(data.draw(st.sets(st.integers(1, 30), max_size=3)))
    sizes = {0: 4, **{step: data.draw(st.sampled_from([4, 8, 12])) for step in points}}
    options: dict[str, Any] = {
        "padding": data.draw(
            st.sampled_from([buckets, buckets, {"multiple": 8}, {"length": 80}])
        ),
        "seed": data.draw(st.integers(0, 3)),
        "pad_last": True,
        "workers": 0,
        "prefetch": 0,
        "columns": ("input_ids", "attention_mask"),
    }
    most = 40
    first = tl.DataLoader(source, sizes, **options)
    whole = [
        (batch["input_ids"], rows_of(batch))
        for _, batch in zip(range(most), first, strict=False)
    ]
    assert first.shapes is None or {batch.shape for batch, _ in whole} <= set(
        first.shapes
    )
    at = data.draw(st.integers(0, len(whole)))
    stopped = tl.DataLoader(
        source,
        {step: size for step, size in sizes.items() if step < max(at, 1)},
        **options,
    )
    assert same(
        ids(batch for _, batch in zip(range(at), stopped, strict=False)),
        [batch for batch, _ in whole[:at]],
    )
    state = json.loads(json.dumps(stopped.get_state()))
    hosts = data.draw(
        st.sampled_from([n for n in (1, 2, 4) if first.plan.common_rows % n == 0])
    )
    loaders = [
        tl.DataLoader(source, sizes, host=(host, hosts), **options)
        for host in range(hosts)
    ]
    for loader in loaders:
        loader.set_state(state)
    rest = [
        np.concatenate([batch["input_ids"] for batch in batches])
        for _, batches in zip(
            range(most - at), zip(*loaders, strict=True), strict=False
        )
    ]
    if at < len(whole):  # else this was the end of a pass
        assert same(rest[: len(whole) - at], [batch for batch, _ in whole[at:]])
    if mixing != {} and len(whole) < most:
        rows = [row for _, each in whole for row in each]
        if mixing is None:
            assert sorted(rows) == sorted(stored(texts))
        elif "stop" in mixing:
            assert sorted(rows) == sorted(stored(texts) + stored(left))
        else:
            assert len(rows) == mixing["rows"]
        assert first.plan.batches_in(0) == len(whole)


def test_buckets_of_sizes_that_grow_beyond_the_data_end(texts: tl.Dataset):
    """With drop_last a later pass may have no batch at all."""
    loader = tl.DataLoader(
        texts, {0: 4, 9: 4000}, lanes=4, padding={"buckets": 3}, drop_last=True
    )
    assert len(loader) == len(ids(loader)) == 9
    assert len(loader) == 0 and ids(loader) == []
    assert loader.plan.steps.rows_of(0, np.arange, pad_last=False) == sum(
        loader.plan.batch(step).rows for step in range(9)
    )


def test_buckets_keep_the_weights_of_a_mixture(root: str, texts: tl.Dataset):
    judged = tl.open(root, "answers")
    mixture = tl.Mixture({"a": texts, "b": judged}, {"a": 0.2, "b": 0.8}, rows=1000)
    loader = tl.DataLoader(mixture, 8, padding={"buckets": 4})
    steps = [loader.plan.batch(step) for step in range(len(loader))]
    source = np.concatenate(
        [rows.source for rows in loader.plan.rows(steps, np.arange)]
    )
    assert len(source) == 1000
    assert abs(int((source == 0).sum()) - 200) <= 4 * len(loader.shapes or ())


def test_a_bucketed_mixture_is_not_resumed_with_another_end(texts: tl.Dataset):
    """Where each bucket is cut decides the order from its beginning."""
    mixtures = [
        tl.Mixture({"a": texts, "b": texts}, {"a": 0.5, "b": 0.5}, rows=rows)
        for rows in (90, 120)
    ]
    state = tl.DataLoader(mixtures[0], 8, padding={"buckets": 2}).get_state()
    with pytest.raises(ConfigError, match=r"mixture.rows is 90 there and 120 here"):
        tl.DataLoader(mixtures[1], 8, padding={"buckets": 2}).set_state(state)


def test_a_row_of_as_many_ids_as_two_bytes_cannot_count_is_whole(
    tmp_path: Path, tokenizer_dir: Path
):
    """Lengths of rows are kept in two bytes as long as all of them fit."""
    long, short = "a b " * 40_000, "a b"
    data = write_jsonl(tmp_path / "a.jsonl", [{"text": long}, {"text": short}])
    config = settings_of_build(tmp_path, tokenizer_dir, data)
    config["tokenize"] = {"max_length": 1 << 16, "long_documents": "truncate"}
    build_here(config)
    rows = tl.open(str(tmp_path / "store"), "set")
    (batch,) = tl.DataLoader(rows, 2, columns=["input_ids", "lengths"], shuffle=False)
    assert batch["input_ids"].shape == (2, 1 << 16)
    assert batch["lengths"].max() == 1 << 16


def test_buckets_and_mixtures_that_contradict_each_other_are_refused(texts: tl.Dataset):
    changing = tl.WeightScheduler(
        [
            {"step": 0, "weights": {"a": 0.5, "b": 0.5}},
            {"step": 9, "weights": {"a": 0.1, "b": 0.9}},
        ]
    )
    for weights, stop, message in (
        (changing, "restart", "weights of the mixture change"),
        ({"a": 0.5, "b": 0.5}, "first_exhausted", "ends at one position"),
        ({"a": 1.0, "b": 0.0}, "restart", "b has weight 0"),
    ):
        mixture = tl.Mixture({"a": texts, "b": texts}, weights, stop=stop, rows=90)
        with pytest.raises(ConfigError, match=message):
            tl.DataLoader(mixture, 8, padding={"buckets": 2})


def test_a_state_of_other_padding_is_refused(texts: tl.Dataset):
    state = tl.DataLoader(texts, 8, padding={"buckets": (8, 80)}).get_state()
    with pytest.raises(ConfigError, match=r"padding is .*8, 80.* there"):
        tl.DataLoader(texts, 8, padding={"buckets": (16, 80)}).set_state(state)


def test_each_row_group_is_decoded_about_once(texts: tl.Dataset):
    loader = tl.DataLoader(texts, 8, padding={"buckets": (8, 16, 24, 80)}, epochs=3)
    assert len(ids(loader)) == len(loader)
    assert loader.decoded.groups == len(texts.rows.group_rows)


def test_damage_is_raised(texts: tl.Dataset, tmp_path: Any):
    store = tmp_path / "store"
    shutil.copytree(texts.store.url, store)
    path = store / "texts" / "v1" / texts.manifest.files[0].path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"data/.*row group"):
        tl.DataLoader(tl.open(store, "texts", split="train"), 8)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"padding": {"lenght": 8}}, "padding: got .*must be a BatchPadding"),
    ({"padding": 8}, "padding: got 8"),
    ({"padding": {"length": 0}}, r"padding.length: got 0"),
    ({"padding": {"side": "middle"}}, "padding.side: got 'middle'"),
    ({"padding": {"buckets": (16, 8)}}, "padding.buckets: got"),
    ({"padding": {"buckets": (8, 12), "multiple": 8}}, "must be multiples of 8"),
    ({"padding": {"length": 80, "buckets": 3}}, "got length and buckets"),
    ({"padding": {"length": 60, "multiple": 8}}, "must be a multiple of 8"),
    ({"padding": {"truncate": "right"}}, "give max_length"),
    ({"padding": {"truncate": "both", "length": 8}}, "padding.truncate: got 'both'"),
    ({"padding": {"equal_rows": True}}, "padding.equal_rows: got True"),
    (
        {"padding": {"buckets": 2}, "host": (0, 3)},
        "got 8, and batches are cut into 3 equal parts",
    ),
    ({"columns": ["documents"]}, "columns: got"),
    ({"columns": ["attention"]}, "did you mean 'attention_mask'"),
]


@pytest.mark.parametrize(
    ("options", "message"), WRONG, ids=lambda value: str(value)[:40]
)
def test_wrong_arguments_are_refused_in_a_sentence(
    texts: tl.Dataset, options: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        tl.DataLoader(**{"data": texts, "batch_size": 8, **options})


def test_packed_rows_take_no_padding(ds: tl.Dataset):
    with pytest.raises(ConfigError, match="packed rows, which are of one length"):
        tl.DataLoader(ds, 8, padding=tl.BatchPadding())
    with pytest.raises(ConfigError, match="columns: got"):
        tl.DataLoader(ds, 8, columns=["attention_mask"])


def test_the_code_of_the_page_runs(root: str):
    page = (Path(tl.__file__).parents[2] / "docs/padding.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    assert len(blocks) == 2
    for block in blocks:
        code = block.replace("artifacts/chat", f"{root}/texts").replace(
            "artifacts/pairs", f"{root}/judged"
        )
        exec(compile(code.replace('")  #', '@v1")  #'), "padding.md", "exec"), found)
        assert found["loader"].step == len(found["loader"])
    assert {"chosen_input_ids", "rejected_labels"} <= set(found["batch"])


@pytest.mark.parametrize("name", ["texts", "answers", "left", "judged"])
def test_pages_that_are_laid_out_in_another_way_are_read_through_arrow(
    name: str, root: str, monkeypatch: pytest.MonkeyPatch
):
    def unfamiliar(*_: Any) -> Any:
        raise Unfamiliar("another way")

    ours = list(tl.DataLoader(tl.open(root, name), 8, padding={"buckets": 3}))
    monkeypatch.setattr("tokenlake.runtime.reading.version.list_lengths", unfamiliar)
    monkeypatch.setattr("tokenlake.runtime.reading.version.list_values", unfamiliar)
    theirs = list(tl.DataLoader(tl.open(root, name), 8, padding={"buckets": 3}))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all((one[column] == other[column]).all() for column in one)


@pytest.mark.parametrize(
    ("size", "parts"), [(16, 8), (8, 8), (24, 8), ({0: 16, 3: 48}, 16)]
)
def test_buckets_divide_among_devices_and_hosts(
    texts: tl.Dataset, size: Any, parts: int
):
    """Lanes are chosen so that all batches can be cut; a run on others goes on with
    the state's lanes.
    """
    options: dict[str, Any] = {
        "padding": {"buckets": 4},
        "columns": ["input_ids"],
        "workers": 0,
    }
    alone = tl.DataLoader(texts, size, **options)
    assert any(rows % parts for rows in alone.plan.batch_sizes)  # what once was refused
    loaders = [
        tl.DataLoader(texts, size, host=(host, parts), **options)
        for host in range(parts)
    ]
    plan = loaders[0].plan
    assert plan.lanes % parts == 0 and not any(
        rows % parts for rows in plan.batch_sizes
    )
    first, *rest = [
        np.concatenate([batch["input_ids"] for batch in batches])
        for batches in zip(*loaders, strict=False)
    ]
    loaders[0].set_state(
        loaders[0].plan.identity
        | {"format": 1, "step": 1, "epoch": 0, "rows": len(first)}
    )
    alone.set_state(loaders[0].get_state())
    assert all(
        np.array_equal(ours, theirs)
        for ours, theirs in zip(ids(alone), rest, strict=False)
    )
    # Lanes that were asked for stay, on both sides.
    with pytest.raises(ConfigError, match=r"lanes is .* there and 1 here"):
        tl.DataLoader(texts, size, lanes=1, **options).set_state(loaders[0].get_state())


def test_buckets_that_cannot_be_cut_name_the_numbers_that_work(texts: tl.Dataset):
    with pytest.raises(
        ConfigError,
        match=r"padding\.buckets: batches of the buckets have .* multiples of lanes=2, and are cut into 8 equal parts"
        r" .*expected lanes=8 or 16, or padding with equal_rows=True",
    ):
        tl.DataLoader(texts, 16, lanes=2, padding={"buckets": 4}, host=(0, 8))
    with pytest.raises(
        ConfigError, match=r"batch_size: got 12, .* into 8 equal parts .* multiple of 8"
    ):
        tl.DataLoader(texts, 12, padding={"buckets": 4}, host=(0, 8))

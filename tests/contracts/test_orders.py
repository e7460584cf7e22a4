"""The contract of an order: a step is a function of its number, whatever came before,
and loses no row.

Each entry of :data:`ORDERS` is one way in which a loader can be asked for rows. A new
option that changes which rows a step has belongs there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tokenlake as tl

Data = tl.Dataset | tl.Mixture
Batch = dict[str, Any]


def packed(lake: str) -> Data:
    return tl.open(lake, "web")


def documents(lake: str) -> Data:
    return tl.open(lake, "notes")


def mixture(lake: str, **options: Any) -> Data:
    datasets = {"web": tl.open(lake, "web"), "code": tl.open(lake, "code")}
    return tl.Mixture(datasets, {"web": 0.7, "code": 0.3}, block_size=8, **options)


def scheduled(lake: str) -> Data:
    datasets = {"web": tl.open(lake, "web"), "code": tl.open(lake, "code")}
    points = [
        {"step": 0, "weights": {"web": 1.0, "code": 0.0}},
        {"step": 8, "weights": {"web": 0.5, "code": 0.5}},
    ]
    return tl.Mixture(
        datasets, tl.WeightScheduler(points, "linear"), rows=128, block_size=8
    )


Order = tuple[Callable[[str], Data], dict[str, Any]]

ORDERS: dict[str, Order] = {
    "as stored": (packed, {"shuffle": False}),
    "shuffled": (packed, {"seed": 3}),
    "two epochs": (packed, {"seed": 3, "epochs": 2}),
    "windows": (packed, {"seed": 3, "window": 3}),
    "strands": (packed, {"seed": 3, "interleave": 3}),
    "strands of little memory": (packed, {"seed": 3, "epochs": 2, "cache_bytes": 4000}),
    "strands in buckets": (
        documents,
        {"seed": 3, "interleave": 2, "padding": tl.BatchPadding(buckets=[16, 128])},
    ),
    "one lane": (packed, {"seed": 3, "lanes": 1}),
    "no last batch": (packed, {"seed": 3, "drop_last": True}),
    "growing batches": (packed, {"batch_size": {0: 8, 4: 16}}),
    "growing lengths": (packed, {"lengths": {0: 8, 5: 16}}),
    "documents": (documents, {"seed": 3}),
    "buckets": (
        documents,
        {"seed": 3, "padding": tl.BatchPadding(buckets=[16, 64, 128])},
    ),
    "mixture that ends": (
        lambda lake: mixture(lake, stop="all_exhausted"),
        {"seed": 3},
    ),
    "mixture to the first end": (
        lambda lake: mixture(lake, stop="first_exhausted"),
        {"seed": 3},
    ),
    "mixture that restarts": (lambda lake: mixture(lake, rows=300), {"seed": 3}),
    "mixture by a schedule": (scheduled, {"seed": 3}),
    "mixture one by one": (
        lambda lake: mixture(lake, rows=300),
        {"seed": 3, "window": 1},
    ),
    "mixture in strands": (
        lambda lake: mixture(lake, rows=300),
        {"seed": 3, "interleave": 3},
    ),
    "mixture of little memory": (
        lambda lake: mixture(lake, stop="all_exhausted"),
        {"seed": 3, "cache_bytes": 4000},
    ),
}

WHOLE_EPOCHS = (
    "as stored",
    "shuffled",
    "two epochs",
    "windows",
    "strands",
    "strands of little memory",
    "strands in buckets",
    "one lane",
    "growing batches",
    "documents",
    "buckets",
)


@pytest.fixture(params=ORDERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def loader_of(name: str, lake: str) -> Callable[..., tl.DataLoader]:
    """Return a function that makes a loader of the order, with further options."""
    make_data, options = ORDERS[name]
    data = make_data(lake)

    def make_loader(**more: Any) -> tl.DataLoader:
        chosen: dict[str, Any] = {
            "batch_size": 8,
            "workers": 0,
            "prefetch": 0,
            **options,
            **more,
        }
        return tl.DataLoader(data, **chosen)

    return make_loader


def rows_of(batch: Batch) -> list[bytes]:
    """Return the ids of each row without padding."""
    is_token = (
        batch["attention_mask"]
        if "attention_mask" in batch
        else batch["segment_ids"] > 0
    )
    return [
        row[mask].tobytes()
        for row, mask in zip(batch["input_ids"], is_token, strict=True)
    ]


def assert_same(batches: list[Batch], expected: list[Batch]) -> None:
    assert len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        assert batch.keys() == wanted.keys()
        for column, values in wanted.items():
            assert np.array_equal(batch[column], values), column


def test_a_step_does_not_depend_on_what_came_before(
    loader_of: Callable[..., tl.DataLoader],
) -> None:
    whole = list(loader_of())
    assert len(loader_of()) == len(whole) > 4
    for step in range(0, len(whole), 5):
        assert_same(list(loader_of().iter_from_step(step)), whole[step:])


def test_a_state_of_json_resumes_behind_its_batch(
    loader_of: Callable[..., tl.DataLoader],
) -> None:
    whole = list(loader_of())
    for step in (0, 1, len(whole) // 2, len(whole) - 1):
        first = loader_of()
        batches = iter(first)
        for _ in range(step):
            next(batches)
        state = json.loads(json.dumps(first.get_state()))
        first.close()
        resumed = loader_of()
        resumed.set_state(state)
        assert resumed.step == step
        assert_same(list(resumed), whole[step:])


def test_hosts_together_have_the_rows_of_each_batch(
    loader_of: Callable[..., tl.DataLoader],
) -> None:
    whole = list(loader_of(pad_last=True))
    for hosts in (2, 4):
        shares = [
            list(loader_of(pad_last=True, host=(host, hosts))) for host in range(hosts)
        ]
        for step, batch in enumerate(whole):
            joined = np.concatenate([share[step]["input_ids"] for share in shares])
            assert np.array_equal(joined, batch["input_ids"])


def test_threads_and_batches_ahead_change_nothing(
    loader_of: Callable[..., tl.DataLoader],
) -> None:
    assert_same(list(loader_of(workers=2, prefetch=3)), list(loader_of()))


@pytest.mark.parametrize("name", WHOLE_EPOCHS)
def test_every_row_comes_once_in_an_epoch(
    name: str, lake: str, loader_of: Callable[..., tl.DataLoader]
) -> None:
    make_data, options = ORDERS[name]
    as_stored = tl.DataLoader(make_data(lake), 8, shuffle=False)
    stored = Counter(row for batch in as_stored for row in rows_of(batch))
    assert stored.total() > 40
    delivered = Counter(row for batch in loader_of() for row in rows_of(batch))
    epochs = options.get("epochs", 1)
    assert delivered == {row: count * epochs for row, count in stored.items()}

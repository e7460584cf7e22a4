"""Ranks that have as much to do: other places in a batch for the same rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.loader.support import Batch, ids, same
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import Document, explain_step, steps_of_document

Data = tl.Dataset | tl.Mixture
SIZES = {0: 8, 3: 16, 5: 24}


def loader_of(data: Data, ranks: int | None = 4, **options: Any) -> tl.DataLoader:
    balance = None if ranks is None else {"ranks": ranks}
    chosen: dict[str, Any] = {
        "batch_size": SIZES,
        "seed": 5,
        "balance": balance,
        "workers": 0,
        **options,
    }
    return tl.DataLoader(data, **chosen)


def dealt(data: Data, costs: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    """The row at each place of a batch whose rows have these costs."""
    plan = tl.DataLoader(data, len(costs), epochs=None, balance={"ranks": ranks}).plan
    return plan.dealt(plan.batch(0), costs)


def costs(batch: Batch) -> np.ndarray[Any, Any]:
    """Of each row, as its segment ids say."""
    segments = batch["segment_ids"]
    found: Any = sum(
        (segments == number).sum(axis=1) ** 2
        for number in range(1, int(segments.max()) + 1)
    )
    return found


def bags(batches: list[np.ndarray[Any, Any]]) -> list[list[bytes]]:
    return [sorted(row.tobytes() for row in batch) for batch in batches]


COSTS = st.integers(1, 6).flatmap(
    lambda ranks: st.tuples(
        st.just(ranks),
        st.integers(1, 9).flatmap(
            lambda each: st.lists(
                st.integers(1, 1 << 40), min_size=ranks * each, max_size=ranks * each
            )
        ),
    )
)


@given(COSTS)
def test_every_row_has_a_place_and_no_rank_has_more_than_it_must(
    learned: tl.Dataset, case: tuple[int, list[int]]
):
    ranks, asked = case
    of_rows = np.array(asked, np.int64)
    rows = dealt(learned, of_rows, ranks)
    assert sorted(rows.tolist()) == list(range(len(asked)))
    parts = rows.reshape(ranks, -1)
    assert (np.diff(parts, axis=1) > 0).all()
    totals = of_rows[parts].sum(axis=1)
    # Each rank has one row of each round, and what rounds are apart inside adds up to
    # no more than rows are.
    assert int(np.ptp(totals)) <= max(asked) - min(asked)
    assert (dealt(learned, of_rows * 3, ranks) == rows).all()


def test_ranks_cost_alike_where_documents_are_as_long_as_texts_are(learned: tl.Dataset):
    """Lengths as of web pages (log-normal), greedily cut into rows of 8,192, dealt
    to 64 ranks of 8 rows.
    """
    chance = np.random.default_rng(3)
    found = list[float]()
    for _ in range(8):
        ends = np.cumsum(chance.lognormal(6.3, 1.3, 9000).astype(np.int64) + 1)
        bounds = np.unique(np.concatenate([ends, np.arange(513) * 8192]))
        bounds = bounds[bounds <= 512 * 8192]
        of_rows = np.bincount(bounds[:-1] // 8192, np.diff(bounds) ** 2.0, 512).astype(
            np.int64
        )
        totals = of_rows[dealt(learned, of_rows, 64)].reshape(64, -1).sum(axis=1)
        found.append(totals.max() / totals.mean())
        assert of_rows.reshape(64, -1).sum(axis=1).max() > 1.2 * totals.mean()
    assert max(found) < 1.025


def test_the_rows_of_a_step_are_the_same_for_any_number_of_ranks(data: Data):
    plainly = loader_of(data, None)
    whole = [
        {name: column.copy() for name, column in batch.items()}
        for batch in loader_of(
            data, None, columns=("input_ids", "segment_ids", "loss_mask")
        )
    ]
    for ranks in (2, 4):
        balanced = loader_of(
            data, ranks, columns=("input_ids", "segment_ids", "loss_mask")
        )
        apart, nearer = list[float](), list[float]()
        for before, batch in zip(whole, balanced, strict=True):
            for name in before:
                assert bags([batch[name]]) == bags([before[name]])
            if len(batch["input_ids"]) % ranks == 0:
                apart.append(np.ptp(costs(before).reshape(ranks, -1).sum(axis=1)))
                nearer.append(np.ptp(costs(batch).reshape(ranks, -1).sum(axis=1)))
        assert sum(nearer) < 0.7 * sum(apart)
        state = balanced.get_state()
        assert state.pop("balance") == {"ranks": ranks}
        for _ in plainly:
            pass
        assert state == plainly.get_state()
        plainly = loader_of(data, None)


def test_resumed_is_uninterrupted_and_hosts_together_are_one(data: Data):
    loader = loader_of(data)
    whole, states = list[np.ndarray[Any, Any]](), [json.dumps(loader.get_state())]
    for batch in loader:
        whole.append(batch["input_ids"].copy())
        states.append(json.dumps(loader.get_state()))
    for step in range(0, len(whole), 2):
        resumed = loader_of(data, prefetch=step % 3)
        resumed.set_state(json.loads(states[step]))
        assert same(ids(resumed), whole[step:])
    for hosts in (2, 4):
        parts = [ids(loader_of(data, host=(host, hosts))) for host in range(hosts)]
        joined = [np.concatenate(each) for each in zip(*parts, strict=True)]
        assert same(joined, whole)
    # Another number of hosts, each a rank, goes on with the rows that are left.
    moved = list[list[np.ndarray[Any, Any]]]()
    for host in range(8):
        other = tl.DataLoader(data, SIZES, seed=5, balance="attention", host=(host, 8))
        other.set_state(json.loads(states[2]))
        moved.append(ids(other))
    assert bags([np.concatenate(each) for each in zip(*moved, strict=True)]) == bags(
        whole[2:]
    )


def test_pytorch_and_grain_deal_as_the_loader_does(data: Data):
    whole = ids(loader_of(data))
    batches = [
        batch["input_ids"].numpy()
        for batch in tl.torch_dataset(data, SIZES, seed=5, balance={"ranks": 4})
    ]
    assert same(batches, whole)
    grained = tl.grain_dataset(data, SIZES, seed=5, balance={"ranks": 4})
    assert same(ids(grained), whole)


def test_what_was_in_a_batch_is_told_of_where_it_was_dealt_to(learned: tl.Dataset):
    plan = loader_of(learned).plan
    batch = next(loader_of(learned).iter_from_step(1))
    explained = explain_step(plan, 1)
    assert [row.row for row in explained] == list(range(8))
    stored = learned.take(np.array([row.stored_row for row in explained]))
    assert (batch["input_ids"] == stored["input_ids"]).all()
    assert explain_step(plan, 1, row=5) == [explained[5]]
    segment = explained[5].segments[0]
    (file,) = [entry for entry in learned.manifest.inputs if entry.path == segment.path]
    found = steps_of_document(plan, Document(file.file_id, segment.position))
    assert (1, 5) in [(row.step, row.row) for row in found]


def test_a_host_reads_what_decides_where_rows_go(learned: tl.Dataset):
    loaders = [loader_of(learned, ranks, host=(0, 4)) for ranks in (4, None)]
    balanced_rows, plain_rows = (sum(map(len, ids(loader))) for loader in loaders)
    assert balanced_rows == plain_rows
    balanced, plain = (loader.decoded.groups for loader in loaders)
    assert balanced >= len(learned.rows.group_rows) > plain


def test_what_does_not_fit_is_refused(learned: tl.Dataset, texts: tl.Dataset):
    cases: list[tuple[tl.Dataset, Any, str]] = [
        (
            learned,
            {"balance": "atention"},
            "got 'atention', must be 'attention', a BatchBalance, or a mapping of ranks",
        ),
        (
            learned,
            {"balance": {"ranks": 0}},
            "balance.ranks: got 0, must be a whole number from 1 on",
        ),
        (learned, {"balance": "attention"}, "the number of ranks is not known"),
        (
            learned,
            {"balance": {"ranks": 3}},
            "got 3, which does not divide every batch size; .* a divisor of 8",
        ),
        (
            learned,
            {"balance": {"ranks": 2}, "host": (0, 4)},
            "got 2, and host cuts batches into 4 parts",
        ),
        (
            texts,
            {"balance": {"ranks": 2}},
            "needs packed rows, and those of texts@v1/train have many lengths",
        ),
    ]
    for data, options, says in cases:
        with pytest.raises(ConfigError, match=says):
            tl.DataLoader(data, 8, **options)

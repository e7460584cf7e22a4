"""Caps, budgets and epochs of a mixture's sources, and weights that a trainer feeds
back.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.loader.support import ids, same
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import explain_step, restored

EVEN = {"code": 0.5, "web": 0.5}


def loader_of(mixture: tl.Mixture, **options: Any) -> tl.DataLoader:
    chosen: dict[str, Any] = {
        "batch_size": 4,
        "columns": ["input_ids"],
        "workers": 0,
        **options,
    }
    return tl.DataLoader(mixture, **chosen)


def stored_rows(loader: tl.DataLoader, passes: int = 1) -> Counter[tuple[str, int]]:
    """How often each stored row of each source comes."""
    found, plan = Counter[tuple[str, int]](), loader.plan
    first = [np.cumsum(rows.group_rows) - rows.group_rows for rows in plan.sources]
    step = 0
    for _ in range(passes):
        for _ in range(plan.batches_in(0) or 0):
            (rows,) = plan.rows([plan.batch(step)], np.arange)
            for source, group, row in zip(
                rows.source.tolist(),
                rows.group.tolist(),
                rows.row.tolist(),
                strict=True,
            ):
                found[list(plan.datasets)[source], int(first[source][group]) + row] += 1
            step += 1
    return found


# -- caps and budgets


def test_epochs_of_each_source_decide_weights_and_the_end(
    sources: dict[str, tl.Dataset],
):
    mixture = tl.Mixture(sources, epochs={"code": 2, "web": 0.5}, block_size=4)
    loader = loader_of(mixture, lanes=1)
    found = stored_rows(loader)
    code, web = (len(dataset) for dataset in sources.values())
    assert mixture.rows == 2 * code + round(web / 2)
    assert all(found["code", row] == 2 for row in range(code))
    assert sum(found["web", row] for row in range(web)) == round(web / 2)
    assert max(found["web", row] for row in range(web)) == 1
    other = loader_of(
        tl.Mixture(sources, epochs={"code": 2, "web": 0.5}, block_size=4), lanes=1
    )
    other.set_state(json.loads(json.dumps(loader.get_state())))


def test_simulated_epochs_repeat_what_the_run_would(sources: dict[str, tl.Dataset]):
    """A quarter of the tokens sees a quarter of the rows, and each as often."""
    whole = loader_of(tl.Mixture(sources, EVEN, rows=400, block_size=4))
    part = loader_of(
        tl.Mixture(
            sources,
            EVEN,
            rows=100,
            block_size=4,
            target_budget=4_000_000,
            experiment_budget=1_000_000,
        )
    )
    run, experiment = stored_rows(whole), stored_rows(part)
    for name, dataset in sources.items():
        used = {row for source, row in experiment if source == name}
        assert len(used) <= len(dataset) // 4
        often = [
            sum(count for (source, _), count in found.items() if source == name)
            for found in (run, experiment)
        ]
        times = often[0] / len(dataset), often[1] / (len(dataset) // 4)
        assert abs(times[0] - times[1]) < 0.2 * times[0]


def test_the_same_rows_are_used_whatever_else_differs(sources: dict[str, tl.Dataset]):
    def used(
        fraction: float, weights: dict[str, float], passes: int = 1, **options: Any
    ) -> set[tuple[str, int]]:
        mixture = tl.Mixture(
            sources, weights, max_fraction={"web": fraction}, rows=400, block_size=4
        )
        found = stored_rows(loader_of(mixture, seed=3, **options), passes)
        return {key for key in found if key[0] == "web"}

    half = used(0.5, EVEN)
    assert len(half) == len(sources["web"]) // 2
    assert used(0.5, {"code": 0.25, "web": 0.75}, passes=2, lanes=2) == half
    assert used(0.25, EVEN) < half < used(0.75, EVEN)


def test_a_shortened_mixture_resumes_and_is_explained_by_its_state(
    sources: dict[str, tl.Dataset],
):
    def loader(**options: Any) -> tl.DataLoader:
        caps: dict[str, Any] = {"max_fraction": 0.5, **options}
        return loader_of(
            tl.Mixture(sources, EVEN, rows=120, block_size=4, **caps), batch_size=8
        )

    whole = ids(loader())
    stopped = loader()
    for _ in islice(stopped, 5):
        pass
    state = json.loads(json.dumps(stopped.get_state()))
    assert state["mixture"]["kept"] == {
        name: len(dataset) // 2 for name, dataset in sources.items()
    }
    resumed = loader()
    resumed.set_state(state)
    assert same(ids(resumed), whole[5:])
    hosts = [
        ids(loader_of(loader().plan.data, batch_size=8, host=(host, 2)))
        for host in range(2)
    ]  # pyright: ignore[reportArgumentType]
    assert same([np.concatenate(each) for each in zip(*hosts, strict=True)], whole)
    plan, place = restored(
        state,
        lambda name, split: next(
            d for d in sources.values() if d.name.startswith(name)
        ),
    )
    assert place.step == 5
    told = [(row.dataset, row.stored_row) for row in explain_step(plan, 6)]
    assert told == [
        (row.dataset, row.stored_row) for row in explain_step(loader().plan, 6)
    ]
    for other in ({"max_fraction": 0.25}, {"max_fraction": 1.0}):
        with pytest.raises(ConfigError, match=r"mixture\.kept is .* there and .* here"):
            loader(**other).set_state(state)
    # A row that is left out never comes.
    used = stored_rows(loader())
    plan = loader().plan
    for source, (name, dataset) in enumerate(sources.items()):
        for row in range(len(dataset)):
            at_group, inside = dataset.rows.group_of(np.array([row]))
            places = [
                plan.steps.places(0, source, epoch, at_group, inside)[0]
                for epoch in range(3)
            ]
            assert sum(place is not None for place in places) == min(used[name, row], 3)


def test_more_repetitions_than_allowed_are_refused_with_what_is_missing(
    sources: dict[str, tl.Dataset],
):
    code = len(sources["code"])
    tl.Mixture(sources, EVEN, rows=2 * code, max_repetitions={"code": 1})
    with pytest.raises(
        ConfigError,
        match=r"code: asked for .* tokens; 1 repetitions of .* missing\. Give it less",
    ):
        tl.Mixture(sources, EVEN, rows=4 * code, max_repetitions={"code": 1})
    with pytest.raises(ConfigError, match="code: asked for"):
        tl.Mixture(
            sources, EVEN, rows=2 * code, max_repetitions={"code": 1}, max_fraction=0.5
        )
    tl.Mixture(sources, EVEN, stop="all_exhausted", max_repetitions=1)


def test_caps_that_do_not_fit_are_refused(
    sources: dict[str, tl.Dataset], texts: tl.Dataset
):
    cases: list[tuple[Any, str]] = [
        (
            lambda: tl.Mixture(sources),
            "weights: got None; expected name -> share of rows, or epochs",
        ),
        (
            lambda: tl.Mixture(sources, EVEN, max_repetitions=2),
            "forever; expected rows, epochs",
        ),
        (
            lambda: tl.Mixture(sources, EVEN, epochs={"code": 1, "web": 1}),
            "the end of the mixture, and so would weights",
        ),
        (
            lambda: tl.Mixture(sources, epochs={"code": 1, "web": 1}, rows=9),
            "the end of the mixture, and so would rows",
        ),
        (
            lambda: tl.Mixture(sources, epochs={"code": 1}),
            "epochs: has no entry for web",
        ),
        (
            lambda: tl.DataLoader(
                tl.Mixture({"a": texts}, {"a": 1.0}, rows=9, max_fraction=0.5),
                2,
                padding={"buckets": 2},
            ),
            "sources are shortened",
        ),
    ]
    for make, says in cases:
        with pytest.raises(ConfigError, match=says):
            make()


# -- weights fed back


def endless(
    sources: dict[str, tl.Dataset], weights: Any = None, **options: Any
) -> tl.DataLoader:
    """Batches of 64 rows of a mixture without end."""
    mixture = tl.Mixture(sources, weights or EVEN, block_size=4)
    return loader_of(
        mixture, **{"batch_size": 64, "epochs": None, "lanes": 1, **options}
    )


def taken(batches: Any, count: int) -> list[np.ndarray[Any, Any]]:
    return ids(islice(batches, count))


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0.1, 0.5, 0.9, 1.0])), max_size=4
    ),
    st.integers(0, 40),
    st.sampled_from([0, 2]),
    st.sampled_from([1, 4]),
)
def test_weights_fed_back_are_replayed_exactly(
    sources: dict[str, tl.Dataset],
    changes: list[tuple[int, float]],
    stop: int,
    prefetch: int,
    lanes: int,
):
    """Fed back inside a loop; resumed from any state by a loader of the first
    weights, also on other hosts.
    """
    loader = endless(sources, prefetch=prefetch, lanes=lanes)
    got, states, batches = list[np.ndarray[Any, Any]](), list[str](), iter(loader)
    for wait, share in [*changes, (3, None)]:
        for _ in range(wait):
            states.append(json.dumps(loader.get_state()))
            got.append(next(batches)["input_ids"].copy())
        if share is not None:
            loader.set_weights({"code": share, "web": 1 - share})
    states.append(json.dumps(loader.get_state()))
    state = json.loads(states[-1])
    assert len(state["mixture"]["schedule"]["extensions"]) == len(changes)
    # What came is what the last schedule says from the beginning on: nothing before a
    # change moved.
    again = endless(sources, lanes=lanes)
    again.set_state(state)
    assert same(taken(again.iter_from_step(0), len(got)), got)
    middle = min(stop, len(got))
    resumed = endless(sources, lanes=lanes)
    resumed.set_state(json.loads(states[middle]))
    assert json.dumps(resumed.get_state()) == states[middle]
    rest = taken(
        endless_from(sources, states[-1], middle, lanes=lanes), len(got) - middle
    )
    assert same(rest, got[middle:])
    hosts = [
        taken(
            endless_from(sources, states[-1], middle, lanes=lanes, host=(host, 2)),
            len(got) - middle,
        )
        for host in range(2)
    ]
    assert same(
        [np.concatenate(each) for each in zip(*hosts, strict=True)], got[middle:]
    )


def endless_from(
    sources: dict[str, tl.Dataset], state: str, step: int, **options: Any
) -> Any:
    loader = endless(sources, **options)
    loader.set_state(json.loads(state))
    return loader.iter_from_step(step)


@pytest.mark.parametrize(("lanes", "block_size"), [(1, 4), (4, 4), (16, 1000)])
def test_weights_fed_back_act_from_their_step_on(
    sources: dict[str, tl.Dataset], lanes: int, block_size: int
):
    """The share of each source is the new one from the next batch on, as if it had
    been known before; none starves.
    """

    def counts_by_batch(loader: tl.DataLoader, first: int, last: int) -> list[int]:
        """Rows of `web` in the batches of some steps."""
        batches = [loader.plan.batch(step) for step in range(first, last)]
        return [
            int((rows.source == 1).sum())
            for rows in loader.plan.rows(batches, np.arange)
        ]

    def mixed(weights: Any) -> tl.DataLoader:
        return loader_of(
            tl.Mixture(sources, weights, block_size=block_size),
            batch_size=64,
            epochs=None,
            lanes=lanes,
        )

    changes = {10: 0.125, 17: 0.0, 21: 0.75, 1500: 0.25}
    points = [
        {"step": step, "weights": {"code": 1 - web, "web": web}}
        for step, web in changes.items()
    ]
    loader = mixed(EVEN)
    for point in points:
        loader.set_weights(point["weights"], at=point["step"])
    known = mixed(tl.WeightScheduler([{"step": 0, "weights": EVEN}, *points]))
    for first, last in ((0, 30), (990, 1010), (1490, 1520)):
        assert counts_by_batch(loader, first, last) == counts_by_batch(
            known, first, last
        )
    assert counts_by_batch(loader, 8, 23) == [32] * 2 + [8] * 7 + [0] * 4 + [48] * 2


def test_weights_fed_back_move_no_batch_before_their_step(
    sources: dict[str, tl.Dataset],
):
    before = taken(endless(sources, lanes=4), 60)
    loader = endless(sources, lanes=4)
    loader.set_weights({"code": 1.0, "web": 0.0}, at=10)
    after = taken(loader, 60)
    assert same(after[:10], before[:10])
    sources_of = [
        loader.plan.rows([loader.plan.batch(step)], np.arange)[0].source
        for step in range(60)
    ]
    assert np.concatenate(sources_of[:10]).max() == 1
    assert np.concatenate(sources_of[10:]).max() == 0
    # A step that was passed, or weights of other sources, change nothing.
    state = loader.get_state()
    for weights, options, says in (
        (EVEN, {"at": 59}, "at: got 59, must be a whole number from 60 on"),
        ({"code": 1.0}, {}, "weighs"),
        ({"code": 0.5, "web": 0.6}, {}, "must sum to 1"),
    ):
        with pytest.raises(ConfigError, match=says):
            loader.set_weights(weights, **options)
    assert loader.get_state() == state
    with pytest.raises(
        ConfigError, match="is a single dataset; only a mixture has weights"
    ):
        tl.DataLoader(sources["code"], 4).set_weights({"code": 1.0})
    ended = loader_of(tl.Mixture(sources, EVEN, rows=40))
    with pytest.raises(ConfigError, match="step 10 is after the first pass"):
        ended.set_weights({"code": 0.5, "web": 0.5}, at=10)


def test_changes_that_an_earlier_release_recorded_are_refused(
    sources: dict[str, tl.Dataset],
):
    """Its changes took effect later and were made up for, so that the order behind
    them is another.
    """
    loader = endless(sources)
    loader.set_weights({"code": 0.9, "web": 0.1}, at=8)
    state = json.loads(json.dumps(loader.get_state()))
    (extension,) = state["mixture"]["schedule"]["extensions"]
    del extension["effect"]
    fresh = endless(sources)
    with pytest.raises(
        ConfigError,
        match=r"changed at step 8 by another release .* Expected a state from before",
    ):
        fresh.set_state(state)
    with pytest.raises(ConfigError, match="changed at step 8 by another release"):
        restored(
            state, lambda version, split: sources[version.removesuffix("-rows@v1")]
        )


def test_other_libraries_replay_weights_that_were_fed_back(
    sources: dict[str, tl.Dataset],
):
    def mixture() -> tl.Mixture:
        return tl.Mixture(sources, EVEN, rows=200, block_size=4)

    loader = loader_of(mixture(), lanes=1)
    for _ in islice(loader, 5):
        pass
    loader.set_weights({"code": 0.9, "web": 0.1}, at=8)
    state = json.loads(json.dumps(loader.get_state()))
    rest = ids(loader)
    torched = tl.torch_dataset(mixture(), 4, lanes=1, columns=["input_ids"])
    torched.set_state(state)
    assert same([batch["input_ids"].numpy() for batch in torched], rest)
    grained = iter(tl.grain_dataset(mixture(), 4, lanes=1, columns=["input_ids"]))
    grained.set_state(state)
    assert same(ids(grained), rest)
    capped = tl.Mixture(
        sources, EVEN, rows=60, block_size=4, max_repetitions={"code": 2}
    )
    with pytest.raises(ConfigError, match=r"code: asked for .* missing"):
        loader_of(capped).set_weights({"code": 1.0, "web": 0.0})

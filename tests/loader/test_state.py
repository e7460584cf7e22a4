"""The state: a few integers that fit their run alone, and say what differs from
another.
"""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.loader.support import ids, same
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import BatchPlan, restored


def state_at(loader: tl.DataLoader, step: int) -> dict[str, Any]:
    for _, _ in zip(range(step), loader, strict=False):
        pass
    loader.close()
    return json.loads(json.dumps(loader.get_state()))


def test_a_state_is_pinned(ds: tl.Dataset):
    state = state_at(tl.DataLoader(ds, 8, seed=3), 5)
    assert state.pop("sources") == {
        "train": {"dataset": "plain@v1/train", "manifest": ds.manifest.sha256}
    }
    assert state == {
        "format": 1,
        "step": 5,
        "epoch": 0,
        "rows": 40,
        "batch_size": [[0, 8]],
        "seed": 3,
        "shuffle": True,
        "epochs": 1,
        "drop_last": False,
        "lanes": 8,
        "window": "all",
        "order": 3,
        "mixture": None,
    }


FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"window": 1}, {"window": 1, "order": 2}),
    ({"window": 4}, {"window": 4, "order": 2}),
    ({"window": "all"}, {"window": "all", "order": 3}),
    ({"interleave": 3}, {"window": 1, "interleave": 3, "order": 3}),
    ({"cache_bytes": 6000, "lanes": 2}, {"window": 1, "interleave": 4, "order": 3}),
    ({"shuffle": False}, {"window": 1, "order": 2}),
]


@pytest.mark.parametrize(("options", "facts"), FORMS, ids=str)
def test_a_state_names_its_order_and_resumes_in_it(
    ds: tl.Dataset, options: dict[str, Any], facts: dict[str, Any]
):
    """The default order may change with the release and the memory: a state goes on
    in its own.
    """
    begun = tl.DataLoader(ds, 8, seed=3, **options)
    state = state_at(begun, 5)
    assert {
        name: state[name] for name in ("window", "interleave", "order") if name in state
    } == facts
    whole = [batch["input_ids"] for batch in tl.DataLoader(ds, 8, seed=3, **options)]
    # A loader of the default order takes the order of the state, unless other options
    # are of another run.
    others = {
        name: value for name, value in options.items() if name in ("lanes", "shuffle")
    }
    resumed = tl.DataLoader(ds, 8, seed=3, **others)
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert same([batch["input_ids"] for batch in resumed], whole[5:])
    # From the state alone.
    plan, position = restored(
        state, lambda version, split: tl.open(ds.store.url, version, split=split)
    )
    assert (plan.identity, position.step) == (begun.plan.identity, 5)
    # And afterwards that of another state.
    if "shuffle" not in options:
        other = state_at(tl.DataLoader(ds, 8, seed=3, window=2, **others), 2)
        resumed.set_state(other)
        assert resumed.get_state() == other


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, True, "all", [1], {}, 10**40, 1 << 31, 1000]
)
def test_an_impossible_number_of_strands_is_refused(ds: tl.Dataset, value: Any):
    state = state_at(tl.DataLoader(ds, 8, lanes=4, interleave=3), 1)
    changed = {**state, "interleave": value}
    with pytest.raises(ConfigError, match="interleave"):
        tl.DataLoader(ds, 8, lanes=4).set_state(changed)
    with pytest.raises(ConfigError, match="interleave"):
        restored(
            changed, lambda version, split: tl.open(ds.store.url, version, split=split)
        )


def test_a_requested_order_is_kept(ds: tl.Dataset):
    state = state_at(tl.DataLoader(ds, 8, interleave=3), 5)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"window": 1}, "interleave is 3 there, and missing here"),
        ({"window": "all"}, "window is 1 there and 'all' here"),
        ({"interleave": 2}, "interleave is 3 there and 2 here"),
    ]
    for options, message in cases:
        with pytest.raises(
            ConfigError, match=f"the state belongs to another run: .*{message}"
        ):
            tl.DataLoader(ds, 8, **options).set_state(state)


MIXED: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    ({"window": 1}, {"code": {}, "web": {}}),
    (
        {"window": 2},
        {"code": {"window": 2, "order": 2}, "web": {"window": 2, "order": 2}},
    ),
    # Both fit into memory.
    (
        {},
        {"code": {"window": "all", "order": 3}, "web": {"window": "all", "order": 3}},
    ),
    # Each lane of the small source has four rows only.
    (
        {"interleave": 6},
        {
            "code": {"window": 1, "interleave": 4, "order": 3},
            "web": {"window": 1, "interleave": 6, "order": 3},
        },
    ),
    # One source fits into its part of the memory, the other does not.
    (
        {"cache_bytes": 13_000},
        {
            "code": {"window": 1, "interleave": 1, "order": 3},
            "web": {"window": "all", "order": 3},
        },
    ),
]


@pytest.mark.parametrize(("options", "facts"), MIXED, ids=str)
def test_a_state_names_the_order_of_each_source_and_resumes_in_it(
    sources: dict[str, tl.Dataset],
    options: dict[str, Any],
    facts: dict[str, dict[str, Any]],
):
    def loader(**chosen: Any) -> tl.DataLoader:
        mixture = tl.Mixture(sources, {"code": 0.3, "web": 0.7}, rows=160)
        return tl.DataLoader(mixture, 8, lanes=4, seed=3, **chosen)

    state = state_at(loader(**options), 5)
    assert (state["window"], state["order"]) == (1, 4)
    for name, source in state["sources"].items():
        assert source.pop("manifest") == sources[name].manifest.sha256
        assert source.pop("dataset") == sources[name].name
        assert source == facts[name]
    # A loader without these options goes on in the order of the state.
    state = state_at(loader(**options), 5)
    whole = ids(loader(**options))
    resumed = loader()
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert same(ids(resumed), whole[5:])
    # Other weights leave the order inside the sources as it is.
    resumed.set_state(state)
    resumed.set_weights({"code": 0.5, "web": 0.5}, at=9)
    assert resumed.get_state()["sources"] == state["sources"]
    assert same(ids(resumed)[:4], whole[5:9])
    # From the state alone.
    url = sources["code"].store.url
    plan, position = restored(
        state, lambda version, split: tl.open(url, version, split=split)
    )
    assert (plan.identity, position.step) == (loader(**options).plan.identity, 5)


def test_a_requested_order_of_a_mixture_is_kept(sources: dict[str, tl.Dataset]):
    mixture = tl.Mixture(sources, {"code": 0.3, "web": 0.7}, rows=160)
    state = state_at(tl.DataLoader(mixture, 8, lanes=4, interleave=3), 5)
    with pytest.raises(
        ConfigError,
        match=r"interleave of source code is 3 there and 2 here; "
        r"interleave of source web is 3 there and 2 here$",
    ):
        tl.DataLoader(mixture, 8, lanes=4, interleave=2).set_state(state)
    with pytest.raises(
        ConfigError,
        match="window of source code is 1 there and 'all' here; "
        "interleave of source code is 3 there and None here",
    ):
        tl.DataLoader(mixture, 8, lanes=4, window="all").set_state(state)


@pytest.mark.parametrize(
    "form",
    [
        {"window": 0},
        {"window": "every"},
        {"window": 1, "interleave": 0},
        {"window": 1, "interleave": 1000, "order": 3},
    ],
    ids=str,
)
def test_an_impossible_order_of_a_source_is_refused(
    sources: dict[str, tl.Dataset], form: dict[str, Any]
):
    mixture = tl.Mixture(sources, {"code": 0.3, "web": 0.7}, rows=160)
    state = state_at(tl.DataLoader(mixture, 8, lanes=4, interleave=3), 5)
    wrong = {**state["sources"]["web"], **form}
    if "interleave" not in form:
        del wrong["interleave"]
    changed = {**state, "sources": {**state["sources"], "web": wrong}}
    with pytest.raises(ConfigError, match=r"interleave|window"):
        tl.DataLoader(mixture, 8, lanes=4).set_state(changed)
    url = sources["code"].store.url
    with pytest.raises(ConfigError, match=r"interleave|window"):
        restored(changed, lambda version, split: tl.open(url, version, split=split))


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed is 0 there and 1 here"),
    ({"shuffle": False}, "shuffle is True there and False here"),
    ({"lanes": 4}, "lanes is 8 there and 4 here"),
    ({"window": 3}, "window is 'all' there and 3 here; order is 3 there and 2 here"),
    ({"epochs": 2}, "epochs is 1 there and 2 here"),
    ({"drop_last": True}, "drop_last is False there"),
    ({"batch_size": 16}, r"to change the size from now on, write {0: 8, 5: 16}"),
]


@pytest.mark.parametrize(
    ("options", "message"), OTHERS, ids=lambda value: str(value)[:30]
)
def test_another_order_is_refused_with_what_differs(
    ds: tl.Dataset, options: dict[str, Any], message: str
):
    state = state_at(tl.DataLoader(ds, 8), 5)
    all_options: dict[str, Any] = {"batch_size": 8, **options}
    other = tl.DataLoader(ds, **all_options)
    with pytest.raises(
        ConfigError, match=f"the state belongs to another run: .*{message}"
    ):
        other.set_state(state)
    assert other.step == 0


def test_all_that_differs_is_named_at_once(ds: tl.Dataset):
    state = state_at(tl.DataLoader(ds, 8), 5)
    with pytest.raises(ConfigError) as caught:
        tl.DataLoader(ds, 8, seed=9, lanes=2).set_state(state)
    assert len(caught.value.details["differs"]) == 2


def test_other_data_is_refused(ds: tl.Dataset, learned: tl.Dataset):
    state = state_at(tl.DataLoader(ds, 8), 2)
    with pytest.raises(
        ConfigError, match=r"source train is plain@v1/train there and learned@v1"
    ):
        tl.DataLoader(learned, 8).set_state(state)
    state["sources"]["train"]["manifest"] = "0" * 64
    with pytest.raises(ConfigError, match=r"source .* is "):
        tl.DataLoader(ds, 8).set_state(state)


@pytest.mark.parametrize(
    "wrong", [{}, [], None, {"format": 2}, {"format": 1, "step": -1}, {"format": 1}]
)
def test_what_is_no_state_is_refused(ds: tl.Dataset, wrong: Any):
    with pytest.raises(ConfigError, match="not the state of a loader"):
        tl.DataLoader(ds, 8).set_state(wrong)


_GARBAGE: list[Any] = [True, False, 1.0, 10**40, -1, "1", None, [1], {}]


@pytest.mark.parametrize(
    "key",
    [
        "step",
        "epoch",
        "rows",
        "format",
        "batch_size",
        "seed",
        "lanes",
        "shuffle",
        "window",
    ],
)
def test_a_value_of_another_type_is_refused(learned: tl.Dataset, key: str):
    """A statement is signed from a state: what is accepted there is what was
    delivered.
    """
    loader = tl.DataLoader(learned, 8, seed=1, lanes=1)
    state = state_at(loader, 1)

    def opened(version: str, split: str) -> tl.Dataset:
        return tl.open(learned.store.url, version, split=split)

    for value in _GARBAGE:
        if value == state[key] and type(value) is type(state[key]):
            continue
        changed = {**state, key: value}
        with pytest.raises(ConfigError):
            loader.set_state(changed)
        if type(value) is type(state[key]) and key in ("seed", "shuffle"):
            continue  # the state of another run
        with pytest.raises(ConfigError):
            restored(changed, opened)
    assert loader.get_state() == state


def test_a_missing_or_another_key_is_refused(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8, lengths={0: 16, 9: 32})
    state = state_at(loader, 2)
    for key in state:
        if key == "lengths":
            continue
        with pytest.raises(ConfigError, match="state"):
            loader.set_state(
                {name: value for name, value in state.items() if name != key}
            )
    with pytest.raises(
        ConfigError, match="an unknown key 'epochz'; did you mean 'epoch'"
    ):
        loader.set_state({**state, "epochz": 1})
    with pytest.raises(ConfigError, match=r"padding is .* there, and missing here"):
        loader.set_state({**state, "padding": {}})
    with pytest.raises(
        ConfigError, match="the state of worker 1 of 4, and not of the whole run"
    ):
        loader.set_state({**state, "turn": [1, 4]})
    for turn in ([4, 4], [0], "00", [0, True]):
        with pytest.raises(ConfigError, match="not the state of a loader: turn"):
            loader.set_state({**state, "turn": turn})
    assert loader.get_state() == state


RUNS: list[dict[str, Any]] = [
    {"batch_size": 8},
    {"batch_size": 8, "epochs": 3},
    {"batch_size": 8, "epochs": None},
    {"batch_size": 24, "drop_last": True},
    {"batch_size": {0: 8, 3: 16, 5: 24}, "epochs": 2},
    {"batch_size": 8, "padding": {"buckets": 3}},
    {
        "batch_size": {0: 4, 7: 8},
        "padding": {"buckets": 3},
        "drop_last": True,
        "epochs": 2,
    },
]


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_a_state_fits_itself_or_is_refused(
    learned: tl.Dataset, texts: tl.Dataset, options: dict[str, Any]
):
    """Every state that a run comes to is taken; one whose step, epoch or rows were
    moved is not.
    """
    data = texts if "padding" in options else learned
    loader = tl.DataLoader(data, **options, workers=0, prefetch=0)
    other = tl.DataLoader(data, **options)
    for _ in range(2):
        for _, _ in zip(range(40), loader, strict=False):
            state = loader.get_state()
            other.set_state(state)
            assert other.get_state() == state
            for key in ("step", "epoch", "rows"):
                for moved in (state[key] - 1, state[key] + 1, state[key] + 8):
                    with pytest.raises(ConfigError, match="state"):
                        other.set_state({**state, key: moved})
            assert other.get_state() == state


def test_a_state_that_does_not_fit_itself_says_what_would(ds: tl.Dataset):
    state = state_at(tl.DataLoader(ds, 8), 3)
    with pytest.raises(
        ConfigError,
        match=r"contradicts itself: after 3 steps of batch sizes \[\[0, 8\]\] a run is at epoch 0 and 24 rows, but the "
        "state has epoch 0 and 7 rows",
    ):
        tl.DataLoader(ds, 8).set_state({**state, "rows": 7})


def test_batches_may_grow_from_the_state_on_and_nothing_is_lost(ds: tl.Dataset):
    state = state_at(tl.DataLoader(ds, 8, columns=["input_ids"]), 5)
    grown = tl.DataLoader(ds, {0: 8, 5: 24}, columns=["input_ids"])
    grown.set_state(state)
    rest = ids(grown)
    whole = ids(tl.DataLoader(ds, {0: 8, 5: 24}, columns=["input_ids"]))
    assert same(rest, whole[5:])
    begun = ids(tl.DataLoader(ds, 8, columns=["input_ids"]))[:5]
    rows = [row.tobytes() for batch in [*begun, *rest] for row in batch]
    assert sorted(rows) == sorted(row.tobytes() for row in ds[:]["input_ids"])


def test_a_finished_pass_is_resumed_as_finished(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8, columns=["input_ids"])
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.get_state()
    assert next(batches, None) is None
    other = tl.DataLoader(ds, 8, columns=["input_ids"])
    other.set_state(state)
    assert ids(other) == []
    assert same(ids(other), ids(loader))


def mixed(
    sources: dict[str, tl.Dataset], schedule: tl.WeightScheduler, **options: Any
) -> tl.DataLoader:
    return tl.DataLoader(
        tl.Mixture(sources, schedule, block_size=4, **options), 4, columns=["input_ids"]
    )


def schedule(*points: tuple[int, float]) -> tl.WeightScheduler:
    return tl.WeightScheduler(
        [
            {"step": step, "weights": {"code": share, "web": 1 - share}}
            for step, share in points
        ]
    )


def test_a_schedule_may_be_extended_behind_the_state(sources: dict[str, tl.Dataset]):
    first = schedule((0, 0.5))
    loader = mixed(sources, first, rows=400)
    state = state_at(loader, 6)
    longer = first.extend(
        at=8, points=[{"step": 9, "weights": {"code": 1.0, "web": 0.0}}]
    )
    resumed = mixed(sources, longer, rows=400)
    resumed.set_state(state)
    whole = ids(mixed(sources, longer, rows=400))
    assert same(ids(resumed), whole[6:])
    assert same(ids(mixed(sources, first, rows=400))[:8], whole[:8])
    with pytest.raises(
        ConfigError,
        match="extended at step 3, which has already passed; expected step 6 or later",
    ):
        mixed(
            sources,
            first.extend(at=3, points=[{"step": 9, "weights": {"code": 1, "web": 0}}]),
        ).set_state(state)
    with pytest.raises(ConfigError, match=r"the weights are .* there and .* here"):
        mixed(sources, schedule((0, 0.25))).set_state(state)
    with pytest.raises(
        ConfigError, match=r"mixture\.stop is 'restart' there and 'all_exhausted' here"
    ):
        mixed(sources, first, stop="all_exhausted").set_state(state)


def test_a_dataset_takes_no_state_of_a_mixture(sources: dict[str, tl.Dataset]):
    state = state_at(mixed(sources, schedule((0, 0.5)), rows=100), 2)
    with pytest.raises(
        ConfigError, match="one of them reads a mixture, the other a single dataset"
    ):
        tl.DataLoader(sources["code"], 4).set_state(state)


@pytest.mark.parametrize("order", [2, 3])
def test_a_state_of_an_older_order_resumes_in_that_order(
    sources: dict[str, tl.Dataset], order: int
):
    def loader(**options: Any) -> tl.DataLoader:
        mixture = tl.Mixture(sources, {"code": 0.3, "web": 0.7}, rows=96, **options)
        return tl.DataLoader(mixture, 8, lanes=4, columns=["input_ids"], workers=0)

    whole = ids(loader(order=order))
    state = state_at(loader(order=order), 5)
    assert state["order"] == order and not same(whole, ids(loader()))
    for options in ({}, {"order": order}):
        resumed = loader(**options)
        resumed.set_state(state)
        assert resumed.get_state() == state
        assert same(ids(resumed), whole[5:])
    # A requested order is kept.
    with pytest.raises(ConfigError, match=f"order is {order} there and 4 here"):
        loader(order=4).set_state(state)
    for wrong in (True, float(order), "3", 5, None):
        with pytest.raises(ConfigError, match="order"):
            loader().set_state({**state, "order": wrong})


def grown(
    step: int, sources: dict[str, tl.Dataset], new: tl.Dataset, **options: Any
) -> tl.DataLoader:
    """Return a loader of the sources, and of a new one that begins at a step."""
    mixture = tl.Mixture(
        {**sources, "new": new}, {"code": 0.3, "web": 0.7, "new": 0}, rows=1000
    )
    loader = tl.DataLoader(mixture, 4, columns=["input_ids"], workers=0, **options)
    loader.set_weights({"code": 0.2, "web": 0.5, "new": 0.3}, at=step)
    return loader


def smaller(sources: dict[str, tl.Dataset], **options: Any) -> tl.DataLoader:
    """Return the loader of the same run without the new source."""
    mixture = tl.Mixture(sources, {"code": 0.3, "web": 0.7}, rows=1000)
    return tl.DataLoader(mixture, 4, columns=["input_ids"], workers=0, **options)


def drawn_rows(plan: BatchPlan, steps: range) -> tuple[Any, Any]:
    """Return the source of each row of some batches, and its index in the source."""
    rows = list(
        plan.rows([plan.batch(step) for step in steps], lambda size: np.arange(size))
    )
    return np.concatenate([batch.source for batch in rows]), np.concatenate(
        [batch.row for batch in rows]
    )


def test_a_source_may_be_added_to_a_run(sources: dict[str, tl.Dataset]):
    """The batches before its first step are those of the run without it, and it
    comes by its weight from there on.
    """
    old_batches = ids(smaller(sources))
    state = state_at(smaller(sources), 6)
    new = sources["code"]
    assert grown(9, sources, new).plan.lanes == 1 and state["lanes"] == 2
    resumed = grown(9, sources, new)
    resumed.set_state(state)
    assert resumed.plan.lanes == 2
    batches = ids(itertools.islice(resumed, 60))
    assert same(batches[:3], old_batches[6:9]) and not same(
        batches[3:6], old_batches[9:12]
    )
    source, _ = drawn_rows(resumed.plan, range(9, 109))
    assert abs(int((source == 2).sum()) - 0.3 * len(source)) <= 1

    # A state after the change resumes with the same arguments, names its order, and is
    # refused by the smaller run.
    later = state_at(resumed, 0)
    again = grown(9, sources, new)
    again.set_state(later)
    assert same(ids(itertools.islice(again, 5)), ids(itertools.islice(resumed, 5)))
    plan, position = restored(
        later, lambda name, split: tl.open(new.store.url, name, split=split)
    )
    assert (plan.lanes, position.step) == (2, later["step"])
    with pytest.raises(ConfigError, match=r"source new is .* there and missing here"):
        smaller(sources).set_state(later)


def test_an_added_source_leaves_the_others_in_their_order(
    sources: dict[str, tl.Dataset],
):
    """Rows of the old sources come in the same order before and after the change,
    over several epochs of them.
    """
    steps = range(200)
    old_source, old_row = drawn_rows(smaller(sources, lanes=1).plan, steps)
    source, row = drawn_rows(grown(20, sources, sources["code"], lanes=1).plan, steps)
    for number, name in enumerate(sources):
        rows = row[source == number]
        assert len(sources[name]) < len(rows) < np.count_nonzero(old_source == number)
        assert np.array_equal(rows, old_row[old_source == number][: len(rows)])


def test_a_source_that_cannot_be_added_is_refused_with_the_reason(
    sources: dict[str, tl.Dataset],
):
    state = state_at(smaller(sources), 6)
    new = sources["code"]
    with pytest.raises(
        ConfigError, match=r"extended at step 5, .*; expected step 6 or later"
    ):
        grown(5, sources, new).set_state(state)
    others: list[tuple[tl.Mixture, str]] = [
        (
            tl.Mixture(
                {**sources, "new": new},
                {"code": 0.25, "web": 0.5, "new": 0.25},
                rows=1000,
            ),
            r"the weights are .* there and .* here",
        ),
        (
            tl.Mixture(
                {"new": new, **sources}, {"new": 0, "code": 0.3, "web": 0.7}, rows=1000
            ),
            r"source new is missing there and .* here; new sources of a mixture come after those of the state",
        ),
        (
            tl.Mixture(
                {**sources, "new": new},
                {"code": 0.3, "web": 0.7, "new": 0},
                rows=1000,
                max_fraction={"new": Fraction(1, 17)},
            ),
            "lanes is 2 there and 1 here; 2 lanes are not possible here: source 'new' has 1 rows for 2 lanes",
        ),
    ]
    for mixture, message in others:
        with pytest.raises(ConfigError, match=message):
            tl.DataLoader(mixture, 4).set_state(state)

    weights = {"code": 0.3, "web": 0.7}
    ending = state_at(
        tl.DataLoader(tl.Mixture(sources, weights, stop="all_exhausted"), 4), 6
    )
    longer = tl.Mixture(
        {**sources, "new": new}, {**weights, "new": 0}, stop="all_exhausted"
    ).reweighted(9, {"code": 0.2, "web": 0.5, "new": 0.3})
    with pytest.raises(ConfigError, match="stop 'all_exhausted' takes no new sources"):
        tl.DataLoader(longer, 4).set_state(ending)

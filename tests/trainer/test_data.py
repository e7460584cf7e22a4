"""Section `data` of a training configuration: every option of the loader and of a
mixture, and that each one acts.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.loader import support
from tests.reading.support import lake_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader import LoaderOptions
from tokenlake.runtime.trainer import TrainingConfig, load_training_config, make_loader

COLUMNS = ("input_ids", "segment_ids", "positions", "targets")
"""Columns of a language model."""

LOADER: dict[str, tuple[str, dict[str, Any]]] = {
    "batch_size": ("plain", {"batch_size": {0: 4, 2: 8}}),
    "seed": ("plain", {"seed": 5}),
    "shuffle": ("plain", {"shuffle": False}),
    "epochs": ("plain", {"epochs": 3}),
    "drop_last": ("plain", {"drop_last": True}),
    "pad_last": ("plain", {"pad_last": True}),
    "columns": ("plain", {"columns": ["input_ids", "labels"]}),
    "padding": (
        "texts",
        {
            "padding": {
                "buckets": 3,
                "multiple": 8,
                "max_length": 64,
                "truncate": "right",
            }
        },
    ),
    "layout": ("plain", {"layout": {"context_parallel": 2, "split": "striped"}}),
    "balance": ("plain", {"balance": {"ranks": 4}}),
    "lengths": ("plain", {"lengths": {0: 8, 2: 32}}),
    "lanes": ("plain", {"lanes": 2}),
    "window": ("plain", {"window": 2}),
    "interleave": ("plain", {"interleave": 2, "lanes": 2}),
    "prefetch": ("plain", {"prefetch": 0}),
    "workers": ("plain", {"workers": 0}),
    "cache_bytes": ("plain", {"cache_bytes": 6000, "lanes": 2}),
}
"""Option of the loader -> dataset, and options with which it acts."""

SET_BY_MESH = {"host"}
"""Options of the loader that the mesh of a run sets."""

BUDGETS = {"target_budget": 1000, "experiment_budget": 500}
HALF = {"weights": {"code": 0.5, "web": 0.5}}
MIXTURE: dict[str, dict[str, Any]] = {
    "weights": {"weights": {"web": 75, "code": 25}},
    "stop": {**HALF, "stop": "all_exhausted"},
    "rows": {**HALF, "rows": 100},
    "block_size": {**HALF, "block_size": 4},
    "step_rows": {**HALF, "step_rows": 16},
    "weights_by": {**HALF, "weights_by": "tokens"},
    "order": {**HALF, "order": 2},
    "max_repetitions": {**HALF, "rows": 20, "max_repetitions": {"code": 2}},
    "max_fraction": {**HALF, "max_fraction": {"web": 0.5}},
    "epochs": {"epochs": {"code": 2, "web": 1}},
    "target_budget": {**HALF, **BUDGETS},
    "experiment_budget": {**HALF, **BUDGETS},
}
"""Argument of a mixture -> arguments with which it acts."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the packed dataset `plain` and the documents `texts`."""
    return lake_of(tmp_path_factory).url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of mixtures and their sources."""
    return support.mixtures(tmp_path_factory)


@pytest.fixture(scope="module")
def sources(store: str) -> dict[str, tl.Dataset]:
    return {"code": tl.open(store, "code-rows"), "web": tl.open(store, "web-rows")}


def config_of(folder: Path, data: dict[str, Any]) -> TrainingConfig:
    """Return the configuration of a YAML file with a section `data`, which is
    written as JSON.
    """
    path = folder / "train.yaml"
    path.write_text(json.dumps({"steps": 4, "data": data}))
    return load_training_config(path)


def assert_same(built: tl.DataLoader, expected: tl.DataLoader) -> None:
    """Raise an error unless two loaders have the same state, options and batches."""
    assert built.get_state() == expected.get_state()
    for field in dataclasses.fields(LoaderOptions):
        read = {
            "padding": "batch_padding",
            "layout": "batch_layout",
            "lengths": "curriculum",
            "balance": "ranks",
        }
        name = read.get(field.name, field.name)
        values = [getattr(loader.plan.options, name) for loader in (built, expected)]
        if field.name == "batch_size":
            values = [loader.plan.sizes for loader in (built, expected)]
        if field.name == "columns":
            values = [loader.columns for loader in (built, expected)]
        assert values[0] == values[1], field.name
    pairs = zip(itertools.islice(built, 4), itertools.islice(expected, 4), strict=True)
    for batch, expected_batch in pairs:
        assert batch.keys() == expected_batch.keys()
        for name, values in batch.items():
            assert np.array_equal(values, expected_batch[name]), name
    built.close()
    expected.close()


def test_the_tables_have_every_option() -> None:
    options = {field.name for field in dataclasses.fields(LoaderOptions)}
    assert set(LOADER) == options - SET_BY_MESH
    arguments = set(inspect.signature(tl.Mixture).parameters) - {"datasets"}
    assert set(MIXTURE) == arguments


@pytest.mark.parametrize("option", LOADER)
def test_every_option_of_the_loader_acts(
    option: str, lake: str, tmp_path: Path
) -> None:
    """The loader of the YAML is the one that is made by hand, and another one than
    without the option.
    """
    name, options = LOADER[option]
    config = config_of(
        tmp_path, {"dataset": f"{lake}/{name}", "batch_size": 8, **options}
    )
    assert config.data is not None
    default = TrainingConfig.model_validate({"data": {"dataset": "a/b"}}).data
    assert getattr(config.data, option) != getattr(default, option)
    by_hand: dict[str, Any] = {
        "batch_size": 8,
        "epochs": None,
        "columns": COLUMNS,
        **options,
    }
    assert_same(make_loader(config), tl.DataLoader(tl.open(lake, name), **by_hand))


@pytest.mark.parametrize("argument", MIXTURE)
def test_every_argument_of_a_mixture_acts(
    argument: str, store: str, sources: dict[str, tl.Dataset], tmp_path: Path
) -> None:
    arguments = MIXTURE[argument]
    datasets = {
        "code": f"{store}/code-rows",
        "web": {"dataset": f"{store}/web-rows", "split": "train"},
    }
    config = config_of(
        tmp_path,
        {"mixture": {"datasets": datasets, **arguments}, "batch_size": 4, "seed": 3},
    )
    by_hand = tl.Mixture(sources, **arguments)
    loader = make_loader(config)
    assert_same(loader, tl.DataLoader(by_hand, 4, seed=3, epochs=None, columns=COLUMNS))
    plain = tl.DataLoader(
        tl.Mixture(sources, {"code": 0.5, "web": 0.5}), 4, seed=3, epochs=None
    )
    if argument != "max_repetitions":  # it only checks
        assert loader.get_state() != plain.get_state()


@pytest.mark.parametrize("kind", ["step", "linear", "cosine"])
def test_weights_follow_a_schedule(
    kind: str, store: str, sources: dict[str, tl.Dataset], tmp_path: Path
) -> None:
    datasets = {name: f"{store}/{name}-rows" for name in sources}
    points = [
        {"step": 0, "weights": {"code": 1}},
        {"step": 8, "weights": {"code": 0.5, "web": 0.5}},
    ]
    schedule = {"weight_schedule": points, "weight_schedule_type": kind}
    config = config_of(
        tmp_path, {"mixture": {"datasets": datasets, **schedule}, "batch_size": 4}
    )
    by_hand = tl.WeightScheduler(
        [
            {"step": 0, "weights": {"code": 1.0, "web": 0.0}},
            {"step": 8, "weights": {"code": 0.5, "web": 0.5}},
        ],
        kind,
    )
    expected = tl.DataLoader(
        tl.Mixture(sources, by_hand), 4, epochs=None, columns=COLUMNS
    )
    assert_same(make_loader(config), expected)


def test_a_run_resumes_with_a_source_that_it_did_not_have(
    store: str, tmp_path: Path
) -> None:
    """Steps of changes are steps of the run, also where batches grow; `step_rows`
    states the default then.
    """
    datasets = {"code": f"{store}/code-rows", "web": f"{store}/web-rows"}
    mixture: dict[str, Any] = {
        "datasets": datasets,
        "weights": {"code": 0.3, "web": 0.7},
    }
    data: dict[str, Any] = {
        "mixture": mixture,
        "batch_size": {0: 4, 3: 8},
        "workers": 0,
    }
    old = make_loader(config_of(tmp_path, data))
    old_batches = [batch["input_ids"].copy() for batch in itertools.islice(old, 12)]
    first = make_loader(config_of(tmp_path, data))
    for _ in itertools.islice(first, 5):
        pass
    state = json.loads(json.dumps(first.get_state()))

    datasets["new"] = f"{store}/code-rows"
    mixture["step_rows"] = 4
    mixture["weight_changes"] = [
        {"step": 7, "weights": {"code": 0.2, "web": 0.4, "new": 0.4}}
    ]
    resumed = make_loader(config_of(tmp_path, data))
    resumed.set_state(state)
    batches = [batch["input_ids"].copy() for batch in itertools.islice(resumed, 7)]
    assert all(
        np.array_equal(*pair)
        for pair in zip(batches[:2], old_batches[5:7], strict=True)
    )
    assert not np.array_equal(batches[2], old_batches[7])
    steps = [resumed.plan.batch(step) for step in range(12)]
    sources = [
        batch.source for batch in resumed.plan.rows(steps, lambda size: np.arange(size))
    ]
    assert [bool((source == 2).any()) for source in sources] == [False] * 7 + [True] * 5

    mixture["weight_changes"][0]["step"] = 4
    with pytest.raises(
        ConfigError, match=r"extended at step \d+, .*; expected step \d+ or later"
    ):
        make_loader(config_of(tmp_path, data)).set_state(state)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{}", "got neither dataset nor mixture"),
        (
            "{dataset: a/b, bach_size: 8}",
            r"data.bach_size \(line 1\): unknown key; did you mean 'batch_size'\?",
        ),
        (
            "{dataset: a/b, host: [0, 2]}",
            "host: the mesh decides the rows of each host",
        ),
        ("{dataset: a/b, sharding: data}", "sharding: the mesh decides it: mesh:"),
        (
            "{dataset: a/b, window: al}",
            "data.window.*got 'al', must be a whole number from 1 on, or 'all'",
        ),
        (
            "{dataset: a/b, window: 2, interleave: 2}",
            "window and interleave: got 2 and 2, which are two orders",
        ),
        (
            "{dataset: a/b, batch_size: 6, lanes: 4}",
            "lanes: got 4, which does not divide every batch size",
        ),
        (
            "{dataset: a/b, batch_size: {1: 8}}",
            r"data.batch_size \(line 1\): .*must give the number of rows of step 0",
        ),
        (
            "{dataset: a/b, lengths: {0: x}}",
            "data.lengths.*must be a whole number of ids",
        ),
        ("{dataset: a/b, layout: flatt}", "data.layout.*'flatt', must be 'flat'"),
        ("{dataset: a/b, balance: {rank: 2}}", "data.balance.*mapping of ranks"),
        ("{dataset: a/b, prefetch: -1}", "data.prefetch.*got -1"),
        ("{dataset: a/b, cache_bytes: much}", "data.cache_bytes.*much"),
        (
            "{dataset: a/b, mixture: {datasets: {a: x/y}, weights: {a: 1}}}",
            "dataset does not act with mixture",
        ),
        (
            "{split: test, mixture: {datasets: {a: x/y}, weights: {a: 1}}}",
            "split does not act with mixture",
        ),
        (
            "{mixture: {datasets: {a: x/y}}}",
            "got none of weights, weight_schedule, epochs",
        ),
        (
            "{mixture: {datasets: {a: x/y}, weights: {a: 1}, epochs: {a: 1}}}",
            "got weights and epochs of",
        ),
        (
            "{mixture: {datasets: {web: x/y}, weights: {wbe: 1}}}",
            "weights: 'wbe' is not in datasets; did you mean",
        ),
        ("{mixture: {datasets: {a: x/y}, weights: {a: 0.4}}}", "must sum to 1"),
        (
            "{mixture: {datasets: {a: x/y}, weights: {a: 1}, weight_schedule_type: cosine}}",
            "does not act without",
        ),
        (
            "{mixture: {datasets: {a: x/y}, epochs: {a: 2}, weight_changes: [{step: 2, weights: {a: 1}}]}}",
            "weight_changes do not act with epochs",
        ),
        (
            "{mixture: {datasets: {a: x/y}, weights: {a: 1}, "
            "weight_changes: [{step: 5, weights: {a: 1}}, {step: 2, weights: {a: 1}}]}}",
            "weight_changes: step 2 comes after step 5",
        ),
        (
            "{mixture: {datasets: {a: x/y}, weights: {a: 1}, target_budget: 5}}",
            "experiment_budget: missing",
        ),
        (
            "{mixture: {datasets: {a: x/y}, weights: {a: 1}, stop_at: 5}}",
            "mixture.stop_at .*unknown key",
        ),
    ],
)
def test_contradictions_are_named_when_the_file_is_read(
    data: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"data: {data}")
    with pytest.raises(ConfigError, match=message):
        load_training_config(path)

"""Mixtures whose sources have caps, budgets or epochs of their own: planned, built,
verified, and read on the fly.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tokenlake as tl
from tests.etl.mix_plan_support import Lake, described
from tests.rowwise.mixed_store import SEQ_LENGTH, build_mixtures
from tests.store.support import copy_store
from tokenlake import Manifest, load_config, verify
from tokenlake.errors import ConfigError
from tokenlake.etl import BuildSession, WorkerPool, run_pending
from tokenlake.etl.reports import recipe
from tokenlake.runtime.store import open_store, seal

MIX: dict[str, Any] = {
    "lanes": 2,
    "batch_size": 4,
    "block_size": 10,
    "seed": 3,
    "unit_rows": 32,
}
EVEN = {"code": 0.5, "web": 0.5}


@pytest.fixture
def lake(tmp_path: Path, tokenizer_dir: Path) -> Lake:
    """Two sources of 35 rows of 20 ids."""
    found = Lake(open_store(str(tmp_path / "store")), described(tokenizer_dir))
    for name in ("code", "web"):
        found.put(name)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_mixtures(tmp_path_factory.mktemp("caps"), tokenizer_dir)


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    """A copy that a test writes to."""
    copy_store(built, tmp_path / "store")
    return tmp_path / "store"


def config_of(store: Path, level: str = "rows", **mix: Any) -> dict[str, Any]:
    """A mixture of stored packed rows, or of documents that are packed."""
    names = {
        name: f"{name}-rows" if level == "rows" else f"pile.{name}.tokens"
        for name in EVEN
    }
    pack = (
        {} if level == "rows" else {"pack": {"enabled": True, "seq_length": SEQ_LENGTH}}
    )
    return {
        "name": "capped",
        "datasets": [
            {"name": name, "dataset": dataset} for name, dataset in names.items()
        ],
        "mix": {**MIX, **mix},
        "save": {"output_dir": str(store)},
        **pack,
    }


def build(config: dict[str, Any], pool: WorkerPool) -> Manifest:
    opened = BuildSession.open(config)
    run_pending(opened, pool)
    return opened.commit()


def test_epochs_of_each_source_decide_weights_and_the_end(lake: Lake):
    plan = lake.plan(["code", "web"], mix={"epochs": {"code": 2, "web": 0.6}, **MIX})
    assert plan.forecast is not None and plan.spec is not None
    assert plan.forecast.rows == 70 + 21
    drawn = {name: one.drawn_rows for name, one in plan.forecast.sources.items()}
    assert abs(drawn["code"] - 70) <= 2 and sum(drawn.values()) == 91
    shortened = lake.plan(
        ["code", "web"],
        mix={"epochs": {"code": 2, "web": 0.6}, "max_fraction": 0.4, **MIX},
    )
    assert shortened.forecast is not None
    assert shortened.forecast.rows == 28 + 8
    assert any(
        "code: shortened to 14 of its 35 rows (40.00%)" in note
        for note in shortened.notes
    )


def test_repetitions_are_checked_with_what_is_missing(lake: Lake):
    plan = lake.plan(
        ["code", "web"],
        mix={"weights": EVEN, "total_rows": 140, "max_repetitions": 2, **MIX},
    )
    with pytest.raises(
        ConfigError,
        match=r"code: asked for 2\.00 k tokens; 2 .* of 700 tokens are 1\.40 k, 600 miss",
    ):
        lake.plan(
            ["code", "web"],
            mix={
                "weights": EVEN,
                "total_rows": 200,
                "max_repetitions": {"code": 2},
                **MIX,
            },
        )
    # A cap that holds moves nothing.
    assert (
        plan.fingerprint
        == lake.plan(
            ["code", "web"], mix={"weights": EVEN, "total_rows": 140, **MIX}
        ).fingerprint
    )
    less = lake.plan(
        ["code", "web"],
        mix={"weights": EVEN, "total_rows": 140, "max_fraction": 0.5, **MIX},
    )
    assert less.fingerprint != plan.fingerprint
    with pytest.raises(ConfigError, match=r"code: asked for .*web: asked for"):
        lake.plan(
            ["code", "web"],
            mix={
                "weights": EVEN,
                "total_rows": 140,
                "max_repetitions": 2,
                "max_fraction": 0.5,
                **MIX,
            },
        )


@pytest.mark.parametrize("level", ["rows", "documents"])
def test_a_shortened_mixture_is_built_of_the_same_rows_and_closes_its_account(
    store: Path, pool: WorkerPool, level: str
):
    budgets = {"target_budget": 2_000_000, "experiment_budget": 1_000_000}
    config = config_of(
        store, level, weights=EVEN, total_rows=80, max_fraction={"web": 0.5}, **budgets
    )
    manifest = build(config, pool)
    assert verify(open_store(str(store)), "capped", 1, deep=True).problems == ()
    assert manifest.mixture is not None
    kept = manifest.mixture.order.kept
    rows = {name: one.rows for name, one in manifest.mixture.sources.items()}
    assert kept == {"code": rows["code"] // 2, "web": rows["web"] // 4}
    for name, one in manifest.mixture.sources.items():
        assert one.unread_rows >= rows[name] - kept[name] and one.full_epochs == 0
    # The recipe of a report makes the same version again.
    again = yaml.safe_load(recipe(manifest, manifest.mixture)) | {
        "save": config["save"]
    }
    again["mix"]["unit_rows"] = MIX["unit_rows"]
    assert BuildSession.open(load_config(again)).version == 1
    if level == "rows":
        _check_on_the_fly(store, config)


def _check_on_the_fly(store: Path, config: dict[str, Any]) -> None:
    sources = {name: tl.open(str(store), f"{name}-rows") for name in EVEN}
    mix = config["mix"]
    caps = {
        name: mix[name]
        for name in ("max_fraction", "target_budget", "experiment_budget")
    }
    mixture = tl.Mixture(sources, EVEN, rows=80, block_size=10, **caps)
    loader = tl.DataLoader(mixture, 4, seed=3, lanes=2, columns=["input_ids"], window=1)
    written = tl.open(str(store), "capped")
    read = np.concatenate([batch["input_ids"].copy() for batch in loader])
    assert (read == written[:]["input_ids"]).all()
    assert len(Counter(row.tobytes() for row in read)) <= sum(
        len(each) // 2 for each in sources.values()
    )


def test_another_share_than_the_rows_are_of_is_found(store: Path, pool: WorkerPool):
    build(config_of(store, weights=EVEN, total_rows=80, max_fraction=0.5), pool)
    path = store / "capped/v1/manifest.json"
    told = json.loads(path.read_bytes())
    for change, says in (
        ({"code": 9}, "order and splits = those of config.mix"),
        ({"code": 99}, "fewer rows of a source"),
    ):
        forged = copy.deepcopy(told)
        forged["mixture"]["order"]["kept"] |= change
        path.chmod(0o644)
        path.write_bytes(seal(forged))
        assert says in str(verify(open_store(str(store)), "capped", 1).problems)


@pytest.mark.parametrize(
    ("mix", "says"),
    [
        (
            {"epochs": {"code": 1, "web": 1}, "weights": EVEN},
            "epochs of each dataset and weights",
        ),
        (
            {"epochs": {"code": 1, "web": 1}, "total_rows": 9},
            "got total_rows and epochs, must be at most one",
        ),
        (
            {"epochs": {"code": 1}},
            "epochs: has no entry for web; expected a number for each source",
        ),
        (
            {"epochs": 1, "max_fraction": {"cod": 0.5}},
            "mix.max_fraction references unknown dataset: cod",
        ),
        (
            {"epochs": 1, "max_fraction": 0.0},
            "max_fraction: got 0.0, must be a number above 0",
        ),
        (
            {"epochs": 1, "target_budget": 9},
            "got one of target_budget and experiment_budget, must be both",
        ),
        (
            {"epochs": 1, "target_budget": 9, "experiment_budget": 10},
            "experiment_budget 10, must be at most",
        ),
        (
            {"epochs": 1, "max_fraction": 0.01},
            "code: a share of 0.01 of its 20 rows is none",
        ),
    ],
)
def test_caps_that_do_not_fit_are_refused_before_anything_is_written(
    built: Path, mix: dict[str, Any], says: str
):
    with pytest.raises(ConfigError) as caught:
        BuildSession.open(config_of(built, **mix))
    assert says in str(caught.value)
    assert not (built / "capped").exists()

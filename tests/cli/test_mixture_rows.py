"""The packed rows that ``tokenlake plan`` expects of a mixture are those of its run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cli.small_build import write_lines
from tokenlake import Catalog
from tokenlake.cli.app import main
from tokenlake.runtime.store import open_store

Output = pytest.CaptureFixture[str]
WIDTH = 64
MIXED_ROWS = "tokenlake.etl.plan.mixed_rows"
BY_TOKENS = {
    "weights": {"short": 0.5, "long": 0.5},
    "weights_by": "tokens",
    "total_tokens": 30_000,
    "stop_strategy": "restart",
    "lanes": 1,
}
EPOCHS = {
    "weights": {"short": 0.7, "long": 0.3},
    "stop_strategy": "all_exhausted",
    "unit_rows": 256,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """A folder with the tokens of short and of long texts in a store."""
    folder = tmp_path_factory.mktemp("mixture")
    generator = random.Random(0)
    for name, longest in (("short", 20), ("long", 90)):
        texts: list[dict[str, str]] = []
        for number in range(400):
            words = ["water"] * generator.randint(1, longest)
            texts.append({"text": f"{number} {' '.join(words)}"})
        write_lines(folder / f"{name}.jsonl", texts)
    config = _write_mixture(folder, tokenizer_dir, EPOCHS, {"strategy": "greedy"})
    assert main(["run", str(config), "--no-prefect", "--workers=1"]) == 0
    return folder


def _write_mixture(
    folder: Path, tokenizer: Path, mix: dict[str, Any], pack: dict[str, Any]
) -> Path:
    """Write the configuration of a mixture of the two sources."""
    datasets: list[dict[str, str]] = []
    for name in ("short", "long"):
        datasets.append({"name": name, "data_files": str(folder / f"{name}.jsonl")})
    config = {
        "name": "mixture",
        "datasets": datasets,
        "default_tokenizer": str(tokenizer),
        "mix": mix,
        "pack": {"enabled": True, "seq_length": WIDTH, **pack},
        "save": {"output_dir": str(folder / "store")},
    }
    path = folder / "mixture.json"
    path.write_text(json.dumps(config))
    return path


def _planned(config: Path, capsys: Output) -> dict[str, Any]:
    """Return the estimate of a plan."""
    capsys.readouterr()
    assert main(["plan", str(config), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["mixture"]["estimate"]


def _is_near(expected: int, actual: int) -> bool:
    """Return whether an estimate differs from the number by at most 3%."""
    return abs(expected - actual) <= 0.03 * actual


@pytest.mark.parametrize("mix", [BY_TOKENS, EPOCHS], ids=["tokens", "epochs"])
@pytest.mark.parametrize(
    "pack",
    [
        {"strategy": "greedy"},
        {"strategy": "greedy", "max_segments": 2},
        {"strategy": "best_fit"},
        {"strategy": "first_fit", "window_tokens": 1024},
        {"strategy": "pool"},
    ],
    ids=lambda pack: " ".join(str(value) for value in pack.values()),
)
def test_a_plan_expects_the_rows_of_the_run(
    mix: dict[str, Any],
    pack: dict[str, Any],
    folder: Path,
    tokenizer_dir: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = _write_mixture(folder, tokenizer_dir, mix, pack)
    exact = _planned(config, capsys)
    # A longer mixture is sampled.
    monkeypatch.setattr(f"{MIXED_ROWS}._ORDERED_DOCUMENTS", 0)
    sampled = _planned(config, capsys)
    assert main(["run", str(config), "--no-prefect", "--workers=1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    totals = record["totals"]
    assert exact["tokens"] == totals["tokens"]
    assert _is_near(exact["sequences"], totals["rows"])
    assert _is_near(sampled["sequences"], totals["rows"])

    # The drawn tokens are those of the manifest.
    catalog = Catalog(open_store(str(folder / "store")))
    manifest = catalog.manifest("mixture", record["version"])
    assert manifest.mixture is not None
    for name, source in manifest.mixture.sources.items():
        assert exact["sources"][name]["drawn_tokens"] == source.drawn_tokens


def test_sources_are_sampled_where_they_have_many_row_groups(
    folder: Path,
    tokenizer_dir: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = _write_mixture(folder, tokenizer_dir, EPOCHS, {"strategy": "best_fit"})
    exact = _planned(config, capsys)
    monkeypatch.setattr(f"{MIXED_ROWS}._LOCAL_GROUPS", 1)
    monkeypatch.setattr(f"{MIXED_ROWS}._ORDERED_DOCUMENTS", 0)
    sampled = _planned(config, capsys)
    assert _is_near(sampled["sequences"], exact["sequences"])

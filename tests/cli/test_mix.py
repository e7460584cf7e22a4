"""The command line on mixtures: plan, run, show, peek, sql, verify."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.rowwise.mixed_store import SEQ_LENGTH, build_mixtures, settings
from tests.store.support import copy_store
from tokenlake import Catalog, Manifest
from tokenlake import sql as query
from tokenlake.cli.app import main
from tokenlake.runtime.store import open_store

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_mixtures(tmp_path_factory.mktemp("mixtures"), tokenizer_dir)


@pytest.fixture(autouse=True)
def _this_store(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(store))
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def config(tokenizer_dir: Path, tmp_path: Path) -> Path:
    """The configuration of ``pile``, with a store of its own."""
    path = tmp_path / "pile.yaml"
    path.write_text(yaml.safe_dump(settings(tmp_path, tokenizer_dir)))
    return path


def _json(capsys: Output, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _manifest(store: Path, dataset: str) -> Manifest:
    return Catalog(open_store(store)).manifest(dataset, 1)


# -- plan and run


def test_before_tokens_are_there_the_plan_says_what_comes_first(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    assert main(["plan", str(config)]) == 0
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    assert ["code", "~2.00", "~30", "~60"] in [row[:4] for row in rows]
    assert ["code", "pile.code.tokens", "to", "be", "built"] in [
        row[:5] for row in rows
    ]
    assert "code 50.00%, web 50.00% of rows" in captured.out
    assert "after as many rows as all sources have;" in captured.out
    assert "once the tokens of code, web exist" in captured.err
    planned = _json(capsys, "plan", str(config))
    assert [step["name"] for step in planned["steps"]] == [
        "pile.code.tokens",
        "pile.web.tokens",
    ]
    assert [step["version"] for step in planned["steps"]] == [None, None]
    assert planned["mixture"] is None
    guess = {each["source"]: each for each in planned["guess"]}
    assert {name: each["rows"] for name, each in guess.items()} == {
        "code": 30,
        "web": 90,
    }
    # 120 rows, half of them of each.
    assert {
        name: (each["drawn_rows"], each["epochs"]) for name, each in guess.items()
    } == {
        "code": (60, 2.0),
        "web": (60, pytest.approx(2 / 3)),
    }
    assert not (tmp_path / "store").exists()


def test_the_plan_of_a_mixture_compares_all_that_it_writes_with_the_disk(
    capsys: Output, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plan", str(config)]) == 0
    captured = capsys.readouterr()
    [output] = [line for line in captured.out.splitlines() if line.startswith("output")]
    assert re.search(r"~[\d.]+ KiB of tokens, ~[\d.]+ KiB of the mixture", output)
    assert "free disk" in captured.out
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    assert main(["plan", str(config)]) == 0
    errors = capsys.readouterr().err
    assert errors.count("is on a disk with 10 B free") == 1, (
        "one note for all builds of the mixture"
    )


def test_before_tokens_are_there_the_plan_says_which_splits_are_not_mixed(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    splits = "--set=source.splits={train: 0.75, validation: 0.25}"
    assert main(["plan", str(config), splits]) == 0
    note = "note: code: of pile.code.tokens only train is mixed, not validation (25.00% of its documents)"
    captured = capsys.readouterr()
    assert note in captured.err
    assert (
        f"tl.open('{tmp_path}/store/pile.code.tokens', split='validation') reads it"
        in captured.err
    )
    assert main(["run", str(config), splits, "--no-prefect", "--workers=1"]) == 0
    out = capsys.readouterr().out
    assert "code: of pile.code.tokens@v1 only train is mixed, not validation (" in out
    # What has no split to mix is said before tokens are made.
    for command in ("plan", "run"):
        assert main([command, str(config), "--set=source.splits={a: 0.5, b: 0.5}"]) == 2
        told = capsys.readouterr().err
        assert (
            "source.splits: names a, b, but a mixture takes the split 'train' of each source"
            in told
        )


def test_before_tokens_are_there_the_plan_says_about_what_is_missing(
    capsys: Output, config: Path
) -> None:
    assert main(["plan", str(config), "--set=mix.max_repetitions={code: 1.5}"]) == 0
    said = capsys.readouterr().err
    assert (
        "note (estimate): code: asked for" in said
        and "1.5 repetitions of" in said
        and "missing" in said
    )
    epochs = "--set=mix.epochs={code: 2, web: 1}"
    assert main(["plan", str(config), epochs, "--set=mix.weights=null"]) == 0
    out = capsys.readouterr().out
    assert (
        "determined by the epochs of each source" in out
        and "after 2 epochs of code, 1 epoch of web" in out
    )


def test_a_plan_is_not_refused_by_a_guess(capsys: Output, config: Path) -> None:
    # More tokens than all sources have together; only what is counted can say so.
    ends = [
        "mix.epochs=null",
        "mix.stop_strategy=all_exhausted",
        "mix.total_tokens=100000",
    ]
    planned = _json(capsys, "plan", str(config), *(f"--set={end}" for end in ends))
    assert planned["guess"] == []


def test_a_run_says_at_which_step_it_is_and_then_what_the_mixture_came_to(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    assert main(["run", str(config), "--no-prefect", "--workers", "1"]) == 0
    captured = capsys.readouterr()
    steps = [line for line in captured.err.splitlines() if line.startswith("step ")]
    assert steps == [
        "step 1 of 3: tokens of code",
        "step 2 of 3: tokens of web",
        "step 3 of 3: the mixture",
    ]
    assert captured.out.startswith("pile v1 committed\n")
    for expected in (
        "Steps\n",
        "Mixture\n",
        "asked of rows",
        "drawn of code",
        "tokenlake peek pile",
    ):
        assert expected in captured.out
    done = _json(capsys, "run", str(config), "--no-prefect")
    assert (done["dataset"], done["status"]) == ("pile", "exists")
    assert [
        (step["what"], step["dataset"], step["built"]) for step in done["steps"]
    ] == [
        ("tokens of code", "pile.code.tokens", 0),
        ("tokens of web", "pile.web.tokens", 0),
        ("the mixture", "pile", 0),
    ]
    assert [source["source"] for source in done["mixture"]] == ["code", "web"]


def test_once_tokens_are_there_the_plan_knows_what_the_mixture_draws(
    capsys: Output, store: Path
) -> None:
    path = store.parent / "pile.yaml"
    chosen = {"save": {"output_dir": str(store)}}
    tokenizer = _manifest(store, "pile").tokenizer["code"]["name"]
    path.write_text(yaml.safe_dump(settings(store.parent, Path(tokenizer)) | chosen))
    planned = _json(capsys, "plan", str(path))
    assert [step["version"] for step in planned["steps"]] == [1, 1]
    manifest = _manifest(store, "pile")
    mixture = planned["mixture"]
    assert (mixture["version"], mixture["fingerprint"]) == (1, manifest.fingerprint)
    assert manifest.mixture is not None
    for name, source in manifest.mixture.sources.items():
        said = mixture["estimate"]["sources"][name]
        assert said["drawn_rows"] == source.drawn_rows
        assert said["unread_rows"] == source.unread_rows
        assert said["drawn_tokens"] == pytest.approx(source.drawn_tokens, rel=0.3)
    assert main(["plan", str(path)]) == 0
    out = capsys.readouterr().out
    assert "v1 exists, nothing to do" in out
    assert "code    pile.code.tokens@v1" in out


def test_the_plan_of_stored_datasets_alone(
    capsys: Output, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(
        "datasets: [{dataset: pile.web.tokens}]\npack: {enabled: true, seq_length: 32}\n"
    )
    assert main(["plan", str(path)]) == 0
    out = capsys.readouterr().out
    assert "pile.web.tokens@v1" in out
    assert "of 32 tokens, greedy" in out


def test_what_is_wrong_with_the_mixture_is_said_before_anything_is_read(
    capsys: Output, config: Path
) -> None:
    wrong = [
        str(config),
        "--set",
        "mix.epochs=null",
        "--set",
        "datasets.code.data_files=/none",
    ]
    for command in (["plan"], ["run", "--no-prefect"]):
        assert main([*command, *wrong]) == 2
        assert "restart never ends" in capsys.readouterr().err


def test_a_stored_dataset_that_is_not_there_is_told_before_tokens_are_made(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    whole = yaml.safe_load(config.read_text())
    whole["datasets"][1] = {"name": "web", "dataset": "webb.tokens@v2"}
    config.write_text(yaml.safe_dump(whole))
    for command in (["plan"], ["run", "--no-prefect"]):
        assert main([*command, str(config)]) == 2
        assert (
            "datasets.web.dataset: no dataset 'webb.tokens'" in capsys.readouterr().err
        )
    assert not (tmp_path / "store").exists()


# -- what is stored


def test_show_tells_the_mixture(capsys: Output, store: Path) -> None:
    assert main(["show", "pile"]) == 0
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines()]
    assert ["code", "pile.code.tokens@v1", "50.00%"] in [row[:3] for row in table]
    assert "documents and then packed" in out
    assert (
        "after 120 documents; a source that ends starts again, in another order" in out
    )
    assert (
        "2 lanes, batches of 4 at whose ends the weights hold, blocks of 10, seed 0"
        in out
    )
    assert "parents      pile.code.tokens@v1, pile.web.tokens@v1" in out
    assert " of text\n" not in out
    assert _json(capsys, "show", "pile")["mixture"]["order"]["rows"] == 120


def test_show_tells_a_schedule_and_rows_that_were_passed_on(capsys: Output) -> None:
    assert main(["show", "rows"]) == 0
    out = capsys.readouterr().out
    assert (
        "of sequences: code 90.00%, web 10.00% at step 0; code 0.00%, web 100.00% at step 4;"
        in out
    )
    assert "moving in straight lines in between, a step being 4 rows" in out
    assert "documents  " not in out.split("Splits")[0]


def test_peek_says_which_source_each_piece_is_of(capsys: Output) -> None:
    rows = _json(capsys, "peek", "pile", "-n", "50")
    segments = [segment for row in rows for segment in row["segments"]]
    assert {segment["mixed_as"] for segment in segments} == {"code", "web"}
    for segment in segments:
        if segment["start"] == 0 and len(segment["text"]) > 4:
            assert segment["text"].startswith(segment["mixed_as"])
    assert any(
        len({segment["source"] for segment in row["segments"]}) == 2 for row in rows
    )
    assert all(len(segment["ids"]) <= SEQ_LENGTH for segment in segments)


def test_peek_names_a_source_as_the_mixture_does(capsys: Output) -> None:
    [row] = _json(capsys, "peek", "loose", "-n", "1")
    [segment] = row["segments"]
    assert {"py": "code", "docs": "web"}[segment["mixed_as"]] == segment["source"]
    assert main(["peek", "loose", "-n", "9"]) == 0
    out = capsys.readouterr().out
    assert "── docs (web)  web.jsonl:" in out
    assert main(["peek", "rows", "-n", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"train row 0  {SEQ_LENGTH} tokens in ")


@pytest.mark.parametrize("dataset", ["pile", "loose", "rows"])
def test_the_recipe_on_a_card_makes_the_same_rows(
    capsys: Output, store: Path, tmp_path: Path, dataset: str
) -> None:
    card = (store / dataset / "v1" / "README.md").read_text()
    path = tmp_path / "recipe.yaml"
    path.write_text(card.split("```yaml\n")[1].split("```")[0])
    copy = copy_store(store, tmp_path / "copy")
    arguments = [
        "run",
        str(path),
        "--no-prefect",
        "--workers=1",
        "--set=name=again",
        f"--store={copy}",
    ]
    assert _json(capsys, *arguments)["status"] == "built"
    manifest, made = _manifest(store, dataset), _manifest(copy, "again")
    assert [shard.sha256 for shard in made.files] == [
        shard.sha256 for shard in manifest.files
    ]
    assert made.totals == manifest.totals


def test_sql_has_a_row_for_each_source_of_a_mixture(store: Path) -> None:
    found = query(store, "from mixture").to_pylist()
    assert {row["dataset"]: row["level"] for row in found} == {
        "pile": "documents",
        "loose": "documents",
        "rows": "sequences",
    }
    for row in found:
        mixture = _manifest(store, row["dataset"]).mixture
        assert mixture is not None
        source = mixture.sources[row["source"]]
        assert (row["parent"], row["parent_version"]) == (
            source.dataset,
            source.version,
        )
        same = (
            "split",
            "rows",
            "tokens",
            "drawn_rows",
            "drawn_tokens",
            "full_epochs",
            "unread_rows",
        )
        assert {key: row[key] for key in same} == {
            key: getattr(source, key) for key in same
        }
        assert (
            row["partial_rows"] == row["drawn_rows"] - row["full_epochs"] * row["rows"]
        )
        assert (row["asked"], row["asked_tokens"]) == (
            source.asked,
            source.asked_tokens,
        )
    by_tokens = [row["asked_tokens"] for row in found if row["dataset"] == "loose"]
    assert by_tokens == pytest.approx([0.25, 0.75])
    for share in ("asked", "achieved_rows", "achieved_tokens"):
        assert sum(row[share] for row in found) == pytest.approx(3)  # of three mixtures


@pytest.mark.parametrize("dataset", ["pile", "loose", "rows"])
def test_accounts_and_documents_add_up_to_the_version_s(
    capsys: Output, store: Path, dataset: str
) -> None:
    whole = _manifest(store, dataset).account
    counts = (
        "rows_read",
        "tokens",
        "content_packed",
        "eos",
        "pad",
        "sequences",
        "slots",
    )
    sums = ", ".join(f"sum({name}) as {name}" for name in counts)
    [row] = query(
        store, f"select {sums} from accounts where dataset = '{dataset}'"
    ).to_pylist()
    assert row == {name: getattr(whole, name) for name in counts}
    sources = query(
        store, f"select distinct source from accounts where dataset = '{dataset}'"
    )
    mixture = _manifest(store, dataset).mixture
    assert mixture is not None
    assert set(sources["source"].to_pylist()) == {*mixture.sources, "*"}
    sums = f'select sum(length) as ids, count(distinct path) as files from "{dataset}/documents"'
    assert query(store, sums).to_pylist() == [
        {"ids": _manifest(store, dataset).totals.tokens, "files": 2}
    ]
    assert main(["verify", dataset, "--deep"]) == 0
    assert f"{dataset} v1: intact" in capsys.readouterr().out

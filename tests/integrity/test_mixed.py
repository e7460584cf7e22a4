"""Repair of what was made of stored versions: a mixture, and rows packed again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.integrity.support import build, damage, files_of, tree
from tests.rowwise.mixed_store import settings
from tokenlake import load_config, repair, verify
from tokenlake.config import first_steps, last_step
from tokenlake.etl import WorkerPool
from tokenlake.runtime.store import open_store


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool
) -> Path:
    """``pile`` of two sources of text, ``rows`` of one of them packed again, and one
    more version of that one.
    """
    root = tmp_path_factory.mktemp("mixtures")
    chosen = settings(root, tokenizer_dir)
    text = load_config(chosen)
    for step in first_steps(text).values():
        build(step, pool)
    build(
        last_step(text, {name: f"pile.{name}.tokens@v1" for name in ("code", "web")}),
        pool,
    )
    source = {"name": "code", "dataset": "pile.code.tokens"}
    build(
        {
            "name": "rows",
            "datasets": [source],
            "pack": chosen["pack"],
            "save": chosen["save"],
        },
        pool,
    )
    newer = [{"name": "code", "data_files": str(root / "web.jsonl")}]
    tokens = {"name": "pile.code.tokens", "datasets": newer, "save": chosen["save"]}
    build({**tokens, "default_tokenizer": chosen["default_tokenizer"]}, pool)
    return root


@pytest.mark.parametrize("name", ["pile", "rows"])
def test_all_that_can_be_damaged_comes_back(built: Path, lake: Path, name: str) -> None:
    for index, path in enumerate(files_of(lake / name / "v1")):
        if path.name != "manifest.json":
            damage(path, ("flip", "truncate")[index % 2], Random(index))
    report = repair(lake, f"{name}@v1")
    assert report.ok
    assert tree(lake) == tree(built / "store")
    assert verify(open_store(lake), name, 1, deep=True).ok
    assert {file.how for file in report.files} == {"rebuilt", "rendered", "copied"}


@pytest.mark.parametrize("name", ["pile", "rows"])
def test_its_manifest_comes_back(built: Path, lake: Path, name: str) -> None:
    damage(lake / name / "v1" / "manifest.json", "flip", Random(1))
    assert repair(lake, name).ok
    assert tree(lake) == tree(built / "store")


def test_the_configuration_of_the_whole_does_for_each_step(
    built: Path, lake: Path, tokenizer_dir: Path
) -> None:
    config = settings(built, tokenizer_dir)
    for name in ("pile", "pile.web.tokens"):
        (shard, *_) = (lake / name / "v1" / "data").iterdir()
        damage(shard, "flip", Random(1))
        for asked in (lake / name / "v1" / "runs").glob("*-asked.json"):
            asked.unlink()
        lost = repair(lake, f"{name}@v1")
        assert lost.repaired == 0 and "--config FILE" in lost.files[0].note
        assert repair(lake, f"{name}@v1", config=config).ok
    assert tree(lake) == tree(built / "store")


def test_a_parent_that_is_damaged_is_named(lake: Path) -> None:
    for name in ("pile.code.tokens", "pile.web.tokens"):
        for shard in (lake / name / "v1" / "data").iterdir():
            damage(shard, "empty", Random(1))
    (shard, *_) = (lake / "pile" / "v1" / "data").iterdir()
    damage(shard, "flip", Random(1))
    before = tree(lake)
    report = repair(lake, "pile@v1")
    assert (
        report.repaired == 0
        and "tokens@v1: data/train-00000-00.parquet has 0 bytes" in report.files[0].note
    )
    assert tree(lake) == before

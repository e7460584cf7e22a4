"""Repair: every kind of file of a small real version is damaged, and comes back byte
for byte.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.integrity.support import KINDS, build, damage, files_of, tree
from tests.store.support import linked_copy, settings, write_inputs
from tokenlake import Catalog, RepairReport, repair, verify
from tokenlake.etl import WorkerPool
from tokenlake.runtime.store import open_store

SHARD = "data/train-00001-00.parquet"  # of the unit that v1 and v2 share
OWN = "data/train-00000-00.parquet"  # of the unit that v2 built anew


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool
) -> Path:
    """``small`` v1 and v2, which share a unit; v1 lacks a file that has been added
    to its inputs.
    """
    root = tmp_path_factory.mktemp("repair")
    write_inputs(root)
    build(settings(root, tokenizer_dir), pool)
    (root / "notes" / "sea.txt").write_text("The tide went out.\nThe tide came in.\n")
    build(settings(root, tokenizer_dir), pool)
    return root


def all_well(store: Path, reference: str) -> bool:
    opened = open_store(store)
    return verify(opened, *Catalog(opened).resolve(reference), deep=True).ok


def how(report: RepairReport) -> dict[str, str]:
    return {f"{file.version} {file.path}": file.how for file in report.files}


def hurt(lake: Path, version: int, *paths: str, kind: str = "flip") -> None:
    for path in paths:
        damage(lake / "small" / f"v{version}" / path, kind, Random(5))


# What comes back


def test_all_kinds_of_files_come_back(built: Path, lake: Path) -> None:
    before = tree(built / "store")
    paths = [
        path for path in files_of(lake / "small" / "v1") if path.name != "manifest.json"
    ]
    for index, path in enumerate(paths):
        damage(path, KINDS[index % 4], Random(index))
    report = repair(lake, "small@v1")
    assert report.ok and report.problems == () and report.new_version is None
    assert {file.path for file in report.files if file.version == "small@v1"} == {
        str(path.relative_to(lake / "small" / "v1")) for path in paths
    }
    assert tree(lake) == before
    assert all_well(lake, "small@v1") and all_well(lake, "small@v2")
    assert repair(lake, "small@v1").files == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_comes_back_whatever_happened_to_it(
    built: Path, lake: Path, kind: str
) -> None:
    hurt(lake, 1, OWN, kind=kind)
    report = repair(lake, "small@v1")
    assert how(report) == {f"small@v1 {OWN}": "rebuilt"}
    assert tree(lake) == tree(built / "store")


def test_a_whole_unit_that_is_gone_comes_back(built: Path, lake: Path) -> None:
    gone = (
        "data/train-00001-00.parquet",
        "data/validation-00001-00.parquet",
        "ledger/00001.json",
    )
    for version in (1, 2):
        hurt(lake, version, *gone, "quarantine/00001.parquet", kind="remove")
    assert repair(lake, "small@v1").ok
    assert repair(lake, "small@v2").ok
    assert tree(lake) == tree(built / "store")


def test_a_committed_shard_is_replaced_and_never_written_to(lake: Path) -> None:
    hurt(lake, 1, OWN)
    path = lake / "small" / "v1" / OWN
    bad = path.read_bytes()
    with path.open("rb") as reader:
        assert repair(lake, "small@v1").ok
        assert reader.read() == bad
    assert path.read_bytes() != bad
    assert path.stat().st_mode & 0o222 == 0


# Files that versions share


def test_damage_that_two_versions_share_is_repaired_in_both(
    built: Path, lake: Path
) -> None:
    hurt(lake, 1, SHARD)
    report = repair(lake, "small@v1")
    assert how(report) == {
        f"small@v1 {SHARD}": "rebuilt",
        f"small@v2 {SHARD}": "copied",
    }
    assert tree(lake) == tree(built / "store")


def test_what_another_version_holds_well_is_copied_from_it(
    built: Path, lake: Path
) -> None:
    path = lake / "small" / "v1" / SHARD
    shutil.copy(path, path.with_suffix(".own"))
    path.with_suffix(".own").replace(path)  # an inode of its own
    hurt(lake, 1, SHARD)
    nowhere = {
        "name": "small",
        "datasets": [{"name": "notes", "data_files": str(lake / "none")}],
    }
    report = repair(lake, "small@v1", config=nowhere)  # nothing is planned
    assert how(report) == {f"small@v1 {SHARD}": "copied"}
    assert report.intact == (f"small@v2: {SHARD}",)
    assert tree(lake) == tree(built / "store")


# Inputs that changed or moved


def elsewhere(built: Path, tmp_path: Path) -> Path:
    """A copy of inputs and store; what its runs were asked still names the old
    inputs.
    """
    for name in ("notes", "pages"):
        shutil.copytree(built / name, tmp_path / name)
    linked_copy(built / "store", tmp_path / "store")
    return tmp_path


def test_an_input_that_changed_is_named_and_nothing_is_changed(
    built: Path, tmp_path: Path, tokenizer_dir: Path
) -> None:
    root = elsewhere(built, tmp_path)
    pages = root / "pages" / "lake.jsonl"
    pages.write_text(pages.read_text().replace("Page 3.", "Page three."))
    hurt(root / "store", 2, SHARD, OWN)
    before = tree(root / "store")
    config = settings(root, tokenizer_dir)
    report = repair(root / "store", "small@v2", config=config)
    notes = {
        file.path: (file.how, file.note)
        for file in report.files
        if file.version == "small@v2"
    }
    assert notes[OWN] == ("rebuilt", "from its inputs")
    state, note = notes[SHARD]
    entry = next(
        e
        for e in Catalog(open_store(root / "store")).manifest("small", 2).inputs
        if e.source == "pages"
    )
    assert state == "not repaired"
    assert (
        "lake.jsonl of pages is" in note
        and f"expected {entry.size} bytes, {entry.token}" in note
    )
    after = tree(root / "store")
    assert {name for name in after if after[name] != before[name]} == {
        f"small/v2/{OWN}"
    }
    assert not report.ok and [problem.path for problem in report.problems] == [SHARD]
    assert repair(root / "store", "small@v2", config=config).repaired == 0


def test_an_input_that_is_gone_is_named(
    built: Path, tmp_path: Path, tokenizer_dir: Path
) -> None:
    root = elsewhere(built, tmp_path)
    (root / "notes" / "sea.txt").unlink()
    hurt(root / "store", 2, OWN)
    report = repair(root / "store", "small@v2", config=settings(root, tokenizer_dir))
    assert [file.how for file in report.files] == ["not repaired"]
    assert "sea.txt of notes is gone" in report.files[0].note


def test_inputs_that_moved_are_found_with_a_configuration(
    built: Path, tmp_path: Path, tokenizer_dir: Path
) -> None:
    root = elsewhere(built, tmp_path)
    hurt(root / "store", 1, OWN, SHARD, "tokenizer/tokenizer.json")
    hurt(root / "store", 2, "tokenizer/tokenizer.json")
    for run in (root / "store" / "small" / "v1" / "runs").glob("*-asked.json"):
        asked = json.loads(run.read_bytes())
        asked["config"]["datasets"][0]["data_files"] = str(
            tmp_path / "nowhere" / "*.txt"
        )
        run.chmod(0o644)
        run.write_text(json.dumps(asked))
    report = repair(root / "store", "small@v1")
    assert report.repaired == 0 and "nowhere" in report.files[0].note
    assert repair(root / "store", "small@v1", config=settings(root, tokenizer_dir)).ok
    assert tree(root / "store") == tree(built / "store")

"""How runs are asked is kept, so that repair needs no configuration; and the command
line of repair.
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from tests.integrity.support import build, damage, repaired_until_killed, tree
from tests.store.support import settings, write_inputs
from tokenlake import RepairReport, load_config, repair
from tokenlake.cli.app import main
from tokenlake.etl import WorkerPool
from tokenlake.etl.run_log import Asked

SHARD, OWN = "data/train-00001-00.parquet", "data/train-00000-00.parquet"
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool
) -> Path:
    """``small`` v1, asked for with paths relative to a folder."""
    root = tmp_path_factory.mktemp("runs")
    write_inputs(root)
    (root / "tok").symlink_to(tokenizer_dir)
    (root / "small.yaml").write_text(yaml.safe_dump(relative()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        build(root / "small.yaml", pool)
    return root


def records_of(lake: Path) -> list[Path]:
    """Return the files that say how the runs of ``small`` v1 were asked."""
    return sorted((lake / "small/v1/runs").glob("*-asked.json"))


def relative() -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list):
            return [short(item) for item in value]
        return value.removeprefix("/base/") if isinstance(value, str) else value

    return short(settings(Path("/base"), Path("/base/tok")))


# What is kept


def test_paths_are_relative_to_where_the_run_was(built: Path, lake: Path) -> None:
    (record,) = (json.loads(path.read_bytes()) for path in records_of(lake))
    assert record["directory"] == str(built.resolve())
    assert record["config"]["datasets"][1]["data_files"] == "pages"
    assert load_config(record["config"]) == load_config(relative())
    for path in (OWN, "tokenizer/tokenizer.json"):
        damage(lake / "small/v1" / path, "flip", Random(1))
    assert repair(lake, "small").ok
    assert tree(lake) == tree(built / "store")


def test_the_manifest_comes_back_with_relative_names(built: Path, lake: Path) -> None:
    damage(lake / "small/v1/manifest.json", "truncate", Random(3))
    assert repair(lake, "small").ok
    assert tree(lake) == tree(built / "store")


def test_a_record_that_cannot_be_read_is_passed_over(lake: Path) -> None:
    (record,) = records_of(lake)
    of_another_build = json.loads(record.read_bytes()) | {
        "fingerprint": "0" * 64,
        "config": None,
    }
    for name, data in (
        ("a", b"{"),
        ("b", b"[]"),
        ("c", json.dumps(of_another_build).encode()),
    ):
        (lake / "small/v1/runs" / f"29990101T000000Z-{name}-asked.json").write_bytes(
            data
        )
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    assert repair(lake, "small").repaired == 1
    record.unlink()
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    (lost,) = repair(lake, "small").files
    assert lost.how == "not repaired" and "no run of it recorded one" in lost.note


@pytest.mark.parametrize(
    "where",
    [
        {"storage_options": {"key": SecretStr("hunter2-hunter2")}},
        {"storage_options": {"anon": True, "token": "hunter2-hunter2"}},
        {"data_files": "https://host/file.jsonl?sig=hunter2-hunter2"},
    ],
)
def test_secrets_are_not_kept(where: dict[str, Any]) -> None:
    config = load_config(
        {
            "name": "x",
            "datasets": [{"name": "s", "data_files": "s3://bucket/x.jsonl", **where}],
        }
    )
    kept = Asked.of(config, "f" * 64)
    assert kept.config is None and "datasets.0" in kept.left_out
    assert b"hunter2" not in kept.to_bytes()
    assert Asked.from_bytes(kept.to_bytes(), "x") == kept


def test_references_are_kept_and_the_token_of_a_push_is_nobodys_business() -> None:
    source = {
        "data_files": "s3://bucket/x.jsonl",
        "storage_options": {"key": {"env": "LAKE_KEY"}},
    }
    save = {"hub_token": SecretStr("hunter2-hunter2"), "hub_repo_id": "org/name"}
    kept = Asked.of(
        load_config({"name": "x", "datasets": [source], "save": save}), "f" * 64
    )
    assert kept.config is not None and b"hunter2" not in kept.to_bytes()
    assert kept.config["datasets"][0]["storage_options"] == {"key": {"env": "LAKE_KEY"}}
    assert load_config(kept.config).save.hub_repo_id == "org/name"


def test_a_configuration_that_was_not_kept_is_asked_for(lake: Path) -> None:
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    for path in records_of(lake):
        left_out = {"config": None, "left_out": "it contains secrets: datasets.0.x"}
        path.chmod(0o644)
        path.write_text(json.dumps(json.loads(path.read_bytes()) | left_out))
    report = repair(lake, "small")
    assert report.repaired == 0
    assert (
        "it contains secrets: datasets.0.x" in report.files[0].note
        and "--config FILE" in report.files[0].note
    )


# The command line


def test_the_command_says_what_it_did(capsys: Output, built: Path, lake: Path) -> None:
    where = ["--store", str(lake)]
    assert main(["repair", "small", *where]) == 0
    assert capsys.readouterr().out == "small v1: nothing is damaged\n"
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    damage(lake / "small/v1" / "README.md", "remove", Random(1))
    before = tree(lake)
    assert main(["repair", "small", "--dry-run", *where]) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith("small v1: 2 files would be repaired\n")
        and "from the inputs of unit 0" in out
    )
    assert tree(lake) == before
    assert main(["repair", "small", "--json", *where]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] and [(file["path"], file["how"]) for file in said["files"]] == [
        ("README.md", "rendered"),
        (OWN, "rebuilt"),
    ]
    assert tree(lake) == tree(built / "store")


def test_exit_codes_tell_whether_anything_was_repaired(
    capsys: Output, lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "lake.jsonl").write_text('{"text": "other"}\n')
    command = [
        "repair",
        "small",
        "--store",
        str(lake),
        "--set",
        f"datasets.pages.data_files={tmp_path / 'pages'}",
    ]
    damage(lake / "small/v1" / SHARD, "flip", Random(1))
    assert main(command) == 1
    assert "not repaired" in capsys.readouterr().out
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    assert main(command) == 3
    assert "1 file repaired, 1 not" in capsys.readouterr().out
    assert main(["repair", "nothing", "--store", str(lake)]) == 2


def test_a_configuration_that_is_none_is_told_before_anything_is_read(
    capsys: Output, lake: Path, tmp_path: Path
) -> None:
    where = ["--store", str(lake), "--config", str(tmp_path / "small.yml")]
    assert main(["repair", "small", *where]) == 2
    assert "small.yml" in capsys.readouterr().err
    (tmp_path / "small.yml").write_text("datasets: 7\n")
    assert main(["repair", "small", *where]) == 2
    assert "datasets" in capsys.readouterr().err


def test_what_is_no_file_is_left_to_a_person(lake: Path, tmp_path: Path) -> None:
    shard, own = lake / "small/v1" / SHARD, lake / "small/v1" / OWN
    (tmp_path / "precious").write_text("not ours")
    shard.unlink()
    shard.symlink_to(tmp_path / "precious")
    own.unlink()
    own.mkdir()
    report = repair(lake, "small")
    assert [file.how for file in report.files] == ["not repaired", "not repaired"]
    assert all("Remove it, and repair again" in file.note for file in report.files)
    assert (tmp_path / "precious").read_text() == "not ours"
    shard.unlink()
    own.rmdir()
    assert repair(lake, "small").ok


def test_unlisted_files_are_none_of_its_business(lake: Path) -> None:
    (lake / "small/v1/data/train-00009-00.parquet").write_bytes(b"x")
    report = repair(lake, "small")
    assert report.ok and report.unlisted == ("data/train-00009-00.parquet",)
    assert (lake / "small/v1/data/train-00009-00.parquet").exists()


# Several at once, and killed ones


def test_two_repairs_at_once_end_well(built: Path, lake: Path) -> None:
    for path in (OWN, SHARD, "README.md", "ledger/00000.json", "claim.json"):
        damage(lake / "small/v1" / path, "flip", Random(1))
    found: list[RepairReport] = []
    threads = [
        threading.Thread(target=lambda: found.append(repair(lake, "small")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.ok for report in found] == [True] * 3
    assert tree(lake) == tree(built / "store")


@pytest.mark.parametrize("moment", [2])
def test_a_repair_that_is_killed_is_finished_by_the_next(
    built: Path, lake: Path, moment: int
) -> None:
    for path in (OWN, SHARD, "README.md", "ledger/00000.json"):
        damage(lake / "small/v1" / path, "truncate", Random(1))
    assert repaired_until_killed(lake, "small", moment) == -signal.SIGKILL
    report = repair(lake, "small")
    assert report.ok and 0 < len(report.files) < 4
    assert tree(lake) == tree(built / "store")

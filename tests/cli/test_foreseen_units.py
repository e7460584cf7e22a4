"""What ``tokenlake plan`` says is reused is what ``tokenlake run`` reuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.small_build import TEXTS, write_config, write_lines
from tokenlake.cli.app import main
from tokenlake.etl import BuildSession, WorkerPool

Output = pytest.CaptureFixture[str]
SMALL_UNITS = {"unit_size": 1024}


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A build of two files in several units."""
    write_lines(tmp_path / "a.jsonl", TEXTS[:40])
    write_lines(tmp_path / "b.jsonl", TEXTS[40:])
    return write_config(tmp_path, tokenizer_dir, source=SMALL_UNITS)


def _plan(config: Path, capsys: Output, *options: str) -> tuple[dict[str, Any], str]:
    """Return the record of a plan, and its text."""
    capsys.readouterr()
    assert main(["plan", str(config), *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert main(["plan", str(config), *options]) == 0
    return record, capsys.readouterr().out


def _check_law(config: Path, capsys: Output, *options: str) -> dict[str, int]:
    """Plan and run a build, and require that both state the same units.

    Returns the units of the run.
    """
    record, text = _plan(config, capsys, *options)
    run = ["run", str(config), "--no-prefect", "--workers=1", "--json", *options]
    assert main(run) == 0
    result = json.loads(capsys.readouterr().out)
    reused_from = record["work"].pop("reused_from")
    assert sum(reused_from.values()) == record["work"]["reused"]
    assert record["work"] == result["units"]
    existing = result["version"] if result["status"] == "exists" else None
    assert record["version"] == existing
    # The text has a line where something is not built, and none otherwise.
    units = result["units"]
    assert ("\nwork " in text) == bool(units["reused"] or units["resumed"])
    assert ("exists, nothing to do" in text) == (result["status"] == "exists")
    return units


def _interrupt(config: Path, pool: WorkerPool, unit_count: int) -> int:
    """Build some units as an interrupted run does, and return their version."""
    session = BuildSession.open(str(config))
    for index in session.pending[:unit_count]:
        session.run_unit(index, pool)
    return session.version


def test_a_new_build_reuses_nothing_and_an_old_one_builds_nothing(
    config: Path, capsys: Output, tmp_path: Path
) -> None:
    _plan(config, capsys)
    assert not (tmp_path / "store").exists(), "a plan writes nothing"
    units = _check_law(config, capsys)
    assert (units["resumed"], units["reused"]) == (0, 0)
    assert units["built"] > 4
    assert _check_law(config, capsys) == {"built": 0, "resumed": 0, "reused": 0}


def test_a_version_with_a_file_more_reuses_the_units_of_the_others(
    config: Path, capsys: Output, tmp_path: Path
) -> None:
    first = _check_law(config, capsys)
    write_lines(tmp_path / "c.jsonl", TEXTS[:20])
    record, text = _plan(config, capsys)
    assert record["work"]["reused_from"] == {"small@v1": first["built"]}
    all_units = record["units"]
    built = all_units - first["built"]
    assert (
        f"reuses {first['built']} of {all_units} units from small@v1, builds {built}"
        in text
    )
    assert _check_law(config, capsys)["reused"] == first["built"]


def test_units_are_taken_from_several_versions(
    config: Path, capsys: Output, tmp_path: Path
) -> None:
    both = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    (tmp_path / "b.jsonl").unlink()
    _check_law(config, capsys)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.jsonl").write_bytes(both[tmp_path / "b.jsonl"])
    _check_law(config, capsys)
    (tmp_path / "a.jsonl").write_bytes(both[tmp_path / "a.jsonl"])
    record, text = _plan(config, capsys)
    assert set(record["work"]["reused_from"]) == {"small@v1", "small@v2"}
    assert "small@v2 (" in text
    _check_law(config, capsys)


def test_an_interrupted_build_is_resumed_and_its_units_are_reused_by_others(
    config: Path, capsys: Output, tmp_path: Path, pool: WorkerPool
) -> None:
    _interrupt(config, pool, 3)
    record, text = _plan(config, capsys)
    assert record["work"]["resumed"] == 3
    assert f"resumes small@v1 with 3 of {record['units']} units, builds" in text
    # Another build takes units of the unfinished one.
    write_lines(tmp_path / "c.jsonl", TEXTS[:20])
    assert _check_law(config, capsys)["reused"] == 3
    (tmp_path / "c.jsonl").unlink()
    units = _check_law(config, capsys)
    assert units["resumed"] == 3
    assert units["reused"] > 0


def test_an_interrupted_build_with_a_damaged_size_is_built_again(
    config: Path, capsys: Output, tmp_path: Path, pool: WorkerPool
) -> None:
    _interrupt(config, pool, 2)
    shard = next((tmp_path / "store" / "small" / "v1" / "data").glob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert _check_law(config, capsys)["resumed"] == 1


def test_sources_without_a_cache_reuse_no_units(
    config: Path, capsys: Output, tmp_path: Path, tokenizer_dir: Path
) -> None:
    _check_law(config, capsys)
    write_lines(tmp_path / "c.jsonl", TEXTS[:20])
    uncached = write_config(
        tmp_path,
        tokenizer_dir,
        source=SMALL_UNITS,
        dataset={"cache_enabled": False},
    )
    assert _check_law(uncached, capsys)["reused"] == 0


def test_a_longer_mixture_reuses_units(
    config: Path, capsys: Output, tmp_path: Path, tokenizer_dir: Path
) -> None:
    mix = {
        "weights": {"texts": 1.0},
        "stop_strategy": "restart",
        "unit_rows": 50,
        "lanes": 1,
        "batch_size": 50,
        "total_rows": 100,
    }
    mixture = write_config(tmp_path, tokenizer_dir, mix=mix)
    assert main(["run", str(mixture), "--no-prefect", "--workers=1"]) == 0
    mixture = write_config(tmp_path, tokenizer_dir, mix=mix | {"total_rows": 300})
    record, text = _plan(mixture, capsys)
    work = record["mixture"]["work"]
    assert record["steps"][0]["version"] == 1
    assert work["reused_from"] == {"small@v1": 2}
    assert "reuses 2 of 6 units from small@v1, builds 4" in text
    run = ["run", str(mixture), "--no-prefect", "--workers=1", "--json"]
    assert main(run) == 0
    del work["reused_from"]
    assert json.loads(capsys.readouterr().out)["units"] == work


def test_a_store_with_too_many_records_is_not_searched(
    config: Path, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_law(config, capsys)
    write_lines(tmp_path / "c.jsonl", TEXTS[:20])
    limit = "tokenlake.etl.commit.foreseen_units._LOCAL_RECORDS"
    monkeypatch.setattr(limit, 1)
    record, text = _plan(config, capsys)
    assert record["work"] is None
    assert "reuses" not in text

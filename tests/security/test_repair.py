"""Repair does what the store's own record of a run says, but not what only its user
may ask for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.store.support import settings, write_inputs
from tokenlake import repair
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset
from tokenlake.etl.run_log import check_record

SOURCE: dict[str, dict[str, Any]] = {
    "the function os:system": {"transforms": [{"map": {"function": "os:system"}}]},
    "the function os:getcwd": {"format_callback": "os:getcwd"},
    "remote code": {"tokenizer": {"name_or_path": "x", "trust_remote_code": True}},
    "the secret {env: AWS_SECRET}": {
        "data_files": "https://example.org/x.jsonl",
        "storage_options": {"headers": {"Authorization": {"env": "AWS_SECRET"}}},
    },
    "the secret {block: lake}": {"storage_options": {"key": {"block": "lake"}}},
}


@pytest.mark.parametrize("what", SOURCE)
def test_what_needs_the_word_of_the_user(what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_record(
            {"name": "small", "datasets": [SOURCE[what]]},
            "small@v1",
            "give it with --config",
        )
    assert what in str(caught.value) and "--config" in str(caught.value)


def test_plain_records_are_enough() -> None:
    record = {
        "datasets": [
            {
                "data_files": "s3://b/x:y",
                "transforms": [{"where": "a > 1"}],
                "format_callback": None,
            }
        ],
        "default_tokenizer": {"name_or_path": "org/name", "trust_remote_code": False},
        "save": {"storage_options": {"key": {"env": "LAKE_KEY"}}},
    }
    check_record(record, "small@v1", "give it with --config")


def test_a_forged_record_runs_nothing(tmp_path: Path, tokenizer_dir: Path) -> None:
    write_inputs(tmp_path)
    config = settings(tmp_path, tokenizer_dir)
    manifest = build_dataset(config, workers=1).manifest
    version = (
        Path(config["save"]["output_dir"]) / manifest.dataset / f"v{manifest.version}"
    )
    (asked,) = (version / "runs").glob("*-asked.json")
    facts = json.loads(asked.read_bytes())
    facts["config"]["datasets"][0]["transforms"] = [
        {"apply": "tests.no_such_module:function"}
    ]
    asked.chmod(0o644)
    asked.write_text(json.dumps(facts))
    shard = version / manifest.files[0].path
    shard.chmod(0o644)
    shard.write_bytes(b"damage")
    reference = f"{manifest.dataset}@v{manifest.version}"
    store = Path(config["save"]["output_dir"])
    report = repair(store, reference, workers=1)
    assert not report.ok and not report.repaired
    assert "the function tests.no_such_module:function" in json.dumps(report.to_json())
    assert shard.read_bytes() == b"damage"
    assert repair(store, reference, config=config, workers=1).ok


def test_inputs_of_a_record_lie_where_the_environment_allows(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the store could name any file of this machine there."""
    write_inputs(tmp_path)
    config = settings(tmp_path, tokenizer_dir)
    manifest = build_dataset(config, workers=1).manifest
    store = Path(config["save"]["output_dir"])
    reference = f"{manifest.dataset}@v{manifest.version}"
    shard = store / manifest.dataset / f"v{manifest.version}" / manifest.files[0].path
    shard.chmod(0o644)
    shard.write_bytes(b"damage")
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", str(tmp_path / "notes"))
    report = repair(store, reference, workers=1)
    assert not report.ok and "outside the places that this worker allows" in json.dumps(
        report.to_json()
    )
    assert shard.read_bytes() == b"damage"
    monkeypatch.setenv("TOKENLAKE_ALLOWED_INPUTS", f"{tmp_path}/notes:{tmp_path}/pages")
    assert repair(store, reference, workers=1).ok

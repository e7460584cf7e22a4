"""``tokenlake doctor``: what it finds, what it ends with, and what it never shows."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tokenlake.cli.app import main

Checks = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def checks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Checks:
    """Run it; its exit code, and its checks by name."""
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def run(
        store: str = str(tmp_path / "lake"),
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        code = main(["doctor", "--store", store, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert found["ok"] is (code == 0)
        return code, {check["name"]: check for check in found["checks"]}

    return run


def test_a_machine_that_builds_is_well(checks: Checks, tmp_path: Path) -> None:
    code, found = checks()
    assert code == 0
    assert {check["state"] for check in found.values()} <= {"ok", "warn"}
    assert (
        "pyarrow" in found["packages"]["found"]
        and "tokenizers" in found["extra etl"]["found"]
    )
    assert found["Hub"]["found"].startswith("offline")
    assert not (tmp_path / "lake").exists()


def test_what_fails_says_how_to_repair_it_and_shows_no_secret(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("https_proxy", "http://me:letmein@127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
    code, found = checks("s3://")
    assert code == 1
    states = {
        name: found[name]["state"]
        for name in ("store", "Prefect", "proxies", "Hub token")
    }
    assert states == {
        "store": "fail",
        "Prefect": "fail",
        "proxies": "warn",
        "Hub token": "ok",
    }
    assert all(check["repair"] for check in found.values() if check["state"] != "ok")
    assert str(port) in found["Prefect"]["found"]
    assert "hf_abc" not in str(found) and "letmein" not in str(found)


def test_a_package_of_another_release_is_named(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import metadata

    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.1" if name == "duckdb" else real(name)
    )
    code, found = checks()
    assert code == 1
    assert "duckdb 0.1 (supported: >=2)" in found["extra etl"]["found"]
    assert found["extra etl"]["repair"] == "pip install 'tokenlake[etl]'"


def test_the_generation_of_tokenizers_is_named_with_the_way_to_the_faster_one(
    checks: Checks,
) -> None:
    _, found = checks()
    check = found["tokenizers"]
    if hasattr(tokenizers, "models"):  # which 1.0 does not export
        assert "20 to 35 times" in check["found"]
        assert (
            check["repair"] == "to use it: pip install --pre 'tokenizers>=1.0.0rc3,<2'"
        )
    else:
        assert "the fast generation" in check["found"]


def test_a_transformers_that_needs_another_tokenizers_is_named(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import metadata

    real_requires = metadata.requires
    real_version = metadata.version
    needs = {"transformers": ["tokenizers<0.1", "tokenizers<9; extra == 'other'"]}
    monkeypatch.setattr(
        metadata, "requires", lambda name: needs.get(name) or real_requires(name)
    )
    monkeypatch.setattr(
        metadata,
        "version",
        lambda name: "5.0" if name == "transformers" else real_version(name),
    )
    _, found = checks()
    assert found["transformers"]["state"] == "warn"
    assert "transformers 5.0 needs tokenizers<0.1" in found["transformers"]["found"]
    assert "pip install 'tokenizers>=0.22,<1'" in found["transformers"]["repair"]

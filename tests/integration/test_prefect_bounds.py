"""What the parameters of a deployment's run cannot do on the machine of its worker, tried with the real parts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prefect import deployed
from tests.prefect.deployed import get, post, until
from tests.servers.http import HttpServer

pytestmark = pytest.mark.integration

server, worker = deployed.server, deployed.worker

SECRET = "AKIAPLANTED7d1f0c55"
SHADOW = f"{SECRET}: {SECRET}\n"
ELSEWHERE = {
    "endpoint_url": {"block": "elsewhere"},
    "key": {"env": "LAKE_KEY"},
    "secret": {"env": "LAKE_KEY"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bounds")


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, tokenizer_dir: Path
) -> dict[str, str]:
    """Of a worker whose owner bounds it, and has a secret."""
    (folder / "configs").mkdir()
    (folder / "shadow").write_text(SHADOW)
    (folder / "configs" / "link.yaml").symlink_to(folder / "shadow")
    return deployed.environment_of(tmp_path_factory) | {
        "TOKENLAKE_ALLOWED_INPUTS": "s3://lake/raw",
        "TOKENLAKE_ALLOWED_OUTPUTS": f"s3://lake/tokens:{folder}/out",
        "TOKENLAKE_ALLOWED_TOKENIZERS": str(tokenizer_dir),
        "TOKENLAKE_ALLOWED_VARIABLES": "LAKE_*",
        "TOKENLAKE_ALLOWED_BLOCKS": "*",
        "TOKENLAKE_ALLOWED_CONFIGS": f"{folder}/configs",
        "TOKENLAKE_RETRY_SECONDS": "1",
        "LAKE_KEY": SECRET,
    }


@pytest.fixture(scope="module")
def elsewhere(worker: dict[str, str]) -> Iterator[HttpServer]:
    """Somebody's server, and a block of its address."""
    with HttpServer() as found:
        block = f"from prefect.blocks.system import Secret; Secret(value={found.url!r}).save('elsewhere')"
        subprocess.run([sys.executable, "-W", "ignore", "-c", block], env=worker, check=True, timeout=60)
        yield found


def ended(worker: dict[str, str], **parameters: Any) -> str:
    """The message of a run that failed; what else the server knows of it holds no secret."""
    deployment = get(worker, "deployments/name/tokenize/demo")["id"]
    run = post(worker, f"deployments/{deployment}/create_flow_run", parameters=parameters)["id"]
    until(lambda: get(worker, f"flow_runs/{run}")["state_type"] in ("FAILED", "COMPLETED"), "it ends")
    found = get(worker, f"flow_runs/{run}")
    logs = post(worker, "logs/filter", logs={"flow_run_id": {"any_": [run]}})
    assert SECRET not in json.dumps([found, logs])
    assert found["state_type"] == "FAILED"
    return found["state"]["message"]


@pytest.mark.parametrize("side", ["input", "output"])
def test_no_request_reaches_another_host(
    worker: dict[str, str], elsewhere: HttpServer, folder: Path, tokenizer_dir: Path, side: str
) -> None:
    dataset: dict[str, Any] = {
        "name": "s",
        "data_files": "s3://lake/raw/a.jsonl",
        "tokenizer": str(tokenizer_dir),
    }
    config: dict[str, Any] = {"name": "x", "datasets": [dataset], "save": {"output_dir": str(folder / "out")}}
    if side == "input":
        dataset["storage_options"] = ELSEWHERE
    else:
        config["save"] = {"output_dir": "s3://lake/tokens", "storage_options": ELSEWHERE}
    message = ended(worker, config=config)
    assert not elsewhere.log
    assert "endpoint_url: expected a URL that is written out" in message


def test_no_file_elsewhere_is_read_as_a_configuration(worker: dict[str, str], folder: Path) -> None:
    message = ended(worker, config=f"{folder}/configs/link.yaml", data_files="a")
    assert "is outside what this worker allows" in message

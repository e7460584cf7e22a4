"""Which Prefect server a run reports to, found without importing Prefect."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazily
from tokenlake.errors import ConfigError
from tokenlake_flows.settings import configured_api_url

notifications: Any = lazily("tokenlake_flows.notifications")


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as a Prefect server does."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def api_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/api"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PREFECT_HOME and working directory."""
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profiles(home: Path, url: str, active: str = "mine") -> None:
    text = f'active = "{active}"\n[profiles.mine]\nPREFECT_API_URL = "{url}"\n[profiles.bare]\n'
    (home / "profiles.toml").write_text(text)


@pytest.mark.parametrize(
    ("active", "variables", "named"),
    [
        (None, {}, False),
        (None, {"PREFECT_API_URL": "{url}"}, True),
        ("mine", {}, True),
        ("bare", {}, False),
        ("bare", {"PREFECT_PROFILE": "mine"}, True),
        ("mine", {"PREFECT_API_URL": ""}, False),
    ],
)
def test_the_environment_names_it_else_the_active_profile(
    home: Path,
    api_url: str,
    monkeypatch: pytest.MonkeyPatch,
    active: str | None,
    variables: dict[str, str],
    named: bool,
) -> None:
    if active is not None:
        profiles(home, api_url, active)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(url=api_url))
    assert configured_api_url() == (api_url if named else None)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".env", 'export PREFECT_API_URL="{url}"'),
        ("prefect.toml", '[api]\nurl = "{url}"'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "{url}"'),
    ],
)
def test_a_file_in_the_working_directory_does_not(
    tmp_path: Path, api_url: str, file: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    Path(file).write_text(text.format(url=api_url))
    assert configured_api_url() is None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:1/api", ""),
        ("http://nowhere.invalid/api", ""),
        ("{url}/other", ".*health check fails"),
    ],
)
def test_a_server_that_does_not_answer_is_an_error(
    home: Path, url: str, told: str, api_url: str
) -> None:
    profiles(home, url.format(url=api_url))
    with pytest.raises(
        ConfigError, match=rf"profile 'mine'{told}.*prefect server start"
    ):
        configured_api_url()


def test_launching_does_not_import_prefect_before_a_server_is_on_its_way() -> None:
    code = """import sys, tokenlake_flows.launch
sys.exit('prefect' in sys.modules or 'pydantic' in sys.modules)"""
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    assert (
        subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode
        == 0
    )


def test_the_command_for_notifications_asks_for_a_webhook(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert notifications.main([]) == 2
    told = 'expected one argument, the URL of a webhook that takes {"text": ...}\n'
    assert capsys.readouterr() == ("", told)

"""A Hub on loopback for a user who may write, for tests of what is published there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants as hub_constants

from tests.servers.hub import TOKEN, HubServer, hub


def writable_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubServer]:
    """Yield a Hub for a user with a token; over LFS, because Xet has servers of its
    own. Waits are short.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # Read when the package was imported.
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(
        time, "sleep", lambda seconds: None
    )  # between two requests, ours and those of the package
    with hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running

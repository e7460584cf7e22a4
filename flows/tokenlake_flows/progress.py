"""The progress of a build as an artifact of its flow run."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import UUID

import httpx
from prefect import get_client
from prefect.artifacts import create_progress_artifact
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import ObjectNotFound

from tokenlake.base import numbers
from tokenlake.etl.observability.tally import RunTallies, step_name
from tokenlake.runs.engine import LocalEngine

#: Seconds between two updates.
EVERY_SECONDS: Final = 10.0


@contextmanager
def progress_shown(engine: LocalEngine, key: str) -> Generator[None]:
    """Keep an artifact of the flow run up to date while ``engine`` builds; the builds of its parts are in it."""
    if engine.is_part:
        yield
        return
    tallies, ended, how = engine.tallies, threading.Event(), "stopped at "
    artifact = create_progress_artifact(0.0, key=key, description=progress_line(tallies))
    assert isinstance(artifact, UUID)

    def update() -> None:
        # No client before the first time: short runs need none.
        while not ended.wait(EVERY_SECONDS):
            with get_client(sync_client=True) as client:
                while not ended.is_set():
                    _show(client, artifact, tallies)
                    ended.wait(EVERY_SECONDS)

    updates = threading.Thread(target=update, name="progress", daemon=True)
    updates.start()
    try:
        yield
        how = ""
    finally:
        ended.set()
        updates.join()
        with get_client(sync_client=True) as client:
            _show(client, artifact, tallies, how)


def progress_line(tallies: RunTallies, how: str = "") -> str:
    """``books v3: 45%, 7 of 9 units, 3.12 M tokens, 21.4 MB/s, 12 s left; tokenize takes 71% of the workers' time``.

    Args:
        how: what stands before the share.
    """
    tally, share = tallies.last, f"{how}{numbers.percent(tallies.share, 1, 0)}"
    if not tally.plan.dataset:
        return f"{share}, planning"
    step = [step_name(tally.step)] if tally.step.what else []
    line = ", ".join([f"{tally.name}: {share}", *step, *tally.line().split("  ")])
    return line + (f"; {slowest}" if (slowest := tally.slowest()) else "")


def _show(client: SyncPrefectClient, artifact: UUID, tallies: RunTallies, how: str = "") -> None:
    # The server may be gone for a moment, and nothing depends on this.
    with suppress(httpx.HTTPError, ObjectNotFound):
        done = ArtifactUpdate(data=round(100 * tallies.share, 1), description=progress_line(tallies, how))
        client.update_artifact(artifact, done)

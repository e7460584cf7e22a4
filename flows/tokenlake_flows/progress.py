"""Progress of a build, as an artifact of its flow run."""

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
from tokenlake.base.secrets import scrub
from tokenlake.errors import TokenlakeError
from tokenlake.etl.observability.tally import RunTallies, step_name
from tokenlake.runs.build_run import BuildRun

EVERY_SECONDS: Final = 10.0
"""Seconds between two updates of the artifact."""


@contextmanager
def progress_shown(build_run: BuildRun, key: str) -> Generator[None]:
    """Keep a progress artifact of the flow run up to date during a build.

    The artifact of a mixture includes the builds of its sources, which therefore have
    none.
    """
    # The build of a source: the artifact of the mixture shows its progress.
    if build_run.is_part:
        yield
        return
    tallies = build_run.tallies
    has_ended = threading.Event()
    artifact = create_progress_artifact(
        0.0, key=key, description=progress_line(tallies)
    )
    assert isinstance(artifact, UUID)

    def update() -> None:
        # A short run ends before the first update and needs no client.
        while not has_ended.wait(EVERY_SECONDS):
            with get_client(sync_client=True) as client:
                while not has_ended.is_set():
                    _update_artifact(client, artifact, tallies)
                    has_ended.wait(EVERY_SECONDS)

    updates = threading.Thread(target=update, name="progress", daemon=True)
    updates.start()
    prefix = "stopped at "
    reason = ""
    # The last line stays on the page of the run. After a failure it has the percentage
    # and the reason.
    try:
        yield
        prefix = ""
    except TokenlakeError as error:
        reason = f"; {type(error).__name__}: {scrub(str(error))}"
        raise
    finally:
        has_ended.set()
        updates.join()
        with get_client(sync_client=True) as client:
            _update_artifact(client, artifact, tallies, prefix, reason)


def progress_line(tallies: RunTallies, prefix: str = "") -> str:
    """Return one line about the progress of a run.

    For example ``books v3: 45%, 7 of 9 units, 3.12 M tokens, 21.4 MB/s, 12 s left;
    tokenize takes 71% of the workers' time``.

    Args:
        tallies: Counts of the builds of the run.
        prefix: Text before the percentage.
    """
    # The build that is shown is the latest one: a mixture builds its sources first.
    tally = tallies.last
    share = f"{prefix}{numbers.percent(tallies.share, 1, 0)}"
    if not tally.plan.dataset:
        return f"{share}, planning"
    line_parts = [f"{tally.name}: {share}"]
    if tally.step.what:
        line_parts.append(step_name(tally.step))
    line_parts += tally.line().split("  ")
    progress_text = ", ".join(line_parts)
    slowest = tally.slowest()
    return f"{progress_text}; {slowest}" if slowest else progress_text


def _update_artifact(
    client: SyncPrefectClient,
    artifact: UUID,
    tallies: RunTallies,
    prefix: str = "",
    reason: str = "",
) -> None:
    # The server may not answer for a moment, and nothing depends on an update.
    with suppress(httpx.HTTPError, ObjectNotFound):
        description = f"{progress_line(tallies, prefix)}{reason}"
        update = ArtifactUpdate(
            data=round(100 * tallies.share, 1), description=description
        )
        client.update_artifact(artifact, update)

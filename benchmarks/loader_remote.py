"""Training from a bucket whose every answer takes 20 ms.

Measured are the share of the time that a trainer waits, and the number of requests per
batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.measure import ROOT

LATENCY_MS: Final = 20
"""Milliseconds until the bucket answers."""

STEP_SECONDS: Final = 0.05
"""Seconds of the trainer's step: 10 Mtok a second and host at 256 x 2048."""

MOST_WAITED: Final = 5.0
"""Most time that is waited, in percent of the time after the first batch."""


def measure_remote(
    work: Path, loader_input: LoaderInput, repeats: int
) -> tuple[list[Goal], list[str]]:
    """Train from the bucket `repeats` times.

    Args:
        work: Folder for all files of the benchmark.
        loader_input: Dataset to read.
        repeats: Number of measured runs.

    Returns:
        A goal for the share of time that is waited, and a note on the requests.
    """
    # Every run has a bucket of its own, so that its requests are counted from 0.
    waited_shares: list[float] = []  # percent
    requests_per_batch: list[float] = []
    first_seconds: list[float] = []
    for _ in range(repeats):
        figures = _train(work, loader_input)
        waited_shares.append(figures["waited"] / figures["seconds"] * 100)
        requests_per_batch.append(figures["requests"] / figures["batches"])
        first_seconds.append(figures["first"])
    goal = Goal(
        f"{LATENCY_MS} ms a request, a step of {STEP_SECONDS * 1e3:.0f} ms: waiting after the first batch "
        f"({min(waited_shares):.1f}-{max(waited_shares):.1f})",
        statistics.median(waited_shares),
        "at most",
        MOST_WAITED,
        "%",
    )
    note = (
        f"From a bucket with {LATENCY_MS} ms a request: {statistics.median(requests_per_batch):.2f} requests a batch "
        f"of 256 x 2048, opening included; first batch after {statistics.median(first_seconds):.2f} s"
    )
    return [goal], [note]


def _train(work: Path, loader_input: LoaderInput) -> dict[str, Any]:
    """Train for one epoch.

    Returns:
        Figures of :mod:`benchmarks.systems.loader_latency`, and the number of
        `requests`.

    Raises:
        RuntimeError: The trainer failed.
    """
    store = loader_input.store
    # The bucket is the folder of the store.
    with _slow_bucket(store.parent) as port:
        # S3 clients find the server by these variables.
        environment = {
            **builds.environment(work, work / "scratch" / "hash-cache"),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        program = [sys.executable, "-m", "benchmarks.systems.loader_latency", "train"]
        process = subprocess.run(
            [*program, f"s3://{store.name}", CORPUS, str(STEP_SECONDS)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise RuntimeError(
                f"loader_latency train failed: {process.stderr.strip()[-400:]}"
            )
        figures = json.loads(process.stdout.splitlines()[-1])
        # Read the count before the server ends.
        url = f"http://127.0.0.1:{port}/?requests"
        with urllib.request.urlopen(url, timeout=30) as answer:
            figures["requests"] = int(answer.read())
    return figures


@contextlib.contextmanager
def _slow_bucket(folder: Path) -> Iterator[int]:
    """Serve the folders of a folder as slow buckets. Yield the port."""
    program = [sys.executable, "-m", "benchmarks.systems.slow_bucket"]
    with subprocess.Popen(
        [*program, str(folder), str(LATENCY_MS)],
        cwd=ROOT,
        env=os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            # The server also ends with its standard input, should this process die.
            server.terminate()

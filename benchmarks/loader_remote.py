"""Training from a bucket whose every answer takes 20 ms: what a trainer waits for,
and how many requests a batch is.
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
STEP_SECONDS: Final = 0.05  # of the trainer: 10 Mtok a second and host at 256 x 2048
LOST: Final = 5.0  # percent of the time behind the first batch, at most


def measure_remote(
    work: Path, given: LoaderInput, repeats: int
) -> tuple[list[Goal], list[str]]:
    """A goal for the share of time that is waited, and a note with the requests."""
    found = [_once(work, given) for _ in range(repeats)]
    waited = [one["waited"] / one["seconds"] * 100 for one in found]
    requests = statistics.median(one["requests"] / one["batches"] for one in found)
    what = f"{LATENCY_MS} ms a request, a step of {STEP_SECONDS * 1e3:.0f} ms: waiting behind the first batch"
    goal = Goal(
        f"{what} ({min(waited):.1f}-{max(waited):.1f})",
        statistics.median(waited),
        "at most",
        LOST,
        "%",
    )
    return [goal], [
        f"From a bucket with {LATENCY_MS} ms a request: {requests:.2f} requests a batch of 256 x 2048, opening "
        f"included; first batch after {statistics.median(one['first'] for one in found):.2f} s"
    ]


def _once(work: Path, given: LoaderInput) -> dict[str, Any]:
    with _bucket(given.store.parent) as port:
        env = builds.environment(work, work / "scratch" / "hash-cache") | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        program = [sys.executable, "-m", "benchmarks.systems.loader_latency", "train"]
        url = f"s3://{given.store.name}"
        done = subprocess.run(
            [*program, url, CORPUS, str(STEP_SECONDS)],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(
                f"loader_latency train failed: {done.stderr.strip()[-400:]}"
            )
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/?requests", timeout=30
        ) as answer:
            return {
                **json.loads(done.stdout.splitlines()[-1]),
                "requests": int(answer.read()),
            }


@contextlib.contextmanager
def _bucket(folder: Path) -> Iterator[int]:
    """A slow bucket for as long as the block lasts; gives its port."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.systems.slow_bucket",
        str(folder),
        str(LATENCY_MS),
    ]
    with subprocess.Popen(
        command,
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
            server.terminate()

"""Peak memory of every worker on a large input, at two unit sizes, and on one huge
document.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary

WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """Peak resident bytes of the largest worker and of the main process, in one
    build.
    """

    source: Input
    vocabulary: Vocabulary
    unit_size: str
    worker_bytes: int
    main_bytes: int
    cpu: float
    wall: float


def measure_memory(
    work: Path, source: Input, vocabulary: Vocabulary, unit_size: str
) -> MemoryCase:
    """One library build with two workers. Raises RuntimeError if it fails."""
    output = work / "scratch" / "memory"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    config = builds.write_config(
        output / "bench.yaml", source, vocabulary, output / "store", unit_size
    )
    log = work / "logs" / "memory.log"
    log.parent.mkdir(exist_ok=True)
    env = builds.environment(work, output / "hash-cache")
    run = measure(
        builds.library_command(config, WORKERS),
        report=output / "measured.json",
        log=log,
        env=env,
    )
    if run.exit_code != 0:
        raise RuntimeError(
            f"the build ended with exit code {run.exit_code}; its output is in {log}"
        )
    shutil.rmtree(output)
    workers, others = _split(run)
    return MemoryCase(
        source=source,
        vocabulary=vocabulary,
        unit_size=unit_size,
        worker_bytes=max(workers, default=0),
        main_bytes=max(others, default=0),
        cpu=run.cpu,
        wall=run.wall,
    )


def _split(run: Measurement) -> tuple[list[int], list[int]]:
    """Peaks of the workers and of the other processes, by their command lines."""
    workers = [
        peak for name, peak in run.processes.items() if "tokenlake.etl.worker" in name
    ]
    others = [
        peak
        for name, peak in run.processes.items()
        if "tokenlake.etl.worker" not in name
    ]
    return workers, others

"""Peak memory of the workers of a build: a large input at two unit sizes, and an input
of one huge document.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.measure import measure
from benchmarks.vocabularies import Vocabulary

WORKERS: Final = 2
WORKER_MODULE: Final = "tokenlake.etl.worker"
"""Part of a worker's command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """Memory of one build.

    Attributes:
        source: Input of the build.
        vocabulary: Its tokenizer.
        unit_size: Size of its units, as configured.
        worker_bytes: Peak resident bytes of the largest worker.
        main_bytes: Peak resident bytes of the largest other process.
        cpu: CPU seconds of all processes.
        wall: Wall seconds.
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
    """Run one build of the library with two workers.

    Args:
        work: Folder for all files of the benchmark.
        source: Input of the build.
        vocabulary: Tokenizer of the build.
        unit_size: Size of its units, as in a configuration.

    Raises:
        RuntimeError: The build failed.
    """
    # 1. Build.
    output = work / "scratch" / "memory"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    config = builds.write_config(
        output / "bench.yaml", source, vocabulary, output / "store", unit_size
    )
    log_path = work / "logs" / "memory.log"
    log_path.parent.mkdir(exist_ok=True)
    measurement = measure(
        builds.library_command(config, WORKERS),
        report=output / "measured.json",
        log=log_path,
        env=builds.environment(work, output / "hash-cache"),
    )
    if measurement.exit_code != 0:
        raise RuntimeError(
            f"the build ended with exit code {measurement.exit_code}; its output is in {log_path}"
        )
    # The output is large and no longer needed.
    shutil.rmtree(output)

    # 2. Find the largest worker and the largest other process.
    worker_bytes = 0
    main_bytes = 0
    for process, peak_bytes in measurement.processes.items():
        if WORKER_MODULE in process:
            worker_bytes = max(worker_bytes, peak_bytes)
        else:
            main_bytes = max(main_bytes, peak_bytes)
    return MemoryCase(
        source=source,
        vocabulary=vocabulary,
        unit_size=unit_size,
        worker_bytes=worker_bytes,
        main_bytes=main_bytes,
        cpu=measurement.cpu,
        wall=measurement.wall,
    )

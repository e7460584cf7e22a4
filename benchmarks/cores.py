"""Builds with 1 to 16 workers compared with a bare loop in as many processes.

``python -m benchmarks.cores`` prints a table of wall seconds, in less than ten minutes
on a machine with 16 cores: builds of 735 MB of JSON Lines with default options, the
bare loop in as many processes, and their ratio.

``python -m benchmarks.cores --simulate`` prints the table for any number of workers on
a machine with few cores. The parts of a build are measured one at a time, in CPU
seconds: imports, plan, gate, loading of a tokenizer, units. A simulated clock then
starts workers, gives them units by the library's own :class:`~tokenlake.etl.Schedule`,
and adds the commit. The simulation assumes:

- Each worker has a core, and cores do not slow each other down (memory, clock, disk).
- The process that plans files the records of units one at a time.
- The processes of the bare loop have equal shares of the input and start at once.

The idle share is the part of the time, from the start of the command to its end, in
which a worker slot builds nothing.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from benchmarks import builds
from benchmarks.inputs import Input, InputMaker
from benchmarks.measure import ROOT
from benchmarks.vocabularies import Vocabulary, obtain
from tokenlake.etl.plan.unit_size import choose_unit_size
from tokenlake.etl.schedule import Schedule

MEGABYTES: Final = 735.0
MEASURED: Final = (1, 2, 4, 8, 16)
SIMULATED: Final = (1, 2, 4, 8, 16, 64)
"""Numbers of workers."""

GOAL: Final = 1.1
"""Goal: wall seconds divided by those of the bare loop, with 16 workers."""

_PIECES: Final = 64
"""Number of files that the processes of the bare loop share."""

_SPAWN: Final = 0.003
"""Seconds of the parent to start a worker process."""

_FILING: Final = 0.0006
"""Seconds of the parent per unit: job, record, events."""

_COMMIT: Final = 0.02
_COMMIT_UNIT: Final = 0.0003
"""Seconds of the commit: fixed, and per unit."""

_SAMPLE_MEGABYTES: Final = 200.0
"""MB of the input on which parts are measured."""

_SMALL_UNIT: Final = "8MiB"
_LARGE_UNIT: Final = "32MiB"
"""Sizes of units from which the seconds per byte are measured."""


@final
@dataclass(frozen=True, slots=True)
class PartTimes:
    """Seconds of the parts of a build and of the bare loop.

    Attributes:
        parent: Time until the parent may start workers: interpreter, imports,
            configuration.
        plan: Time from there until the plan is claimed.
        start: Time until a worker takes jobs.
        gate: Time to choose the tokenizer backend.
        warm: Time to load the tokenizer for the first unit.
        unit: Fixed time per unit.
        byte: Time per byte of a unit.
        bare_start: Time until a process of the bare loop reads its input.
        bare_byte: Time per byte of the bare loop.
    """

    parent: float
    plan: float
    start: float
    gate: float
    warm: float
    unit: float
    byte: float
    bare_start: float
    bare_byte: float


@final
@dataclass(frozen=True, slots=True)
class SimulatedBuild:
    """Result of a simulated build.

    Attributes:
        wall: Seconds from the command to the commit.
        idle: Share of the time of all worker slots in which nothing is built.
        first: Seconds until the first unit begins.
    """

    wall: float
    idle: float
    first: float


def simulate(
    parts: PartTimes,
    sizes: Sequence[int],
    workers: int,
    *,
    early: bool = True,
    largest_first: bool = False,
) -> SimulatedBuild:
    """Simulate a build in which each worker has a core.

    Args:
        parts: Times of the parts.
        sizes: Bytes of each unit, in the order of the plan.
        workers: Number of workers.
        early: True if workers start, and load the tokenizer, while the plan is made.
            False if only the first worker does, and the others load the tokenizer in
            their first unit.
        largest_first: True to build the largest units first.
    """
    order = list(range(len(sizes)))
    if largest_first:
        order.sort(key=lambda unit: -sizes[unit])
    schedule = Schedule({unit: sizes[unit] for unit in order}, 0)
    workers = min(workers, len(sizes))
    planned = parts.parent + parts.plan
    gate_end = max(planned, parts.parent + parts.start) + parts.gate

    # 1. Find the time at which each worker is free for its first unit, and whether it
    #    has loaded the tokenizer by then. The first worker passes the gate, which
    #    loads it. An event is (time, worker, whether it has built a unit).
    events: list[tuple[float, int, bool]] = [(gate_end, 0, False)]
    is_warm = [early] * workers
    is_warm[0] = True
    for worker in range(1, workers):
        parent_is_free = parts.parent if early else planned
        ready = parent_is_free + worker * _SPAWN + parts.start
        if early:
            ready = max(ready, planned) + parts.warm
        events.append((max(gate_end, ready), worker, False))
    heapq.heapify(events)
    first = events[0][0]

    # 2. Give the next unit to each free worker. The parent files one record at a time,
    #    in the order of their arrival.
    busy_seconds = 0.0
    filed = 0.0  # time at which the parent has filed the last record
    while events:
        now, worker, has_unit = heapq.heappop(events)
        if has_unit:
            filed = max(filed, now) + _FILING
            now = filed
        assignment = schedule.take(now)
        if assignment is None:
            continue
        seconds = parts.unit + parts.byte * sizes[assignment[0]]
        busy_seconds += seconds
        if not is_warm[worker]:
            is_warm[worker] = True
            seconds += parts.warm
        heapq.heappush(events, (now + seconds, worker, True))

    # 3. Commit.
    wall = filed + _COMMIT + _COMMIT_UNIT * len(sizes)
    return SimulatedBuild(wall, 1 - busy_seconds / (workers * wall), first)


def bare_wall(parts: PartTimes, size: int, processes: int) -> float:
    """Return the wall seconds of the bare loop.

    Args:
        parts: Times of the parts.
        size: Bytes of the input, which the processes share equally.
        processes: Number of processes.
    """
    return parts.bare_start + parts.bare_byte * size / processes


def unit_sizes(size: int, unit_size: int, files: int = 8) -> list[int]:
    """Return the bytes of the units of files of equal size.

    Args:
        size: Bytes of all files.
        unit_size: Bytes of a unit. The last unit of a file is smaller.
        files: Number of files.
    """
    sizes: list[int] = []
    for _ in range(files):
        # Full units, and a smaller one at the end.
        remaining = size // files
        while remaining > 0:
            sizes.append(min(remaining, unit_size))
            remaining -= unit_size
    return sizes


def measure_parts(work: Path, source: Input, vocabulary: Vocabulary) -> PartTimes:
    """Measure the parts of a build and of the bare loop, each in a new process.

    Args:
        work: Work folder of the benchmark.
        source: Input.
        vocabulary: Tokenizer.
    """
    environment = builds.environment(work, work / "cores-cache")
    # 1. A worker that builds small units, one that builds large units, and one that
    #    only loads the tokenizer.
    store = work / "cores-store"
    small_config = builds.write_config(
        work / "cores-small.json", source, vocabulary, store, _SMALL_UNIT
    )
    large_config = builds.write_config(
        work / "cores-large.json", source, vocabulary, store, _LARGE_UNIT
    )
    small = _worker_times(small_config, "gate", environment)
    large = _worker_times(large_config, "gate", environment)
    warm = _worker_times(large_config, "warm", environment)
    # 2. The seconds of a unit are a linear function of its size. Two points determine
    #    it: the median unit of each size.
    small_bytes, small_seconds = _median_unit(small["units"])
    large_bytes, large_seconds = _median_unit(large["units"])
    seconds_per_byte = (large_seconds - small_seconds) / (large_bytes - small_bytes)
    # 3. The bare loop.
    output = _new_folder(work / "cores-bare")
    program = "benchmarks.systems.bare_parts"
    command = _bare_command(program, Path(source.folder), vocabulary, output)
    bare = _json_output(command, environment)
    shutil.rmtree(output)
    shutil.rmtree(store, ignore_errors=True)
    # 4. The imports.
    imports = _json_output([sys.executable, "-c", _IMPORTS], environment)
    return PartTimes(
        parent=imports["parent"],
        plan=small["plan"],
        start=imports["worker"],
        gate=small["gate"],
        warm=warm["warm"],
        unit=max(0.0, small_seconds - seconds_per_byte * small_bytes),
        byte=seconds_per_byte,
        bare_start=bare["start"],
        bare_byte=bare["loop"] / bare["bytes"],
    )


_IMPORTS: Final = """
import json, subprocess, sys
def cpu(module):
    code = f"import {module}, time; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True).stdout)
print(json.dumps({"parent": min(cpu("tokenlake.etl.runner") for _ in range(3)),
                  "worker": min(cpu("tokenlake.etl.worker") for _ in range(3))}))
"""
"""Program that prints the least CPU seconds of three imports."""


def _worker_times(config: Path, request: str, env: dict[str, str]) -> dict[str, Any]:
    """Return the times that a worker process prints, see :mod:`.worker_parts`."""
    program = "benchmarks.systems.worker_parts"
    return _json_output([sys.executable, "-m", program, str(config), request], env)


def _bare_command(
    program: str, folder: Path, vocabulary: Vocabulary, output: Path
) -> list[str]:
    """Return the command of a bare loop in one process.

    Args:
        program: Module of the program.
        folder: Folder of the input.
        vocabulary: Tokenizer.
        output: Empty folder for the output.
    """
    arguments = [
        str(folder),
        vocabulary.folder,
        vocabulary.eos,
        str(output),
        "1",
        str(vocabulary.id_bytes),
    ]
    return [sys.executable, "-m", program, *arguments]


def _median_unit(units: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Return the size of full units, and the median of their seconds.

    Args:
        units: (bytes, seconds) of each unit. The first one is left out, since it loads
            more than the others.
    """
    full_size = max(size for size, _ in units)
    times = [seconds for size, seconds in units[1:] if size > 0.9 * full_size]
    times.sort()
    return full_size, times[len(times) // 2]


def _json_output(command: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    """Run a command and return its last output line, which is JSON."""
    process = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, check=True
    )
    return json.loads(process.stdout.splitlines()[-1])


def _new_folder(folder: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _wall_seconds(
    commands: Sequence[Sequence[str]], env: dict[str, str], log: Path
) -> float:
    """Return the wall seconds of commands that run at the same time.

    Raises:
        RuntimeError: A command failed.
    """
    start_time = time.monotonic()
    with log.open("wb") as output_file:
        processes = [
            subprocess.Popen(
                command,
                env=env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output_file,
                stderr=output_file,
            )
            for command in commands
        ]
        exit_codes = [process.wait() for process in processes]
    if any(exit_codes):
        raise RuntimeError(
            f"a run ended with {max(exit_codes)}; its output is in {log}"
        )
    return time.monotonic() - start_time


def _time_build(
    work: Path, source: Input, vocabulary: Vocabulary, workers: int
) -> float:
    """Return the wall seconds of a build."""
    store = work / "cores-store"
    shutil.rmtree(store, ignore_errors=True)
    config = builds.write_config(work / "cores.json", source, vocabulary, store)
    environment = builds.environment(work, work / "cores-cache")
    command = builds.library_command(config, workers)
    return _wall_seconds([command], environment, work / "cores.log")


def _time_bare_loop(
    work: Path, pieces: Sequence[Path], vocabulary: Vocabulary, processes: int
) -> float:
    """Return the wall seconds of the bare loop.

    Args:
        work: Work folder of the benchmark.
        pieces: Files of the input, which the processes share.
        vocabulary: Tokenizer.
        processes: Number of processes.
    """
    commands: list[list[str]] = []
    program = "benchmarks.systems.bare_gigatoken"
    for number in range(processes):
        folder = _new_folder(work / "cores-shares" / str(number))
        # The share of a process is a folder with links, which take no time to write.
        # Pieces are dealt in turn.
        for piece in pieces[number::processes]:
            os.link(piece, folder / piece.name)
        output = _new_folder(work / "cores-bare" / str(number))
        commands.append(_bare_command(program, folder, vocabulary, output))
    environment = builds.environment(work, work / "cores-cache")
    try:
        return _wall_seconds(commands, environment, work / "cores-bare.log")
    finally:
        shutil.rmtree(work / "cores-shares")
        shutil.rmtree(work / "cores-bare")


def _cut(work: Path, source: Input) -> list[Path]:
    """Cut an input at line ends into about :data:`_PIECES` files of similar size."""
    folder = _new_folder(work / "cores-pieces")
    piece_bytes = source.file_bytes // _PIECES + 1
    pieces: list[Path] = []
    for path in sorted(Path(source.folder).glob("*.jsonl")):
        with path.open("rb") as lines:
            while block := lines.read(piece_bytes):
                piece = folder / f"{len(pieces):03d}.jsonl"
                # Complete the last line.
                piece.write_bytes(block + lines.readline())
                pieces.append(piece)
    return pieces


def print_measured(
    work: Path, megabytes: float, names: Sequence[str], worker_counts: Sequence[int]
) -> None:
    """Measure builds and bare loops on this machine, and print the table.

    Args:
        work: Work folder of the benchmark.
        megabytes: Size of the input in 10^6 bytes of text.
        names: Names of the tokenizers.
        worker_counts: Numbers of workers.
    """
    maker = InputMaker(work)
    source = maker.make(megabytes)
    pieces = _cut(work, source)
    print(f"{source.describe()}\n{os.cpu_count()} cores\n", flush=True)
    print(
        "| tokenizer | workers | build, s | bare loop, s | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    for tokenizer_name in names:
        vocabulary = obtain(tokenizer_name, work, maker)
        # Warm up: the first build compiles modules and fills caches.
        _time_build(work, source, vocabulary, max(worker_counts))
        for workers in worker_counts:
            # Both in turns, so that a change of the load affects both.
            wall = _time_build(work, source, vocabulary, workers)
            bare = _time_bare_loop(work, pieces, vocabulary, workers)
            print(
                f"| {tokenizer_name} | {workers} | {wall:.2f} | {bare:.2f} | {wall / bare:.2f} |",
                flush=True,
            )
    shutil.rmtree(work / "cores-pieces")
    shutil.rmtree(work / "cores-store", ignore_errors=True)


def print_simulated(
    work: Path, megabytes: float, names: Sequence[str], worker_counts: Sequence[int]
) -> None:
    """Measure the parts of a build, and print the table of simulated builds.

    Args:
        work: Work folder of the benchmark.
        megabytes: Size of the simulated input in 10^6 bytes of text.
        names: Names of the tokenizers.
        worker_counts: Numbers of workers.
    """
    maker = InputMaker(work)
    source = maker.make(_SAMPLE_MEGABYTES)
    # The sample is smaller than the simulated input, whose bytes of JSON Lines are
    # extrapolated.
    size = int(megabytes * 1e6 * source.file_bytes / source.text_bytes)
    fields = ("parent", "plan", "start", "gate", "warm", "unit", "bare_start")
    for tokenizer_name in names:
        vocabulary = obtain(tokenizer_name, work, maker)
        parts = measure_parts(work, source, vocabulary)
        # Print the times of the parts.
        times = [f"{field} {getattr(parts, field) * 1e3:.0f} ms" for field in fields]
        rates = f"{1e-6 / parts.byte:.0f} MB/s a worker, bare {1e-6 / parts.bare_byte:.0f} MB/s"
        print(f"\n{tokenizer_name}: {', '.join(times)}; {rates}\n")
        print_table(parts, size, worker_counts)


def print_table(parts: PartTimes, size: int, worker_counts: Sequence[int]) -> None:
    """Print the table of simulated builds.

    Each row has the build as it is, with workers that start late, and with the largest
    units first. A line with other unit sizes, for 16 workers, follows.

    Args:
        parts: Times of the parts.
        size: Bytes of the input.
        worker_counts: Numbers of workers.
    """
    # 1. A row for each number of workers.
    head = (
        "workers",
        "bare, s",
        "build, s",
        "ratio",
        "idle",
        "as it was, s",
        "ratio",
        "largest first, s",
    )
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    default_unit_size = choose_unit_size(size)
    sizes = unit_sizes(size, default_unit_size)
    for workers in worker_counts:
        bare = bare_wall(parts, size, workers)
        build = simulate(parts, sizes, workers)
        late_start = simulate(parts, sizes, workers, early=False)
        largest_first = simulate(parts, sizes, workers, largest_first=True)
        cells = [
            f"{workers}",
            f"{bare:.2f}",
            f"{build.wall:.2f}",
            f"{build.wall / bare:.2f}",
            f"{build.idle:.0%}",
            f"{late_start.wall:.2f}",
            f"{late_start.wall / bare:.2f}",
            f"{largest_first.wall:.2f}",
        ]
        print(f"| {' | '.join(cells)} |")
    # 2. Other unit sizes.
    print("\nunit sizes at 16 workers: ", end="")
    for mebibytes in (2, 4, 8, 16, 32, 64, 128):
        unit_size = mebibytes << 20
        wall = simulate(parts, unit_sizes(size, unit_size), 16).wall
        mark = " (default)" if unit_size == default_unit_size else ""
        print(f"{mebibytes} MiB {wall:.2f} s{mark}", end="; ")
    print()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, and print the measured or simulated table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores")
    default_folder = Path(tempfile.gettempdir(), "tokenlake-bench")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(os.environ.get("BENCH_DIR") or default_folder),
        help="work folder (default: that of the benchmark)",
    )
    parser.add_argument("--megabytes", type=float, default=MEGABYTES)
    parser.add_argument("--tokenizers", nargs="+", default=["gpt2", "llama2"])
    parser.add_argument("--workers", nargs="+", type=int)
    parser.add_argument("--simulate", action="store_true")
    # Simulate, or measure on this machine.
    options = parser.parse_args(arguments)
    work = options.dir.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if options.simulate:
        worker_counts = options.workers or SIMULATED
        print_simulated(work, options.megabytes, options.tokenizers, worker_counts)
    else:
        worker_counts = options.workers or MEASURED
        print_measured(work, options.megabytes, options.tokenizers, worker_counts)


if __name__ == "__main__":
    main()

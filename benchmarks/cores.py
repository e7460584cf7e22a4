"""Builds with 1, 2, 4, 8 and 16 workers beside a bare loop in as many processes; and
the same, simulated, up to 64.

``python -m benchmarks.cores`` measures the table on a machine with 16 cores, in less
than ten minutes: wall seconds of builds of 735 MB of JSON Lines with default options,
of the bare loop in as many processes, and their ratio.

``python -m benchmarks.cores --simulate`` writes the same table for any number of
workers on a machine with few cores. It measures the parts of a build one at a time, in
CPU seconds: imports, plan, gate, loading of a tokenizer, units. A simulated clock then
starts workers, gives them units by the library's own :class:`~tokenlake.etl.Schedule`,
and adds the commit. Its assumptions:

- Each worker has a core of its own, and cores do not slow each other down (memory,
  clock, disk).
- The process that plans files the records of units one at a time.
- The bare loop's input is dealt to its processes evenly, and they start at once.

The idle share is that of the worker slots, from the start of the command to its end, in
which nothing is built.
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
GOAL: Final = 1.1  # wall seconds over those of the bare loop, at 16 workers
_PIECES: Final = 64  # files that the bare loop's processes share
_SPAWN: Final = 0.003  # seconds that the parent takes to start one worker process
# Seconds that the parent takes for each unit: its job, its record, events.
_FILING: Final = 0.0006
_COMMIT: Final = 0.02  # seconds, and this for each unit:
_COMMIT_UNIT: Final = 0.0003
_SAMPLE_MEGABYTES: Final = 200.0  # that parts are measured on
_SIZES: Final = ("8MiB", "32MiB")


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds that the parts of a build take.

    Attributes:
        parent: Until the parent may start workers: interpreter, imports, configuration.
        plan: From there until the plan is claimed.
        start: Until a worker takes jobs.
        gate: To choose the engine.
        warm: To load what the first unit needs; without it the first unit takes as much
            longer.
        unit: Of any unit, beside those for each of its bytes.
        byte: For each byte of a unit.
        bare_start: Until a process of the bare loop reads its input.
        bare_byte: For each byte of the bare loop.
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
class Simulated:
    """What became of one simulated build.

    Attributes:
        wall: Seconds from the command to the commit.
        idle: Share of the slots' seconds in which nothing was built.
        first: Seconds until the first unit began.
    """

    wall: float
    idle: float
    first: float


def simulate(
    parts: Parts,
    sizes: Sequence[int],
    workers: int,
    *,
    early: bool = True,
    largest_first: bool = False,
) -> Simulated:
    """Build units of these sizes in so many workers, each on a core of its own.

    Args:
        parts: Seconds of the parts.
        sizes: Bytes of each unit, in plan order.
        workers: Number of workers.
        early: False starts all workers but the first when the plan is there, and has
            each load the tokenizer in its first unit.
        largest_first: Take the units in the order of their sizes.
    """
    order = (
        sorted(range(len(sizes)), key=lambda unit: -sizes[unit])
        if largest_first
        else range(len(sizes))
    )
    schedule = Schedule({unit: sizes[unit] for unit in order}, 0)
    workers = min(workers, len(sizes))
    planned = parts.parent + parts.plan
    gate_ends = max(planned, parts.parent + parts.start) + parts.gate

    # 1. When each worker is free for its first unit, and whether it has loaded the
    #    tokenizer by then.
    events: list[tuple[float, int, bool]] = [
        (gate_ends, 0, False)
    ]  # time, worker, whether it has a unit to file
    is_warm = [early] * workers
    is_warm[0] = True
    for number in range(1, workers):
        begin = (parts.parent if early else planned) + number * _SPAWN
        ready = begin + parts.start
        if early:
            ready = max(ready, planned) + parts.warm
        events.append((max(gate_ends, ready), number, False))
    heapq.heapify(events)

    # 2. Whoever is free takes the next unit. The parent files one record at a time, in
    #    the order in which they come.
    first, busy, filed = events[0][0], 0.0, 0.0
    while events:
        now, number, has_unit = heapq.heappop(events)
        if has_unit:
            filed = max(filed, now) + _FILING
            now = filed
        taken = schedule.take(now)
        if taken is None:
            continue
        seconds = parts.unit + parts.byte * sizes[taken[0]]
        busy += seconds
        if not is_warm[number]:
            is_warm[number] = True
            seconds += parts.warm
        heapq.heappush(events, (now + seconds, number, True))

    wall = filed + _COMMIT + _COMMIT_UNIT * len(sizes)
    return Simulated(wall, 1 - busy / (workers * wall), first)


def bare_wall(parts: Parts, size: int, processes: int) -> float:
    """Return the seconds of the bare loop over so many bytes, dealt evenly to its
    processes.
    """
    return parts.bare_start + parts.bare_byte * size / processes


def unit_sizes(size: int, unit_size: int, files: int = 8) -> list[int]:
    """Return the bytes of the units of some files of one size, each cut into units
    and what is left.
    """
    sizes: list[int] = []
    for _ in range(files):
        left = size // files
        while left > 0:
            sizes.append(min(left, unit_size))
            left -= unit_size
    return sizes


def measure_parts(work: Path, source: Input, vocabulary: Vocabulary) -> Parts:
    """Measure the parts of a build and of the bare loop, each in a process of its
    own.
    """
    env = builds.environment(work, work / "cores-cache")
    small: dict[str, Any] = {}
    large: dict[str, Any] = {}
    for name, unit_size in zip(("small", "large"), _SIZES, strict=True):
        config = builds.write_config(
            work / f"cores-{name}.json",
            source,
            vocabulary,
            work / "cores-store",
            unit_size,
        )
        command = [sys.executable, "-m", "benchmarks.systems.worker_parts", str(config)]
        found = _said([*command, "gate"], env)
        (small if name == "small" else large).update(found)
    warm = _said([*command, "warm"], env)
    # Two points of a line: the median unit of each size, but for the first, which loads
    # what comes with it.
    one, other = (_median_unit(found["units"]) for found in (small, large))
    byte = (other[1] - one[1]) / (other[0] - one[0])
    output = _fresh(work / "cores-bare")
    arguments = [source.folder, vocabulary.folder, vocabulary.eos, str(output), "1"]
    bare = _said(
        [sys.executable, "-m", "benchmarks.systems.bare_parts", *arguments], env
    )
    shutil.rmtree(output)
    shutil.rmtree(work / "cores-store", ignore_errors=True)
    imports = _said([sys.executable, "-c", _IMPORTS], env)
    return Parts(
        parent=imports["parent"],
        plan=small["plan"],
        start=imports["worker"],
        gate=small["gate"],
        warm=warm["warm"],
        unit=max(0.0, one[1] - byte * one[0]),
        byte=byte,
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


def _median_unit(units: Sequence[tuple[int, float]]) -> tuple[int, float]:
    whole = max(size for size, _ in units)
    seconds = sorted(seconds for size, seconds in units[1:] if size > 0.9 * whole)
    return whole, seconds[len(seconds) // 2]


def _said(command: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _timed(commands: Sequence[Sequence[str]], env: dict[str, str], log: Path) -> float:
    """Return the wall seconds of commands that run at the same time."""
    began = time.monotonic()
    with log.open("wb") as sink:
        running = [
            subprocess.Popen(
                command,
                env=env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
            for command in commands
        ]
        codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError(f"a run ended with {max(codes)}; its output is in {log}")
    return time.monotonic() - began


def _build(work: Path, source: Input, vocabulary: Vocabulary, workers: int) -> float:
    shutil.rmtree(work / "cores-store", ignore_errors=True)
    config = builds.write_config(
        work / "cores.json", source, vocabulary, work / "cores-store"
    )
    env = builds.environment(work, work / "cores-cache")
    return _timed([builds.library_command(config, workers)], env, work / "cores.log")


def _bare(
    work: Path, pieces: Sequence[Path], vocabulary: Vocabulary, processes: int
) -> float:
    commands: list[list[str]] = []
    for number in range(processes):
        folder = _fresh(work / "cores-shares" / str(number))
        for piece in pieces[number::processes]:
            os.link(piece, folder / piece.name)
        output = _fresh(work / "cores-bare" / str(number))
        module = ["-m", "benchmarks.systems.bare_gigatoken"]
        arguments = [str(folder), vocabulary.folder, vocabulary.eos, str(output), "1"]
        commands.append([sys.executable, *module, *arguments])
    env = builds.environment(work, work / "cores-cache")
    try:
        return _timed(commands, env, work / "cores-bare.log")
    finally:
        shutil.rmtree(work / "cores-shares")
        shutil.rmtree(work / "cores-bare")


def _cut(work: Path, source: Input) -> list[Path]:
    """Cut an input into many files of about one size, at ends of lines."""
    folder = _fresh(work / "cores-pieces")
    size = source.file_bytes // _PIECES + 1
    pieces: list[Path] = []
    for path in sorted(Path(source.folder).glob("*.jsonl")):
        with path.open("rb") as lines:
            while block := lines.read(size):
                piece = folder / f"{len(pieces):03d}.jsonl"
                piece.write_bytes(block + lines.readline())
                pieces.append(piece)
    return pieces


def print_measured(
    work: Path, megabytes: float, names: Sequence[str], counts: Sequence[int]
) -> None:
    """Print the table of what this machine takes."""
    maker = InputMaker(work)
    source = maker.make(megabytes)
    pieces = _cut(work, source)
    print(f"{source.describe()}\n{os.cpu_count()} cores\n", flush=True)
    print(
        "| tokenizer | workers | build, s | bare loop, s | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    for name in names:
        vocabulary = obtain(name, work, maker)
        _build(work, source, vocabulary, max(counts))  # what is compiled or cached once
        for workers in counts:
            wall = _build(work, source, vocabulary, workers)
            bare = _bare(work, pieces, vocabulary, workers)
            print(
                f"| {name} | {workers} | {wall:.2f} | {bare:.2f} | {wall / bare:.2f} |",
                flush=True,
            )
    shutil.rmtree(work / "cores-pieces")
    shutil.rmtree(work / "cores-store", ignore_errors=True)


def print_simulated(
    work: Path, megabytes: float, names: Sequence[str], counts: Sequence[int]
) -> None:
    """Measure parts, and print the table of simulated builds."""
    maker = InputMaker(work)
    source = maker.make(_SAMPLE_MEGABYTES)
    size = int(megabytes * 1e6 * source.file_bytes / source.text_bytes)
    for name in names:
        vocabulary = obtain(name, work, maker)
        parts = measure_parts(work, source, vocabulary)
        told = ", ".join(
            f"{field} {getattr(parts, field) * 1e3:.0f} ms"
            for field in (
                "parent",
                "plan",
                "start",
                "gate",
                "warm",
                "unit",
                "bare_start",
            )
        )
        rates = f"{1e-6 / parts.byte:.0f} MB/s a worker, bare {1e-6 / parts.bare_byte:.0f} MB/s"
        print(f"\n{name}: {told}; {rates}\n")
        print_table(parts, size, counts)


def print_table(parts: Parts, size: int, counts: Sequence[int]) -> None:
    """Print walls and idle shares for each number of workers, now and as it was, and
    for other units at 16.
    """
    default = choose_unit_size(size)
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
    sizes = unit_sizes(size, default)
    for workers in counts:
        bare = bare_wall(parts, size, workers)
        now = simulate(parts, sizes, workers)
        before = simulate(parts, sizes, workers, early=False)
        sorted_ = simulate(parts, sizes, workers, largest_first=True)
        cells = [
            f"{workers}",
            f"{bare:.2f}",
            f"{now.wall:.2f}",
            f"{now.wall / bare:.2f}",
            f"{now.idle:.0%}",
        ]
        cells += [
            f"{before.wall:.2f}",
            f"{before.wall / bare:.2f}",
            f"{sorted_.wall:.2f}",
        ]
        print(f"| {' | '.join(cells)} |")
    print("\nunit sizes at 16 workers: ", end="")
    for unit_size in (2, 4, 8, 16, 32, 64, 128):
        wall = simulate(parts, unit_sizes(size, unit_size << 20), 16).wall
        mark = " (default)" if unit_size << 20 == default else ""
        print(f"{unit_size} MiB {wall:.2f} s{mark}", end="; ")
    print()


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores")
    work = Path(
        os.environ.get("BENCH_DIR") or Path(tempfile.gettempdir(), "tokenlake-bench")
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=work,
        help="work folder (default: as of the benchmark)",
    )
    parser.add_argument("--megabytes", type=float, default=MEGABYTES)
    parser.add_argument("--tokenizers", nargs="+", default=["gpt2", "llama2"])
    parser.add_argument("--workers", nargs="+", type=int)
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args(arguments)
    work = options.dir.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if options.simulate:
        print_simulated(
            work, options.megabytes, options.tokenizers, options.workers or SIMULATED
        )
    else:
        print_measured(
            work, options.megabytes, options.tokenizers, options.workers or MEASURED
        )


if __name__ == "__main__":
    main()

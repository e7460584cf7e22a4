"""Documents in buckets beside the same documents packed: ids per CPU second of whole
processes, and padding.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import Input
from benchmarks.loader_input import CORPUS, LoaderInput, build
from benchmarks.measure import measure
from benchmarks.vocabularies import Vocabulary

DOCUMENTS: Final = "documents"
BUCKETS: Final = 24
SHARE: Final = 0.6  # of the rate of packed rows, at least


def measure_ragged(
    work: Path,
    source: Input,
    vocabulary: Vocabulary,
    given: LoaderInput,
    passes: int,
    repeats: int,
) -> tuple[list[Goal], list[str]]:
    """A goal for the share of the packed rate, and a note with both rates and the
    padding.
    """
    parts = sorted(Path(source.folder).glob("*.jsonl"))
    build(work, Path(given.folder), DOCUMENTS, parts, vocabulary, seq_length=None)
    rates: dict[str, list[float]] = {CORPUS: [], DOCUMENTS: []}
    padding = 0.0
    for turn in range(repeats):
        for name, found in rates.items():
            rate, padding = _once(work, given, name, passes)
            found.append(rate)
            print(
                f"loader, {name} {turn + 1}/{repeats}: {rate:.1f}",
                file=sys.stderr,
                flush=True,
            )
    share = statistics.median(
        ours / packed
        for ours, packed in zip(rates[DOCUMENTS], rates[CORPUS], strict=True)
    )
    shown = ", ".join(
        f"{name} {statistics.median(found):.1f}" for name, found in rates.items()
    )
    goal = Goal(
        "documents in buckets / packed rows: ids, whole processes",
        share,
        "at least",
        SHARE,
        "x",
    )
    note = f"Mtok per CPU s that are no padding, four columns, {passes} epochs: {shown}"
    return [goal], [
        f"{note}; {padding:.1%} of what {BUCKETS} buckets deliver is padding"
    ]


def _once(
    work: Path, given: LoaderInput, name: str, passes: int
) -> tuple[float, float]:
    """Return Mtok per CPU second of a fresh process, and the share of padding."""
    log = work / "logs" / f"loader-ragged-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.systems.loader_ragged"]
    env = builds.environment(work, work / "scratch" / "hash-cache")
    run = measure(
        [*command, str(given.store), name, str(passes), str(BUCKETS)],
        report=log.with_suffix(".json"),
        log=log,
        env=env,
    )
    lines = log.read_text(errors="replace").strip().splitlines()
    if run.exit_code:
        raise RuntimeError(
            f"exit code {run.exit_code}: {' / '.join(lines[-2:])[-300:]} (output: {log})"
        )
    found = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    return found["ids"] / run.cpu / 1e6, 1 - found["ids"] / found["cells"]

"""Several hosts: what share of the row groups does each decode, and how much more
has the dearest rank to do?
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import tokenlake as tl
from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.loader_many import multiply
from benchmarks.measure import ROOT
from benchmarks.systems.loader_sink import LENGTH

HOSTS: Final = (1, 2, 4, 8)
FACTOR: Final = 1.2  # times 1 / H, at most
COPIES: Final = 4  # of each shard, in a dataset of an ordinary number of row groups
LARGE: Final = "large"
_WHAT: Final = {
    "ids": CORPUS,
    "large": f"{CORPUS} {COPIES} times",
    "mixture": "mixture of three",
}

RANKS: Final = ((8, 8), (8, 32), (64, 8), (64, 32))
"""Of data parallelism, and the rows of each."""
APART: Final = 1.05  # times the mean cost of a rank, at most
DEALING: Final = 0.01  # of a loader's CPU, at most

Account = Mapping[str, int]


def measure_hosts(work: Path, given: LoaderInput) -> tuple[list[Goal], list[str]]:
    """A goal for each number of hosts; a note with the row groups that each decoded.

    The last batch of an epoch is not full, and its rows are of all lanes: so few row
    groups more on each host show in a small dataset, which is therefore measured beside
    a larger one, the same shards several times.
    """
    large = given.store / LARGE / "v1"
    multiply(given.version, large, COPIES)
    goals: list[Goal] = []
    notes: list[str] = []
    for variant, what in _WHAT.items():
        found = _run(work, given, variant)
        print(f"loader, hosts: {what}", file=sys.stderr, flush=True)
        goals += [_goal(what, int(hosts), each) for hosts, each in found.items()]
        shown = "; ".join(
            f"{hosts}: {', '.join(str(one['groups']) for one in each)}"
            for hosts, each in found.items()
        )
        notes.append(
            f"Row groups decoded by each host in an epoch, {what}, by number of hosts: {shown}"
        )
    return goals, notes


def _run(
    work: Path, given: LoaderInput, variant: str
) -> Mapping[str, Sequence[Account]]:
    program = [
        sys.executable,
        "-m",
        "benchmarks.systems.loader_hosts",
        str(given.store),
        variant,
    ]
    env = builds.environment(work, work / "scratch" / "hash-cache")
    done = subprocess.run(
        [*program, *map(str, HOSTS)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"loader_hosts failed: {done.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _goal(what: str, hosts: int, each: Sequence[Account]) -> Goal:
    """Rows of the row groups that the busiest host decoded, over all rows that the
    hosts delivered together.
    """
    delivered = sum(one["delivered"] for one in each)
    share = max(one["rows"] for one in each) / delivered
    size = (
        f"{what}, {delivered * LENGTH / 1e6:.0f} Mtok, {hosts} host{'s' * (hosts > 1)}"
    )
    return Goal(
        f"{size}: share decoded by the busiest, times {hosts}",
        share * hosts,
        "at most",
        FACTOR,
        "x",
    )


def measure_balance(given: LoaderInput) -> tuple[list[Goal], list[str]]:
    """Goals for the cost of the dearest rank, and for what dealing costs; a note
    with the cost before.
    """
    data = tl.open(str(given.store), CORPUS)
    goals: list[Goal] = []
    before: list[str] = []
    for ranks, rows in RANKS:
        shape = f"{ranks} ranks of {rows} rows"
        plain, even = (_apart(data, ranks, rows, dealt) for dealt in (False, True))
        before.append(f"{shape}: {plain:.3f}")
        goals.append(
            Goal(
                f"{CORPUS}, {shape}: cost of the dearest rank, balanced",
                even,
                "at most",
                APART,
                " means",
            )
        )
        share = _dealing(data, ranks, rows)
        goals.append(
            Goal(
                f"{CORPUS}, {shape}: CPU of a loader more, balanced",
                share * 100,
                "at most",
                DEALING * 100,
                "%",
            )
        )
    return goals, [
        f"Attention of the dearest rank over the mean, not balanced: {'; '.join(before)}"
    ]


def _apart(data: tl.Dataset, ranks: int, rows: int, dealt: bool) -> float:
    """Return the cost of the dearest rank over the mean, in the mean of the full
    batches of an epoch.
    """
    loader = tl.DataLoader(
        data,
        min(ranks * rows, len(data) // ranks * ranks),
        drop_last=True,
        columns=("segment_ids",),
        balance={"ranks": ranks} if dealt else None,
    )
    each = [
        _costs(batch["segment_ids"]).reshape(ranks, -1).sum(axis=1) for batch in loader
    ]
    return float(np.mean([totals.max() / totals.mean() for totals in each]))


def _costs(segment_ids: Any) -> Any:
    """The squared lengths of each row's segments, summed up, int64[rows]."""
    bins = int(segment_ids.max()) + 1
    numbers = (segment_ids + np.arange(len(segment_ids))[:, None] * bins).reshape(-1)
    counted = np.bincount(numbers, minlength=len(segment_ids) * bins).reshape(-1, bins)
    return np.square(counted[:, 1:]).sum(axis=1)


def _dealing(data: tl.Dataset, ranks: int, rows: int) -> float:
    """Return how much more CPU an epoch takes where ranks are balanced: the median
    of pairs that take turns.
    """
    pairs = [
        tuple(_cpu(data, ranks, rows, dealt) for dealt in (False, True))
        for _ in range(7)
    ]
    return float(np.median([dealt / plain for plain, dealt in pairs])) - 1


def _cpu(data: tl.Dataset, ranks: int, rows: int, dealt: bool) -> float:
    loader = tl.DataLoader(
        data,
        ranks * rows,
        epochs=2,
        prefetch=0,
        workers=0,
        balance={"ranks": ranks} if dealt else None,
    )
    begun = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - begun

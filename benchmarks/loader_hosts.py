"""Several hosts: what share of the row groups does each decode?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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
_WHAT: Final = {"ids": CORPUS, "large": f"{CORPUS} {COPIES} times", "mixture": "mixture of three"}

Account = Mapping[str, int]


def measure_hosts(work: Path, given: LoaderInput) -> tuple[list[Goal], list[str]]:
    """A goal for each number of hosts; a note with the row groups that each decoded.

    The last batch of an epoch is not full, and its rows are of all lanes: so few row groups more on each host show in a
    small dataset, which is therefore measured beside a larger one, the same shards several times.
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
            f"{hosts}: {', '.join(str(one['groups']) for one in each)}" for hosts, each in found.items()
        )
        notes.append(f"Row groups decoded by each host in an epoch, {what}, by number of hosts: {shown}")
    return goals, notes


def _run(work: Path, given: LoaderInput, variant: str) -> Mapping[str, Sequence[Account]]:
    program = [sys.executable, "-m", "benchmarks.systems.loader_hosts", str(given.store), variant]
    env = builds.environment(work, work / "scratch" / "hash-cache")
    done = subprocess.run([*program, *map(str, HOSTS)], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"loader_hosts failed: {done.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _goal(what: str, hosts: int, each: Sequence[Account]) -> Goal:
    """Rows of the row groups that the busiest host decoded, over all rows that the hosts delivered together."""
    delivered = sum(one["delivered"] for one in each)
    share = max(one["rows"] for one in each) / delivered
    size = f"{what}, {delivered * LENGTH / 1e6:.0f} Mtok, {hosts} host{'s' * (hosts > 1)}"
    return Goal(f"{size}: share decoded by the busiest, times {hosts}", share * hosts, "at most", FACTOR, "x")

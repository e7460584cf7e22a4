"""Work of several hosts and ranks.

Measured are the share of the row groups that each host decodes, and the cost of the
most expensive rank.
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
"""Numbers of hosts."""

MOST_HOST_SHARE: Final = 1.2
"""Largest share of the rows that a host decodes, times the number of hosts."""

COPIES: Final = 4
"""Copies of each shard in a dataset of an ordinary number of row groups."""

LARGE: Final = "large"
"""Name of that dataset."""

_DESCRIPTIONS: Final = {
    "ids": CORPUS,
    "large": f"{CORPUS} {COPIES} times",
    "mixture": "mixture of three",
}
"""Variant of the measured program -> description of its data."""

RANKS: Final = ((8, 8), (8, 32), (64, 8), (64, 32))
"""Numbers of ranks of data parallelism, each with the rows of a rank."""

MOST_RANK_COST: Final = 1.05
"""Largest cost of a rank, over the mean."""

MOST_BALANCING_SHARE: Final = 0.01
"""Most CPU time of balancing, over that of a loader without it."""

_PAIRS: Final = 7
"""Number of pairs of epochs, one of them with balanced ranks."""

HostFigures = Mapping[str, int]
"""Figures that one host prints: `groups` and `rows` that it decoded, and rows that it
`delivered`.
"""


def measure_hosts(
    work: Path, loader_input: LoaderInput
) -> tuple[list[Goal], list[str]]:
    """Count the row groups that each host decodes in an epoch.

    The last batch of an epoch is not full, and its rows come from all lanes. It makes
    every host decode a few row groups more, which is much for a small dataset.
    Therefore a larger dataset is measured, too: the same shards several times.

    Args:
        work: Folder for all files of the benchmark.
        loader_input: Datasets to read.

    Returns:
        A goal for each number of hosts, and a note on each dataset.
    """
    multiply(loader_input.version, loader_input.store / LARGE / "v1", COPIES)
    goals: list[Goal] = []
    notes: list[str] = []
    for variant, description in _DESCRIPTIONS.items():
        # One run of the program covers all numbers of hosts.
        figures_of_hosts = _run_hosts(work, loader_input, variant)
        print(f"loader, hosts: {description}", file=sys.stderr, flush=True)
        # Judge the busiest host, and note the row groups of all hosts.
        decoded_groups: list[str] = []
        for hosts, figures in figures_of_hosts.items():
            goals.append(_host_goal(description, int(hosts), figures))
            groups = [str(host["groups"]) for host in figures]
            decoded_groups.append(f"{hosts}: {', '.join(groups)}")
        notes.append(
            f"Row groups decoded by each host in an epoch, {description}, by number of hosts: "
            f"{'; '.join(decoded_groups)}"
        )
    return goals, notes


def _run_hosts(
    work: Path, loader_input: LoaderInput, variant: str
) -> Mapping[str, Sequence[HostFigures]]:
    """Return number of hosts -> figures of each host.

    Raises:
        RuntimeError: The measured program failed.
    """
    program = [sys.executable, "-m", "benchmarks.systems.loader_hosts"]
    numbers = [str(hosts) for hosts in HOSTS]
    process = subprocess.run(
        [*program, str(loader_input.store), variant, *numbers],
        cwd=ROOT,
        env=builds.environment(work, work / "scratch" / "hash-cache"),
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(f"loader_hosts failed: {process.stderr.strip()[-400:]}")
    # The figures are the last line of the output.
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def _host_goal(description: str, hosts: int, figures: Sequence[HostFigures]) -> Goal:
    """Return the goal for the host that decodes most.

    Its share is the rows of the row groups that it decoded, over all rows that the
    hosts delivered together.

    Args:
        description: Description of the data.
        hosts: Number of hosts.
        figures: Figures of each host.
    """
    delivered_rows = sum(host["delivered"] for host in figures)
    largest_share = max(host["rows"] for host in figures) / delivered_rows
    mtok = delivered_rows * LENGTH / 1e6
    unit = "host" if hosts == 1 else "hosts"
    return Goal(
        f"{description}, {mtok:.0f} Mtok, {hosts} {unit}: share decoded by the busiest, times {hosts}",
        largest_share * hosts,
        "at most",
        MOST_HOST_SHARE,
        "x",
    )


def measure_balance(loader_input: LoaderInput) -> tuple[list[Goal], list[str]]:
    """Measure the cost of the most expensive rank, and the CPU time of balancing.

    Args:
        loader_input: Dataset to read.

    Returns:
        Two goals for each number of ranks, and a note on the cost without balancing.
    """
    dataset = tl.open(str(loader_input.store), CORPUS)
    goals: list[Goal] = []
    unbalanced_costs: list[str] = []
    for ranks, rank_rows in RANKS:
        shape = f"{ranks} ranks of {rank_rows} rows"
        # Cost of attention, which is known without running a model.
        unbalanced_cost = _largest_cost(dataset, ranks, rank_rows, is_balanced=False)
        balanced_cost = _largest_cost(dataset, ranks, rank_rows, is_balanced=True)
        unbalanced_costs.append(f"{shape}: {unbalanced_cost:.3f}")
        goals.append(
            Goal(
                f"{CORPUS}, {shape}: cost of the most expensive rank / mean, balanced",
                balanced_cost,
                "at most",
                MOST_RANK_COST,
                "x",
            )
        )
        goals.append(
            Goal(
                f"{CORPUS}, {shape}: added CPU time of a loader, balanced",
                _balancing_share(dataset, ranks, rank_rows) * 100,
                "at most",
                MOST_BALANCING_SHARE * 100,
                "%",
            )
        )
    note = f"Attention cost of the most expensive rank / mean, not balanced: {'; '.join(unbalanced_costs)}"
    return goals, [note]


def _balance(ranks: int, *, is_balanced: bool) -> dict[str, int] | None:
    """Return the loader's option `balance`."""
    if is_balanced:
        return {"ranks": ranks}
    return None


def _largest_cost(
    dataset: tl.Dataset, ranks: int, rows: int, *, is_balanced: bool
) -> float:
    """Return the cost of the most expensive rank over the mean.

    It is the mean over the full batches of an epoch.

    Args:
        dataset: Dataset to read.
        ranks: Number of ranks.
        rows: Number of rows of a rank.
        is_balanced: Whether the loader balances the ranks.
    """
    # A small dataset may have fewer rows than a batch.
    loader = tl.DataLoader(
        dataset,
        min(ranks * rows, len(dataset) // ranks * ranks),
        drop_last=True,
        columns=("segment_ids",),
        balance=_balance(ranks, is_balanced=is_balanced),
    )
    ratios: list[float] = []
    for batch in loader:
        # Rows of a rank follow each other in the batch.
        costs = _costs(batch["segment_ids"]).reshape(ranks, -1).sum(axis=1)
        ratios.append(costs.max() / costs.mean())
    return float(np.mean(ratios))


def _costs(segment_ids: Any) -> Any:
    """Return the cost of attention of each row, int64[rows].

    It is the sum of the squared lengths of the row's segments. Padding, segment 0, has
    no cost.

    Args:
        segment_ids: Segment of each id, int32[rows, L].
    """
    row_count = len(segment_ids)
    # Number the segments of all rows, to count their ids at once.
    bins = int(segment_ids.max()) + 1
    segments = (segment_ids + np.arange(row_count)[:, None] * bins).reshape(-1)
    lengths = np.bincount(segments, minlength=row_count * bins).reshape(-1, bins)
    return np.square(lengths[:, 1:]).sum(axis=1)


def _balancing_share(dataset: tl.Dataset, ranks: int, rows: int) -> float:
    """Return the added CPU time of balancing, over that of a loader without it.

    It is the median of pairs that take turns.

    Args:
        dataset: Dataset to read.
        ranks: Number of ranks.
        rows: Number of rows of a rank.
    """
    ratios: list[float] = []
    for _ in range(_PAIRS):
        unbalanced_seconds = _cpu_seconds(dataset, ranks, rows, is_balanced=False)
        balanced_seconds = _cpu_seconds(dataset, ranks, rows, is_balanced=True)
        ratios.append(balanced_seconds / unbalanced_seconds)
    return float(np.median(ratios)) - 1


def _cpu_seconds(
    dataset: tl.Dataset, ranks: int, rows: int, *, is_balanced: bool
) -> float:
    """Return the CPU seconds of two epochs.

    Args:
        dataset: Dataset to read.
        ranks: Number of ranks.
        rows: Number of rows of a rank.
        is_balanced: Whether the loader balances the ranks.
    """
    loader = tl.DataLoader(
        dataset,
        ranks * rows,
        epochs=2,
        prefetch=0,
        workers=0,
        balance=_balance(ranks, is_balanced=is_balanced),
    )
    # Without threads, all work is in this one.
    start = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - start

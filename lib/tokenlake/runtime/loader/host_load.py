"""How much the first of several hosts reads, from the plan alone: no file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.steps import BatchStep, rows_of_host

_AT_ONCE: Final = 256  # batches that are looked up together
MOST_ROWS: Final = 1 << 20
"""Rows of an epoch that are looked at."""


@final
@dataclass(frozen=True, slots=True)
class HostLoad:
    """What the first of several hosts reads for the first steps of an epoch; the others read about as much.

    Attributes:
        hosts: how many there are.
        steps: how many were looked at.
        groups: row groups that it decodes, each once.
        decoded: rows of these row groups.
        delivered: rows of its batches.
        bytes: of these row groups in their files, by the mean of each file.
    """

    hosts: int
    steps: int
    groups: int
    decoded: int
    delivered: int
    bytes: int


def host_load(plan: BatchPlan, hosts: int, *, most_rows: int = MOST_ROWS) -> HostLoad:
    """Return what the first of `hosts` hosts reads; no file is opened for it.

    Args:
        plan: of a loader, of all hosts.
        hosts: a divisor of every batch size.
        most_rows: steps are looked at until they have so many rows of all hosts.

    Raises:
        ConfigError: batches cannot be cut into so many parts.
    """
    wanted = rows_of_host((0, hosts), plan.common_rows)
    read = wanted if plan.ranks is None else rows_of_host(None, plan.common_rows)
    # 1. The first steps of the epoch.
    steps: list[BatchStep] = []
    position = plan.begin(0)
    while position.rows < most_rows:
        step = plan.steps.next(position)
        if step is None:
            break
        steps.append(step)
        position = step.after
    # 2. The row groups of their rows, numbered over all sources.
    first_groups = offsets_of([len(rows.group_rows) for rows in plan.sources])
    needed: list[Int64] = []
    for begin in range(0, len(steps), _AT_ONCE):
        located = plan.rows(steps[begin : begin + _AT_ONCE], read)
        numbers = np.concatenate([first_groups[rows.source] + rows.group for rows in located])
        needed.append(np.unique(numbers))
    groups: list[int] = np.unique(np.concatenate(needed)).tolist()
    # 3. The rows and bytes of these row groups, each decoded once.
    decoded_rows = 0
    decoded_bytes = 0
    for number in groups:
        source = int(np.searchsorted(first_groups, number, side="right")) - 1
        stored = plan.sources[source]
        group = number - int(first_groups[source])
        group_rows = int(stored.group_rows[group])
        shard, _ = stored.shard_of(group)
        decoded_rows += group_rows
        decoded_bytes += shard.bytes * group_rows // shard.rows
    delivered_rows = sum(int(np.searchsorted(wanted(step.size), step.rows)) for step in steps)
    return HostLoad(
        hosts=hosts,
        steps=len(steps),
        groups=len(groups),
        decoded=decoded_rows,
        delivered=delivered_rows,
        bytes=decoded_bytes,
    )

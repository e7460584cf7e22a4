"""How much the first of several hosts reads, from the plan alone: no file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from tokenlake.arrays import Int64, offsets_of
from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.steps import BatchStep, rows_of_host

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
    steps, position = list[BatchStep](), plan.begin(0)
    while position.rows < most_rows and (step := plan.steps.next(position)) is not None:
        steps.append(step)
        position = step.after
    first, needed = offsets_of([len(rows.group_rows) for rows in plan.sources]), list[Int64]()
    for begin in range(0, len(steps), _AT_ONCE):
        found = plan.rows(steps[begin : begin + _AT_ONCE], read)
        needed.append(np.unique(np.concatenate([first[rows.source] + rows.group for rows in found])))
    groups, decoded, bytes_ = np.unique(np.concatenate(needed)).tolist(), 0, 0
    for number in groups:
        source = int(np.searchsorted(first, number, side="right")) - 1
        stored, group = plan.sources[source], number - int(first[source])
        rows, (shard, _) = int(stored.group_rows[group]), stored.shard_of(group)
        decoded, bytes_ = decoded + rows, bytes_ + shard.bytes * rows // shard.rows
    delivered = sum(int(np.searchsorted(wanted(step.size), step.rows)) for step in steps)
    return HostLoad(hosts, len(steps), len(groups), decoded, delivered, bytes_)

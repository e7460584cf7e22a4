"""Amount of data that the first of several hosts reads, computed from the plan.

No file is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.runtime.loader.plan import BatchPlan
from tokenlake.runtime.loader.steps import BatchStep, rows_of_host

_BATCHES_AT_ONCE: Final = 256
"""Batches whose rows are located in one call."""

MOST_ROWS: Final = 1 << 20
"""Rows of an epoch that are counted."""


@final
@dataclass(frozen=True, slots=True)
class HostLoad:
    """Data that the first of several hosts reads for the first steps of an epoch.

    The others read about as much.

    Attributes:
        hosts: Number of hosts.
        steps: Number of steps that were counted.
        groups: Number of row groups that the host decodes, each once.
        decoded: Number of rows of these row groups.
        delivered: Number of rows of the host's batches.
        bytes: Size of these row groups in their files, estimated from the mean of each
            file.
    """

    hosts: int
    steps: int
    groups: int
    decoded: int
    delivered: int
    bytes: int


def host_load(plan: BatchPlan, hosts: int, *, most_rows: int = MOST_ROWS) -> HostLoad:
    """Return the amount of data that the first of several hosts reads.

    Args:
        plan: Plan of all hosts.
        hosts: Number of hosts, a divisor of every batch size.
        most_rows: Number of rows of all hosts, up to which steps are counted.

    Raises:
        ConfigError: Batches cannot be divided into as many parts.
    """
    rows_to_deliver = rows_of_host((0, hosts), plan.common_rows)
    rows_to_read = rows_to_deliver
    if plan.ranks is not None:  # the costs of all rows decide which are the host's
        rows_to_read = rows_of_host(None, plan.common_rows)
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
    for begin in range(0, len(steps), _BATCHES_AT_ONCE):
        located = plan.rows(steps[begin : begin + _BATCHES_AT_ONCE], rows_to_read)
        numbers = np.concatenate(
            [first_groups[rows.source] + rows.group for rows in located]
        )
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
    # 4. The rows of the host's batches, padding left out.
    delivered_rows = 0
    for step in steps:
        delivered_rows += int(np.searchsorted(rows_to_deliver(step.size), step.rows))
    return HostLoad(
        hosts=hosts,
        steps=len(steps),
        groups=len(groups),
        decoded=decoded_rows,
        delivered=delivered_rows,
        bytes=decoded_bytes,
    )

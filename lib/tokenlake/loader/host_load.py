"""How much each of several hosts reads: the order is a function, so that this is known before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from tokenlake.loader.plan import BatchPlan
from tokenlake.loader.steps import BatchStep, RowsOfBatch, rows_of_host
from tokenlake.ragged import Int64, offsets_of

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
    """Return what the first of `hosts` hosts reads.

    Args:
        plan: of a loader, of all hosts.
        hosts: a divisor of every batch size.
        most_rows: steps are looked at until they have so many rows of all hosts.

    Raises:
        ConfigError: batches cannot be cut into so many parts.
    """
    wanted = rows_of_host((0, hosts), plan.common_rows)
    read = wanted if plan.ranks is None else rows_of_host(None, plan.common_rows)
    steps = list(_first_steps(plan, most_rows))
    first = offsets_of([len(rows.group_rows) for rows in plan.sources])
    delivered, needed = 0, list[Int64]()
    for begin in range(0, len(steps), _AT_ONCE):
        some = steps[begin : begin + _AT_ONCE]
        delivered += sum(int(np.searchsorted(wanted(step.size), step.rows)) for step in some)
        needed.append(_groups(plan, some, read, first))
    found = np.unique(np.concatenate(needed)).tolist()
    sizes = [_size(plan, first, number) for number in found]
    decoded, bytes_ = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0)
    return HostLoad(hosts, len(steps), len(found), decoded, delivered, bytes_)


def _first_steps(plan: BatchPlan, most_rows: int) -> Iterator[BatchStep]:
    position = plan.begin(0)
    while position.rows < most_rows and (step := plan.next(position)) is not None:
        yield step
        position = step.after


def _groups(plan: BatchPlan, steps: list[BatchStep], read: RowsOfBatch, first: Int64) -> Int64:
    """Return the numbers of the row groups of what is read in steps, over all sources."""
    found = plan.rows(steps, read)
    return np.unique(np.concatenate([first[rows.source] + rows.group for rows in found]))


def _size(plan: BatchPlan, first: Int64, number: int) -> tuple[int, int]:
    """Return the rows of a row group, and about how many bytes it has in its file."""
    source = int(np.searchsorted(first, number, side="right")) - 1
    stored, group = plan.sources[source], number - int(first[source])
    rows, (shard, _) = int(stored.group_rows[group]), stored.shard_of(group)
    return rows, shard.bytes * rows // shard.rows

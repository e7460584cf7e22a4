"""Where a reader of a source stands, and its rows from there on: all of them, or one reader's share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class RowPosition(NamedTuple):
    """A row of an epoch, or the position behind one.

    Attributes:
        ordinal: rows of the epoch before it, in the shards that are read.
        shard: place of its shard; 0 where a source has none.
        number: of the row in its shard.
        passed: rows of the same number before it: an expanding transform makes several of one.
    """

    ordinal: int = 0
    shard: int = 0
    number: int = 0
    passed: int = 0

    @property
    def behind(self) -> RowPosition:
        """Right behind this row."""
        return RowPosition(self.ordinal + 1, self.shard, self.number, self.passed + 1)


class Share(NamedTuple):
    """What one of several readers reads: all of them together read every row once.

    Attributes:
        reader: its number, from 0 on.
        readers: how many there are.
    """

    reader: int = 0
    readers: int = 1


class _Shards(Protocol):
    @property
    def shard_names(self) -> Sequence[str]: ...

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Iterator[tuple[int, dict[str, Any]]]: ...


Placed = Iterator[tuple[RowPosition, dict[str, Any]]]
"""Rows, each with its position."""


def positioned(source: _Shards, start: RowPosition, share: Share) -> Placed:
    """Yield the rows of a share from a position on.

    Where there are as many shards as readers, reader i of n has the shards i, i + n, ...; else every reader draws all
    rows and has the rows i, i + n, ... of them. Shards are opened right at a row, as well as they can: files of blocks
    and lines seek, a mixture lets each of its sources seek, a packed source packs again what comes before.
    """
    strides = len(source.shard_names) < share.readers
    ordinal = start.ordinal
    for shard, name in list(enumerate(source.shard_names))[start.shard :]:
        if not strides and shard % share.readers != share.reader:
            continue
        first = start.number if shard == start.shard else 0
        last = passed = -1
        for number, row in source.open_shard_numbered(name, first):
            passed = passed + 1 if number == last else 0
            last = number
            if shard == start.shard and number == start.number and passed < start.passed:
                continue
            if not strides or ordinal % share.readers == share.reader:
                yield RowPosition(ordinal, shard, number, passed), row
            ordinal += 1

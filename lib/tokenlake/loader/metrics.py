"""What a loader did and how long a trainer waited for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self, final

from tokenlake.metrics import Metric
from tokenlake.reading.cache import Decoded


@final
@dataclass(slots=True)
class Spent:
    """Batches and rows that were delivered, and seconds that they were waited for."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.batches += 1
        self.rows += rows
        self.seconds += seconds


@final
@dataclass(frozen=True, slots=True)
class LoaderMetrics:
    """Figures of one loader on one host. Iterating gives each as a :class:`tokenlake.metrics.Metric`.

    Attributes:
        batches, rows: delivered; with `sharding` the rows are those of the global batches.
        wait_seconds: that the consumer waited for batches; near 0 where the loader keeps up.
        decode_seconds: that threads spent on reading and decoding row groups, summed over the threads.
        groups, group_hits: row groups that were decoded, and those that were there already.
        decoded_rows, decoded_bytes: of the decoded row groups.
    """

    batches: int
    rows: int
    wait_seconds: float
    decode_seconds: float
    groups: int
    group_hits: int
    decoded_rows: int
    decoded_bytes: int

    @classmethod
    def of(cls, spent: Spent, decoded: Decoded) -> Self:
        """Return the figures of what was delivered and decoded."""
        groups = (decoded.groups, decoded.hits, decoded.rows, decoded.bytes)
        return cls(spent.batches, spent.rows, spent.seconds, decoded.seconds, *groups)

    def __iter__(self) -> Iterator[Metric]:
        for name, help in _HELP.items():
            yield Metric(f"tokenlake_loader_{name}", "counter", help, getattr(self, name))


_HELP: Final = {
    "batches": "Batches delivered.",
    "rows": "Rows of these batches.",
    "wait_seconds": "Seconds that the consumer waited for batches.",
    "decode_seconds": "Seconds that threads spent on reading and decoding row groups.",
    "groups": "Row groups decoded.",
    "group_hits": "Row groups that were in the cache.",
    "decoded_rows": "Rows of the decoded row groups.",
    "decoded_bytes": "Bytes of the decoded row groups in memory.",
}

"""The lengths of all rows of several datasets: how long a batch of them is, and how many ids truncation cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.mixing.streams import StreamRows
from tokenlake.runtime.reading.ragged_rows import TokenRun, narrowest
from tokenlake.runtime.reading.version import StoredRows

_AT_ONCE: Final = 1 << 20  # rows that are worked out at a time
_NAMED: Final = 3  # rows that a message names
_ENDLESS: Final = 1 << 62


@final
@dataclass(frozen=True, slots=True)
class TruncationCount:
    """What was cut from rows that are longer than a batch may be, of all rows of the datasets once.

    Attributes:
        rows: that were cut.
        ids: that were cut; of a pair, from both answers.
        without_loss: rows that kept nothing of an answer, of which nothing is learned.
    """

    rows: int = 0
    ids: int = 0
    without_loss: int = 0


@final
class LengthIndex:
    """Lengths by row, counted over the datasets of a run in their order.

    Args:
        sources: of the rows, all of one kind that is not packed.
        padding: of the batches.

    Attributes:
        first_rows: where the rows of each row group begin, and the last ends, int64[G + 1].
        first_groups: where the row groups of each dataset begin among all, and the last one's end, int64[datasets + 1].
        runs: of every row.
        truncated: what is cut.

    Raises:
        ConfigError: the datasets do not have the same runs, or rows are longer than a batch may be.
        IntegrityError: a file is damaged.
    """

    def __init__(self, sources: Sequence[StoredRows], padding: BatchPadding) -> None:
        self._sources, self._padding = sources, padding
        self.first_rows: Final = offsets_of(np.concatenate([rows.group_rows for rows in sources]))
        self.first_groups: Final = offsets_of([len(rows.group_rows) for rows in sources])
        self.runs: Final = sources[0].ragged.runs
        if any(rows.ragged.runs != self.runs for rows in sources):
            kinds = [" for ".join(rows.manifest.preference or (rows.manifest.kind,)) for rows in sources]
            shown = ", ".join(f"{rows.name} ({kind})" for rows, kind in zip(sources, kinds, strict=True))
            raise ConfigError(f"a batch has rows of one kind and the same columns; got {shown}")
        self._columns = {
            name: np.concatenate(parts) if len(parts) > 1 else parts[0]
            for name in sources[0].ragged.columns
            for parts in [[rows.ragged.lengths(name) for rows in sources]]
        }
        self.truncated: Final = self._cut() if padding.longest is not None else TruncationCount()

    def longest_of(self, rows: StreamRows) -> int:
        """Return how long a batch of these rows must be; 0 for none."""
        number = self.first_rows[self.first_groups[rows.source] + rows.group] + rows.row
        return int(self.lengths(number).max(initial=0))

    def column(self, name: str, rows: Int64 | slice) -> Int64:
        """Return how many ids a column has in rows, int64[n]."""
        return self._columns[name][rows].astype(np.int64)

    def run(self, run: TokenRun, rows: Int64 | slice) -> Int64:
        """Return how many ids a run has in rows, int64[n]."""
        first, *others = (self.column(name, rows) for name in run.columns)
        return sum(others, first)

    def lengths(self, rows: Int64 | slice) -> Int64:
        """Return how long a batch must be for each row: as its longest run, at most what a batch may be, int64[n]."""
        whole = self._whole[rows].astype(np.int64)
        return whole if self._padding.longest is None else np.minimum(whole, self._padding.longest)

    def whole(self, rows: Int64 | slice) -> Int64:
        """Return how long the longest run of each row is, of which nothing is cut, int64[n]."""
        return self._whole[rows].astype(np.int64)

    def chunks(self) -> Iterator[slice]:
        """Yield all rows, some whole row groups at a time."""
        ends = np.arange(0, int(self.first_rows[-1]), _AT_ONCE)
        cuts = np.unique(
            np.append(self.first_rows[np.searchsorted(self.first_rows, ends)], self.first_rows[-1])
        )
        for first, last in pairwise(cuts.tolist()):
            yield slice(first, last)

    @cached_property
    def histogram(self) -> Int64:
        """How many rows have each length, int64[longest + 1]."""
        found = np.zeros(
            min(int(self._whole.max(initial=1)), self._padding.longest or _ENDLESS) + 1, np.int64
        )
        for some in self.chunks():
            found += np.bincount(self.lengths(some), minlength=len(found))
        return found

    @cached_property
    def _whole(self) -> npt.NDArray[Any]:
        """The length of the longest run of each row."""
        if len(self.runs) == 1 and len(self.runs[0].columns) == 1:
            return self._columns[self.runs[0].columns[0]]
        parts = [
            narrowest(np.max([self.run(run, some) for run in self.runs], axis=0)) for some in self.chunks()
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint16)

    def _cut(self) -> TruncationCount:
        """Count what is cut; ConfigError where nothing may be."""
        longest = self._padding.longest or 0
        parts = (np.flatnonzero(self._whole[some] > longest) + some.start for some in self.chunks())
        over = np.concatenate([np.zeros(0, np.int64), *parts])
        if not len(over):
            return TruncationCount()
        if self._padding.truncate is None:
            raise ConfigError(self._too_long(over, longest))
        answers = [run for run in self.runs if run.name != "prompt"] or self.runs
        ids = sum(int(np.maximum(self.run(run, over) - longest, 0).sum()) for run in answers)
        unlearned = np.zeros(len(over), np.bool_)
        for run in answers if self._padding.truncate == "right" else ():
            if run.prompt is not None:
                unlearned |= self.column(run.prompt, over) >= longest
        return TruncationCount(len(over), ids, int(unlearned.sum()))

    def _too_long(self, over: Int64, longest: int) -> str:
        first_rows = offsets_of([rows.rows for rows in self._sources])
        shown: list[str] = []
        for row in over[:_NAMED].tolist():
            source = int(np.searchsorted(first_rows, row, side="right")) - 1
            name, length = self._sources[source].name, int(self._whole[row])
            shown.append(f"row {row - int(first_rows[source])} of {name} ({length} ids)")
        more = f" and {len(over) - _NAMED:,} more" if len(over) > _NAMED else ""
        return (
            f"padding: {len(over):,} of {int(first_rows[-1]):,} rows are longer than {longest} ids, the longest has "
            f"{int(self._whole[over].max())}: {', '.join(shown)}{more}. Give a length that holds them, "
            'say truncate="right" or truncate="left" to cut them, or build the dataset with a max_length'
        )

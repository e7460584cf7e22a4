"""Lengths of all rows of several datasets.

They give the length of each batch, the bucket of each row, and the number of ids that
truncation removes.

Rows are numbered over all datasets in their order, and so are row groups. With datasets of 5 rows (row groups of 3 and
2) and of 4 rows (one row group)::

    first_rows     0 3 5 9       number of the first row of each row group, and of all rows
    first_groups   0 2 3         number of the first row group of each dataset, and of all row groups

Row 1 of row group 0 of the second dataset has number ``first_rows[first_groups[1] + 0]
+ 1 = 6``.
"""

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

# Temporary arrays of a chunk have 8 bytes a row: 8 MiB.
_ROWS_AT_ONCE: Final = 1 << 20
_ROWS_IN_MESSAGE: Final = 3


@final
@dataclass(frozen=True, slots=True)
class TruncationCount:
    """Rows that are longer than a batch can be, and the ids that are cut.

    They are counted once over all datasets.

    Attributes:
        rows: Number of rows that are cut.
        ids: Number of ids that are cut; for a preference pair, from both answers.
        without_loss: Number of rows that keep nothing of an answer, so that nothing is
            learned from it.
    """

    rows: int = 0
    ids: int = 0
    without_loss: int = 0


@final
class LengthIndex:
    """Length of each row of several datasets.

    Args:
        sources: Rows of the datasets, all of one kind that is not packed.
        padding: Padding of the batches.

    Attributes:
        first_rows: Number of the first row of each row group, and of all rows, int64[G
            + 1].
        first_groups: Number of the first row group of each dataset, and of all row
            groups, int64[datasets + 1].
        runs: Runs of ids that every row has.
        truncated: Number of rows and ids that are cut.

    Raises:
        ConfigError: The datasets do not have the same runs, or rows are longer than a
            batch may be.
        IntegrityError: A file is damaged.
    """

    def __init__(self, sources: Sequence[StoredRows], padding: BatchPadding) -> None:
        self._sources = sources
        self._padding = padding
        # Numbers of rows and row groups over all datasets (see the module's docstring).
        self.first_rows: Final = offsets_of(
            np.concatenate([rows.group_rows for rows in sources])
        )
        self.first_groups: Final = offsets_of(
            [len(rows.group_rows) for rows in sources]
        )
        self.runs: Final = sources[0].ragged.runs
        _check_same_runs(sources)
        # Number of ids of each stored column in each row.
        self._columns: dict[str, npt.NDArray[Any]] = {}
        for column_name in sources[0].ragged.columns:
            lengths = [rows.ragged.lengths(column_name) for rows in sources]
            # Those of a single dataset are not copied.
            self._columns[column_name] = lengths[0]
            if len(lengths) > 1:
                self._columns[column_name] = np.concatenate(lengths)
        truncated = TruncationCount()
        if padding.longest is not None:
            truncated = self._cut(padding.longest)
        self.truncated: Final = truncated

    def longest_of(self, rows: StreamRows) -> int:
        """Return the length that a batch of these rows needs.

        It is 0 if there are no rows.
        """
        # Number of each row over all datasets: that of the first row of its row group,
        # and the row's index in it.
        number = self.first_rows[self.first_groups[rows.source] + rows.group] + rows.row
        return int(self.lengths(number).max(initial=0))

    def column(self, name: str, rows: Int64 | slice) -> Int64:
        """Return the number of ids of a stored column in rows, int64[n]."""
        return self._columns[name][rows].astype(np.int64)

    def run(self, run: TokenRun, rows: Int64 | slice) -> Int64:
        """Return the number of ids of a run in rows, int64[n]."""
        lengths, *other_lengths = (self.column(name, rows) for name in run.columns)
        return sum(other_lengths, lengths)

    def lengths(self, rows: Int64 | slice) -> Int64:
        """Return the length of each row's longest run after truncation, int64[n]."""
        lengths = self.whole(rows)
        if self._padding.longest is None:
            return lengths
        return np.minimum(lengths, self._padding.longest)

    def whole(self, rows: Int64 | slice) -> Int64:
        """Return the length of each row's longest run before truncation, int64[n]."""
        return self._whole[rows].astype(np.int64)

    def chunks(self) -> Iterator[slice]:
        """Yield all rows, about a million at a time. No row group is divided."""
        # A chunk begins with the row group that holds its millionth row, so that none
        # is cut.
        begins = np.arange(0, int(self.first_rows[-1]), _ROWS_AT_ONCE)
        group_begins = self.first_rows[np.searchsorted(self.first_rows, begins)]
        bounds = np.unique(np.append(group_begins, self.first_rows[-1]))
        for first_row, end_row in pairwise(bounds.tolist()):
            yield slice(first_row, end_row)

    @cached_property
    def histogram(self) -> Int64:
        """Number of rows of each length, after truncation, int64[longest + 1]."""
        # Truncated rows count at the length that they are delivered with.
        longest = int(self._whole.max(initial=1))
        if self._padding.longest is not None:
            longest = min(longest, self._padding.longest)
        counts = np.zeros(longest + 1, np.int64)
        for chunk in self.chunks():
            counts += np.bincount(self.lengths(chunk), minlength=len(counts))
        return counts

    @cached_property
    def _whole(self) -> npt.NDArray[Any]:
        """Length of the longest run of each row, in the smallest type that holds it."""
        # The run is a stored column: its lengths are there already, and are not copied.
        if len(self.runs) == 1 and len(self.runs[0].columns) == 1:
            return self._columns[self.runs[0].columns[0]]
        parts: list[npt.NDArray[Any]] = [np.zeros(0, np.uint16)]
        for chunk in self.chunks():
            longest = np.max([self.run(run, chunk) for run in self.runs], axis=0)
            parts.append(narrowest(longest))
        return np.concatenate(parts)

    def _cut(self, longest: int) -> TruncationCount:
        """Count the rows and ids beyond the longest length of a batch.

        Raises:
            ConfigError: There are such rows, and the padding does not allow truncation.
        """
        parts: list[Int64] = [np.zeros(0, np.int64)]
        parts.extend(
            np.flatnonzero(self._whole[chunk] > longest) + chunk.start
            for chunk in self.chunks()
        )
        long_rows = np.concatenate(parts)
        if not len(long_rows):
            return TruncationCount()
        # Silently shorter rows would change the training data: truncation must be
        # requested.
        if self._padding.truncate is None:
            raise ConfigError(self._too_long(long_rows, longest))
        # Only answers count: the prompt of a preference pair is in both of its runs.
        answers = [run for run in self.runs if run.name != "prompt"] or self.runs
        cut_ids = 0
        is_without_loss = np.zeros(len(long_rows), np.bool_)
        for run in answers:
            cut_ids += int(np.maximum(self.run(run, long_rows) - longest, 0).sum())
            # On the right, the answer is cut first. Nothing of it is left if the prompt
            # fills the batch.
            if self._padding.truncate == "right" and run.prompt is not None:
                is_without_loss |= self.column(run.prompt, long_rows) >= longest
        return TruncationCount(len(long_rows), cut_ids, int(is_without_loss.sum()))

    def _too_long(self, long_rows: Int64, longest: int) -> str:
        """Return the message of an error that lists some rows that are too long."""
        # Name rows as the datasets number them, not as this index does.
        first_rows = offsets_of([rows.rows for rows in self._sources])
        examples: list[str] = []
        for row in long_rows[:_ROWS_IN_MESSAGE].tolist():
            source = int(np.searchsorted(first_rows, row, side="right")) - 1
            row_of_source = row - int(first_rows[source])
            length = int(self._whole[row])
            examples.append(
                f"row {row_of_source} of {self._sources[source].name} ({length} ids)"
            )
        listed = ", ".join(examples)
        if len(long_rows) > _ROWS_IN_MESSAGE:
            listed += f" and {len(long_rows) - _ROWS_IN_MESSAGE:,} more"
        return (
            f"padding: {len(long_rows):,} of {int(first_rows[-1]):,} rows are longer than {longest} ids, the longest "
            f"has {int(self._whole[long_rows].max())}: {listed}. Give a length that holds them, "
            'truncate="right" or truncate="left" to cut them, or build the dataset with a max_length'
        )


def _check_same_runs(sources: Sequence[StoredRows]) -> None:
    """Raise ConfigError where datasets do not have the same runs of ids."""
    runs = sources[0].ragged.runs
    if all(rows.ragged.runs == runs for rows in sources):
        return
    # A dataset of preference pairs has three runs, one of documents has one.
    described: list[str] = []
    for rows in sources:
        listed_kinds = " for ".join(rows.manifest.preference or (rows.manifest.kind,))
        described.append(f"{rows.name} ({listed_kinds})")
    raise ConfigError(
        f"a batch has rows of one kind and the same columns; got {', '.join(described)}"
    )

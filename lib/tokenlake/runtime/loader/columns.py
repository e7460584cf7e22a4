"""Columns of a batch of packed rows, computed from the lengths of the rows' segments.

A row of 8 with two segments, of 3 and 4 ids, and one id of padding::

    input_ids     a   b   c   d   e   f   g   0
    segment_ids   1   1   1   2   2   2   2   0      0 is padding
    positions     0   1   2   0   1   2   3   0      begin at 0 in each segment
    loss_mask     .   x   x   .   x   x   x   .      x: this id counts toward the loss
    labels      -100  b   c -100  e   f   g -100     each at its own place: the model shifts them
    targets       b   c -100  e   f   g -100 -100    each at the place of the id before it: nobody shifts them

The first id of a segment is never a target, because the id before it belongs to another
document. Padding is never a target, and neither are ids that the dataset's own loss
mask excludes (a prompt). Segment lengths decide this, not the ids: an EOS or padding id
inside a text is an id like any other.

Hugging Face models expect `labels` (``ForCausalLMLoss`` of transformers shifts them).
So do EasyDeL's models, whose loss shifts unless ``shift_tokens`` is off. `targets` is
for trainers that compare logits and targets place by place: MaxText, whose
``targets_segmentation`` is then ``targets != -100``, and losses that are written by
hand, such as ``softmax_cross_entropy_with_integer_labels`` of optax, which needs the
places of -100 masked.

All columns are computed from *runs*. A run is a segment, or the padding at the end of a row, which may be empty::

    lengths of segments   3 4           runs       3 4 1        one run more than segments in each row
    offsets of rows       0 2           row_runs   0 3          runs before each row, and their number

One value of each run is repeated over its ids by ``np.repeat``. This takes a few numpy
calls for a whole batch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, offsets_of, places
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.transfer import EXCLUDED, FIRST_OF_SEGMENT, PADDING

IGNORED: Final = -100
"""Value of `labels` and `targets` at places that do not count toward the loss."""

COLUMNS: Final = (
    "input_ids",
    "segment_ids",
    "positions",
    "loss_mask",
    "labels",
    "targets",
)
"""All columns that a batch of packed rows can have."""

DEFAULT_COLUMNS: Final = COLUMNS[:4]

FROM_LOSS: Final = frozenset({"loss_mask", "labels", "targets"})
"""Columns that are computed from the loss mask."""

_IDS_AT_ONCE: Final = 1 << 17
"""Ids over which values are repeated at a time, so that the intermediate array stays
in the processor's cache.
"""

_LITTLE_PADDING: Final = 16
"""Mean padding of a row, in ids, up to which single places are cleared faster than
the end of each row.
"""


def check_columns(
    requested: Sequence[str] | None,
    columns: Sequence[str] = COLUMNS,
    default: Sequence[str] = DEFAULT_COLUMNS,
) -> tuple[str, ...]:
    """Return the requested columns.

    Args:
        requested: Names of columns; None: the default ones.
        columns: Names of all columns that exist.
        default: Names of the default columns.

    Raises:
        ConfigError: No column is requested, one is requested twice, or one does not
            exist.
    """
    names: tuple[str, ...] = ()
    if requested is None:
        names = tuple(default)
    elif isinstance(requested, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = tuple(requested)
    unknown = [name for name in names if name not in columns]
    has_duplicates = len(set(names)) != len(names)
    if isinstance(requested, str) or unknown or not names or has_duplicates:
        message = f"columns: got {requested!r}, must be some of {', '.join(columns)}, each once"
        similar = difflib.get_close_matches(
            str(unknown[0]) if unknown else "", columns, 1
        )
        if similar:
            message += f"; did you mean {similar[0]!r}?"
        raise ConfigError(message)
    return names


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowSegments:
    """Segments of B packed rows, and the columns that follow from them.

    Each column is written into a given array of shape (B, L), which is returned.

    Attributes:
        length: Ids of a row, L, padding included.
        runs: Ids of each segment and, after the segments of each row, of its padding (0
            or more), int64[s + B].
        row_runs: Number of runs before each row, and of all rows, int64[B + 1]. The
            runs of row r are ``runs[row_runs[r] : row_runs[r + 1]]``.
    """

    length: int
    runs: Int64
    row_runs: Int64

    @classmethod
    def of(cls, lengths: Int32 | Int64, offsets: Int64, length: int) -> RowSegments:
        """Return the segments of rows.

        Args:
            lengths: Ids of each segment, all rows one after the other, int32[s]. Those
                of a :class:`PackedGroup` have been checked.
            offsets: Number of segments before each row, and of all rows, int64[B + 1].
                A row may have no segment.
            length: Ids of a row, padding included.
        """
        # Each row before has a run of padding.
        row_runs = offsets + np.arange(len(offsets))
        runs = np.empty(row_runs[-1], np.int64)
        is_segment = np.ones(row_runs[-1], np.bool_)
        is_segment[row_runs[1:] - 1] = False
        runs[is_segment] = lengths
        runs[~is_segment] = length - np.diff(offsets_of(lengths)[offsets])
        return cls(length, runs, row_runs)

    @property
    def rows(self) -> int:
        """Number of rows, B."""
        return len(self.row_runs) - 1

    def ids(self, out: Int32, together: int = 1) -> Int32:
        """Write the number of each id's segment: 1, 2, 3, ..., and 0 in padding.

        Args:
            out: Array of shape (B, L).
            together: Rows over which segments are numbered; 1: numbers begin at 1 in
                each row.
        """
        numbers = np.arange(1, len(self.runs) + 1)
        # Subtract the segments before the first row of those that are numbered
        # together: all runs before it, except for one run of padding in each row
        # between.
        row = np.arange(self.rows)
        first_row = row - row % together
        numbers_before = self.row_runs[first_row] + row - first_row
        numbers -= np.repeat(numbers_before, np.diff(self.row_runs))
        numbers[self.row_runs[1:] - 1] = 0
        for rows, segment_ids in self._repeated(numbers, int(numbers.max(initial=0))):
            out[rows] = segment_ids
        return out

    def positions(self, out: Int32) -> Int32:
        """Write the position of each id in its segment: 0, 1, 2, ..., and 0 in padding.

        Args:
            out: Array of shape (B, L).
        """
        # The position is the place in the row minus the place at which the segment
        # begins.
        for rows, starts in self._repeated(
            self._starts() % self.length, self.length - 1
        ):
            # Numpy is faster with one long row than with many.
            flat = starts.reshape(-1)
            np.subtract(
                _places_of_rows(self.length, len(starts), starts.dtype), flat, out=flat
            )
            out[rows] = starts
        # Clear the padding, in whichever of two ways is faster.
        padding = self.runs[self.row_runs[1:] - 1]
        begin = self.length - padding
        if padding.sum() < _LITTLE_PADDING * self.rows:
            out.reshape(-1)[
                places(np.arange(self.rows) * self.length + begin, padding)
            ] = 0
            return out
        for row, place in enumerate(begin.tolist()):
            out[row, place:] = 0
        return out

    def loss_mask(self, learned: Bools | None, out: Bools) -> Bools:
        """Write the mask of the ids that count toward the loss.

        The table at the top of this module lists them.

        Args:
            learned: Stored loss mask, bool[B, L]; None: the dataset has none, and all
                ids count.
            out: Array of shape (B, L).
        """
        is_segment = np.ones(len(self.runs), np.bool_)
        is_segment[self.row_runs[1:] - 1] = False
        for rows, in_segment in self._repeated(is_segment):
            out[rows] = in_segment
        # The first id of a segment is not a target.
        out.reshape(-1)[self._starts()[is_segment]] = False
        if learned is not None:
            np.logical_and(out, learned, out=out)
        return out

    def marks(
        self, learned: Bools | None, out: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """Write the marks of each id, from which a device computes all columns.

        Their bits are explained in :mod:`tokenlake.runtime.loader.transfer`.

        Args:
            learned: Stored loss mask, bool[B, L]; None: the dataset has none, and all
                ids count.
            out: Array of shape (B, L), whose rows may lie apart.
        """
        if learned is None:
            out[...] = 0
        else:
            np.multiply(~learned, np.uint8(EXCLUDED), out=out)
        # The first ids of segments, without those of the padding.
        is_segment = np.ones(len(self.runs), np.bool_)
        is_segment[self.row_runs[1:] - 1] = False
        row, place = np.divmod(self._starts()[is_segment], self.length)
        out[row, place] |= FIRST_OF_SEGMENT
        # The padding at the end of each row.
        padding = self.runs[self.row_runs[1:] - 1]
        for row_with_padding in np.flatnonzero(padding).tolist():
            out[row_with_padding, self.length - padding[row_with_padding] :] = PADDING
        return out

    def _starts(self) -> Int64:
        """Return the place of each run's first id, int64[s + B].

        Places are counted over the ids of all rows.
        """
        return np.cumsum(self.runs) - self.runs

    def _repeated(
        self, values: Int64 | Bools, largest: int = 1
    ) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Repeat the value of each run over its ids, some rows at a time.

        Each result is a pair: rows, and their values[rows, L].

        Args:
            values: Value of each run, [s + B]. Integers are narrowed to the smallest
                type that holds the largest: small arrays stay in the processor's cache,
                and they are widened when the caller stores them.
            largest: Largest of the values.
        """
        narrow: npt.NDArray[Any] = values
        if values.dtype != np.bool_:
            narrow = values.astype(np.min_scalar_type(largest))
        rows_at_once = max(1, _IDS_AT_ONCE // self.length)
        for first_row in range(0, self.rows, rows_at_once):
            end_row = min(first_row + rows_at_once, self.rows)
            runs = slice(self.row_runs[first_row], self.row_runs[end_row])
            yield (
                slice(first_row, end_row),
                np.repeat(narrow[runs], self.runs[runs]).reshape(-1, self.length),
            )


def labels(input_ids: Int32, loss_mask: Bools, out: Int32) -> Int32:
    """Write each id that counts toward the loss at its own place.

    All other places are -100.

    Args:
        input_ids: Ids of the rows, int32[B, L].
        loss_mask: Mask of the ids that count toward the loss, bool[B, L].
        out: Array of shape (B, L), which is returned.
    """
    _write_masked(input_ids, loss_mask, out)
    return out


def targets(input_ids: Int32, loss_mask: Bools, out: Int32) -> Int32:
    """Write each id that counts toward the loss at the place before its own.

    All other places are -100.

    Args:
        input_ids: Ids of the rows, int32[B, L].
        loss_mask: Mask of the ids that count toward the loss, bool[B, L].
        out: Array of shape (B, L), which is returned.
    """
    # One long row takes a third of the time of many. The id that comes into a row from
    # the next one is in the last column, which is never a target.
    _write_masked(
        input_ids.reshape(-1)[1:], loss_mask.reshape(-1)[1:], out.reshape(-1)[:-1]
    )
    out[:, -1:] = IGNORED
    return out


def _write_masked(ids: Int32, mask: Bools, out: Int32) -> None:
    """Write ``id if mask else -100``, computed as ``(id + 100) * mask - 100``.

    ``np.where`` takes ten times as long if the mask changes often. Sums beyond 32 bits
    wrap around, and wrap back.
    """
    np.subtract(ids, IGNORED, out=out)
    np.multiply(out, mask, out=out)
    np.add(out, IGNORED, out=out)


@lru_cache(maxsize=8)
def _places_of_rows(length: int, rows: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return 0, 1, ..., length - 1 once for each row, [rows * length], read-only."""
    row_places = np.tile(np.arange(length, dtype=dtype), rows)
    row_places.flags.writeable = False
    return row_places

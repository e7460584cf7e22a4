"""One batch, a dict of arrays: the rows of decoded row groups, and the columns that follow from segment lengths.

A row of 8 with two segments, of 3 and 4 ids, and one id of padding::

    input_ids     a   b   c   d   e   f   g   0
    segment_ids   1   1   1   2   2   2   2   0      0 is padding
    positions     0   1   2   0   1   2   3   0      begin anew with each segment
    loss_mask     .   x   x   .   x   x   x   .      x: this id is a target that bears loss
    labels      -100  b   c -100  e   f   g -100     each under itself: the model shifts
    targets       b   c -100  e   f   g -100 -100    each under the id that predicts it: nobody shifts

An id is never a target where it is the first of its segment, for what lies before it is another document's, nor in
padding, nor where the dataset's own mask says that it is not learned (a prompt). Lengths decide, never the ids: an EOS
or padding id inside a text is an id like any other.

`labels` is what Hugging Face models expect (transformers' ``ForCausalLMLoss`` shifts), and EasyDeL's, whose loss shifts
too unless ``shift_tokens`` is off. `targets` is for trainers that compare logits and targets place by place: MaxText's
``targets``, whose ``targets_segmentation`` is then ``targets != -100`` (it bears loss where that is not 0), and a loss
written by hand, such as optax's ``softmax_cross_entropy_with_integer_labels``, which wants the places of -100 masked.

Everything is a few passes of numpy over the batch: all runs of one value are spread by one ``np.repeat``, padding being
a run as well.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, Ragged, cut_runs, offsets_of, places
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.layout import FLAT_COLUMNS, BatchLayout, moved
from tokenlake.runtime.reading.blocks import BLOCKS
from tokenlake.runtime.reading.packed import PackedGroup, segments_of
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.manifest import Manifest

IGNORED: Final = -100
"""What `labels` and `targets` hold where there is no loss."""

_CHUNK: Final = 1 << 17  # ids that are spread at a time: what lies between stays in the processor's cache
_GATHERED: Final = 1 << 18  # ids that are gathered at a time
_LITTLE: Final = (
    16  # ids of padding of a row in the mean, up to which writing one by one is faster than row by row
)


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowSegments:
    """The segments of B rows, and the columns that follow from them, written into given arrays [B, L].

    Attributes:
        length: ids of a row, padding included.
        runs: ids of each segment and, behind those of each row, of its padding (may be 0), int64[s + B].
        row_runs: which of them are each row's, int64[B + 1] from 0.
    """

    length: int
    runs: Int64
    row_runs: Int64

    @classmethod
    def of(cls, lengths: Int32 | Int64, offsets: Int64, length: int) -> RowSegments:
        """Return the segments of rows; those of a :class:`PackedGroup` are in order, for it has checked them.

        Args:
            lengths: ids of each segment, of all rows, one row after the other, int32[s].
            offsets: where each row's begin in `lengths` and the last row's end, int64[B + 1]; a row may have none.
            length: ids of a row, padding included.
        """
        row_runs = offsets + np.arange(len(offsets))
        runs, stored = np.empty(row_runs[-1], np.int64), np.ones(row_runs[-1], np.bool_)
        stored[row_runs[1:] - 1] = False
        runs[stored], runs[~stored] = lengths, length - np.diff(offsets_of(lengths)[offsets])
        return cls(length, runs, row_runs)

    @property
    def rows(self) -> int:
        """Rows, B."""
        return len(self.row_runs) - 1

    def ids(self, out: Int32, together: int = 1) -> Int32:
        """Return which segment of its row, or of `together` rows, each id is of: 1, 2, 3, ..., and 0 in padding."""
        numbers = np.arange(1, len(self.runs) + 1)
        row = np.arange(self.rows)
        first = row - row % together
        # Each row before this one has a run of padding, which has no number.
        before = self.row_runs[first] + row - first
        numbers -= np.repeat(before, np.diff(self.row_runs))
        numbers[self.row_runs[1:] - 1] = 0
        for rows, some in self._spread(numbers, int(numbers.max(initial=0))):
            out[rows] = some
        return out

    def positions(self, out: Int32) -> Int32:
        """Return the place of each id in its segment: 0, 1, 2, ..., and 0 in padding."""
        for rows, some in self._spread(self._starts() % self.length, self.length - 1):
            flat = some.reshape(-1)  # one long row is faster than many
            np.subtract(_counted(self.length, len(some), some.dtype), flat, out=flat)
            out[rows] = some
        # Padding, a little of it id by id, more row by row, whichever is faster.
        padding = self.runs[self.row_runs[1:] - 1]
        begin = self.length - padding
        if padding.sum() < _LITTLE * self.rows:
            out.reshape(-1)[places(np.arange(self.rows) * self.length + begin, padding)] = 0
            return out
        for row, place in enumerate(begin.tolist()):
            out[row, place:] = 0
        return out

    def loss_mask(self, learned: Bools | None, out: Bools) -> Bools:
        """Return which ids are targets that bear loss: see the table above.

        Args:
            learned: the stored mask, bool[B, L]; None where the dataset has none and everything is learned.
        """
        there = np.ones(len(self.runs), np.bool_)
        there[self.row_runs[1:] - 1] = False
        for rows, some in self._spread(there):
            out[rows] = some
        out.reshape(-1)[self._starts()[there]] = False
        if learned is not None:
            np.logical_and(out, learned, out=out)
        return out

    def _starts(self) -> Int64:
        """Where each run begins among the ids of all rows, int64[s + B]."""
        return np.cumsum(self.runs) - self.runs

    def _spread(self, values: Int64 | Bools, largest: int = 1) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield one value of each run repeated over its ids, some rows at a time: which rows, and [rows, L].

        Numbers have as few bits as the largest needs: what is still in the processor's cache is widened when it is
        stored.
        """
        narrow = values if values.dtype == np.bool_ else values.astype(np.min_scalar_type(largest))
        together = max(1, _CHUNK // self.length)
        for row in range(0, self.rows, together):
            end = min(row + together, self.rows)
            some = slice(self.row_runs[row], self.row_runs[end])
            yield slice(row, end), np.repeat(narrow[some], self.runs[some]).reshape(-1, self.length)


def _gather(groups: Sequence[PackedGroup], rows: Sequence[int], out: Int32) -> None:
    """Write a row of each row group into the first rows of int32[B, L].

    Joining slices of memory is the cheapest way to many small pieces that Python has: with an array for each it would
    take up to twice as long.
    """
    sizes = {group.row_bytes: group.ids.dtype for group in groups}
    for size, kind in sizes.items():
        alike = len(sizes) == 1
        here = range(len(rows)) if alike else [at for at, one in enumerate(groups) if one.row_bytes == size]
        pieces = [groups[at].data[size * rows[at] : size * rows[at] + size] for at in here]
        joined = np.frombuffer(b"".join(pieces), kind).reshape(-1, out.shape[1])
        out[slice(len(rows)) if alike else here] = joined


def labels(input_ids: Int32, loss_mask: Bools, out: Int32) -> Int32:
    """Return each id where it bears loss, else -100; int32[B, L]."""
    _mark(input_ids, loss_mask, out)
    return out


def targets(input_ids: Int32, loss_mask: Bools, out: Int32) -> Int32:
    """Return what each place predicts: the next id where that bears loss, else (and last in the row) -100."""
    # One long row is three times as fast; what comes into a row from the next one lies in the last column.
    _mark(input_ids.reshape(-1)[1:], loss_mask.reshape(-1)[1:], out.reshape(-1)[:-1])
    out[:, -1:] = IGNORED
    return out


def _mark(ids: Int32, mask: Bools, out: Int32) -> None:
    """Write ``mask ? id : -100``; as arithmetic, since choosing by a mask that changes often is ten times slower.

    Sums that leave 32 bits wrap and come back.
    """
    np.subtract(ids, IGNORED, out=out)
    np.multiply(out, mask, out=out)
    np.add(out, IGNORED, out=out)


@lru_cache(maxsize=8)
def _counted(length: int, rows: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return 0, 1, ..., length - 1, for each of so many rows."""
    counted = np.tile(np.arange(length, dtype=kind), rows)
    counted.flags.writeable = False
    return counted


Batch: TypeAlias = dict[str, npt.NDArray[Any]]
"""Column -> array of shape (rows, L); see :mod:`tokenlake.runtime.loader.layout` for others."""


class BatchShape(NamedTuple):
    """Of a batch: its rows, those of padding included, and the ids of each."""

    rows: int
    length: int


COLUMNS: Final = ("input_ids", "segment_ids", "positions", "loss_mask", "labels", "targets")
"""What a batch may hold; see :mod:`tokenlake.runtime.loader.batch`."""

DEFAULT_COLUMNS: Final = COLUMNS[:4]
FROM_LOSS: Final = frozenset({"loss_mask", "labels", "targets"})


def check_columns(
    asked: Sequence[str] | None,
    columns: Sequence[str] = COLUMNS,
    default: Sequence[str] = DEFAULT_COLUMNS,
) -> tuple[str, ...]:
    """Return the columns asked for, the default ones for None; ConfigError where any is none of `columns`."""
    names = tuple(default) if asked is None else tuple(asked) if isinstance(asked, Iterable) else ()  # pyright: ignore[reportUnnecessaryIsInstance]
    wrong = [name for name in names if name not in columns]
    if isinstance(asked, str) or wrong or not names or len(set(names)) != len(names):
        near = difflib.get_close_matches(str(wrong[0]) if wrong else "", columns, 1)
        raise ConfigError(
            f"columns: got {asked!r}, must be some of {', '.join(columns)}, each once"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    return names


def pad_id_of(manifest: Manifest) -> int:
    """Return the id that unfilled places of a version's rows hold."""
    return next((int(facts["pad_id"]) for facts in manifest.tokenizer.values() if "pad_id" in facts), 0)


@final
class Assembler:
    """Makes batches of some columns.

    Args:
        sources: the datasets that rows come from, packed to one length.
        columns: of :data:`COLUMNS`.
        fresh: give every batch memory of its own, also where that is slower.
        layout: of the arrays; None: row by row.

    Attributes:
        names: of the columns of a batch.
        loss_mask, segments: whether row groups must be decoded with these.

    Raises:
        ConfigError: the datasets are not packed, or to different lengths; or the layout does not fit these.
    """

    def __init__(
        self,
        sources: Sequence[StoredRows],
        columns: Sequence[str],
        *,
        fresh: bool = False,
        layout: BatchLayout | None = None,
    ) -> None:
        found = {rows.name: (rows.manifest.kind, rows.manifest.width) for rows in sources}
        if any(kind != "packed" for kind, _ in found.values()) or len(set(found.values())) != 1:
            shown = ", ".join(f"{name} ({kind}, {length})" for name, (kind, length) in found.items())
            raise ConfigError(f"a batch has rows of one length; expected datasets packed to one, got {shown}")
        self.length = sources[0].manifest.width
        self._columns, self._fresh = frozenset(columns), fresh
        self.names, self._pad = tuple(columns), pad_id_of(sources[0].manifest)
        self._layout = layout or BatchLayout()
        self._parts: int | None = None
        self._layout.check_length(self.length)
        if self._layout.flat:
            self.names += FLAT_COLUMNS
        self.segments = bool(self._columns - {"input_ids"}) or self._layout != BatchLayout()
        wants_loss = bool(FROM_LOSS & self._columns)
        self.loss_mask = wants_loss and any(rows.has_loss_mask for rows in sources)

    def of_parts(self, parts: int) -> Self:
        """Return one whose flat batches are cut into parts of as many rows, each with `cu_seqlens` of its own."""
        other = copy.copy(self)
        other._parts = parts
        return other

    def batch(
        self,
        shape: BatchShape,
        group: Int64,
        row: Int64,
        decoded: Callable[[int], PackedGroup],
        within: int | None = None,
    ) -> Batch:
        """Return a batch.

        Args:
            shape: of the batch; rows after the given ones are padding. Shorter rows than the stored ones are these
                cut into equal parts, and segments must be cut there, too.
            group: by which number `decoded` knows the row group of each row, int64[n], n <= size.
            row: in its row group, int64[n].
            decoded: number -> row group.
            within: segments end at every multiple of it in their row; None: where they are stored to.
        """
        ids = self._empty((shape.rows * shape.length // self.length, self.length), np.int32)
        numbers, rows = group.tolist(), row.tolist()
        place = {number: index for index, number in enumerate(dict.fromkeys(numbers))}
        groups, index = list(map(decoded, place)), [place[number] for number in numbers]
        found = [groups[each] for each in index]
        for begin in range(0, len(rows), together := max(1, _GATHERED // self.length)):
            some = slice(begin, begin + together)
            _gather(found[some], rows[some], ids[some])
        ids[len(rows) :] = self._pad
        made: Batch = {"input_ids": ids.reshape(shape)}
        if self.segments:
            stored = segments_of(groups, np.array(index, np.int64), row)
            segments = self._segments(shape, stored, within)
            self._derive(made, segments, found, rows)
            self._lay_out(made, segments)
        return {name: made[name] for name in self.names}

    def _segments(self, shape: BatchShape, stored: Ragged, within: int | None) -> RowSegments:
        parts = self.length // shape.length
        lengths = stored.ids
        offsets = np.append(stored.offsets, np.full(shape.rows // parts - len(stored), len(lengths)))
        if within is not None:
            lengths, row, stretch = cut_runs(lengths, offsets, within)
            row = row if parts == 1 else row * parts + stretch
            offsets = offsets_of(np.bincount(row, minlength=shape.rows))
        return RowSegments.of(lengths, offsets, shape.length)

    def _derive(
        self, made: Batch, segments: RowSegments, found: Sequence[PackedGroup], rows: Sequence[int]
    ) -> None:
        shape = made["input_ids"].shape
        if "segment_ids" in self._columns:
            together = shape[0] // (self._parts or 1) if self._layout.flat else 1
            made["segment_ids"] = segments.ids(self._empty(shape, np.int32), max(1, together))
        if "positions" in self._columns:
            made["positions"] = segments.positions(self._empty(shape, np.int32))
        if not FROM_LOSS & self._columns:
            return
        mask = segments.loss_mask(self._learned(shape, found, rows), self._empty(shape, np.bool_))
        made["loss_mask"] = mask
        if "labels" in self._columns:
            made["labels"] = labels(made["input_ids"], mask, self._empty(shape, np.int32))
        if "targets" in self._columns:
            made["targets"] = targets(made["input_ids"], mask, self._empty(shape, np.int32))

    def _lay_out(self, made: Batch, segments: RowSegments) -> None:
        """Put the columns, which lie row by row, as the layout wants them."""
        if self._layout.flat:
            bounds, longest = self._layout.bounds(segments.runs, segments.row_runs, self._parts or 1)
            made.update({name: column.reshape(-1) for name, column in made.items()})
            if self._parts is None:
                bounds, longest = bounds[0], longest[0:1].reshape(())
            made.update(zip(FLAT_COLUMNS, (bounds, longest), strict=True))
        elif (order := self._layout.order(segments.length, segments.runs, segments.row_runs)) is not None:
            for name in self.names:
                made[name] = moved(made[name], order, self._empty(made[name].shape, made[name].dtype))

    def _learned(
        self, shape: tuple[int, ...], found: Sequence[PackedGroup], rows: Sequence[int]
    ) -> npt.NDArray[np.bool_] | None:
        """The stored masks; rows of a dataset without one bear loss everywhere."""
        if not self.loss_mask:
            return None
        learned = self._empty((shape[0] * shape[1] // self.length, self.length), np.bool_)
        for place, (there, at) in enumerate(zip(found, rows, strict=True)):
            learned[place] = True if there.learned is None else there.learned[at]
        learned[len(rows) :] = False
        return learned.reshape(shape)

    def _empty(self, shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(shape, kind) if self._fresh else used_again(shape, kind)


def used_again(shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array of any content, of memory that nobody refers to any more.

    So batches that are kept, in whatever form, stay what they are.
    """
    size = math.prod(shape) * np.dtype(kind).itemsize
    return BLOCKS.take(size).view(kind).reshape(shape)

"""Arrays of numpy and Arrow: values over existing bytes, columns by levels, and runs.

Documents in a batch, answers of a pair and pieces of a document have many lengths. They
are one array and its offsets (:class:`Ragged`): run i is ``ids[offsets[i]:offsets[i +
1]]``. Taking runs out, joining, cutting and padding them uses :func:`places`, the
indices of all values of some runs. For runs of the lengths 2 and 3 that start at 10 and
40:

    1. offsets of the runs   offsets_of([2, 3])                     = [0, 2, 5]
    2. shift of each run     start - offsets[:-1] = [10, 40] - [0, 2] = [10, 38]
    3. shift of each value   repeat(shift, lengths)                 = [10, 10, 38, 38, 38]
    4. index of each value   shift + arange(5)                      = [10, 11, 40, 41, 42]
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
Int64s = Int64

Pread = Callable[[int, int], bytes]
"""Function of a size and an offset that returns bytes, fewer only at the end of the
file.
"""

STRINGS: Final = frozenset({pa.string(), pa.large_string(), pa.string_view()})
"""Arrow's types of text."""

# The stubs lack buffers of numpy arrays and the type of from_buffers.
_ARROW: Final[Any] = pa


@final
class RandomAccessFile(io.RawIOBase):
    """A file object of Python and Arrow over a function that reads at an offset.

    Args:
        size: Size of the file in bytes.
        pread: Function that reads bytes at an offset.
    """

    def __init__(self, size: int, pread: Pread) -> None:
        super().__init__()
        self._size = size
        self._pread = pread
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Return the size; Arrow asks for it."""
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = (0, self._position, self._size)[whence]
        self._position = max(origin + offset, 0)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        # Arrow may ask beyond the end; a function that reads at an offset may not.
        remaining = max(self._size - self._position, 0)
        if size is None or size < 0:
            size = remaining
        content = self._pread(min(size, remaining), self._position)
        self._position += len(content)
        return content

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            content = self.read(len(target))
            target[: len(content)] = content
        return len(content)


def text_over(offsets: Int64s, data: pa.Buffer) -> pa.LargeStringArray:
    """Return the texts ``data[offsets[i]:offsets[i+1]]`` without copying or checks."""
    offset_buffer = _ARROW.py_buffer(offsets)
    return _ARROW.LargeStringArray.from_buffers(len(offsets) - 1, offset_buffer, data)


def binary_over(offsets: Int64s, data: pa.Buffer) -> pa.LargeBinaryArray:
    """Return the byte strings ``data[offsets[i]:offsets[i+1]]`` without copying."""
    buffers = [None, _ARROW.py_buffer(offsets), data]
    return _ARROW.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, buffers
    )


def no_text() -> pa.LargeStringArray:
    """Return an array of no texts."""
    return text_over(np.zeros(1, np.int64), pa.py_buffer(b""))


def text_of_strings(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return Python strings as an array; they must hold no lone surrogates."""
    return _ARROW.array(texts, pa.large_string())


def taken(text: pa.LargeStringArray, rows: Int64s) -> pa.LargeStringArray:
    """Return the texts `rows` (int64[k]), in that order."""
    return text.take(_ARROW.array(rows, pa.int64()))


def concat(arrays: Sequence[pa.LargeStringArray]) -> pa.LargeStringArray:
    """Return the texts of all arrays in one array with the offset 0.

    A single array with that offset is not copied.
    """
    if len(arrays) == 1 and not arrays[0].offset:
        return arrays[0]
    return _ARROW.concat_arrays(arrays)


def string_buffers(text: pa.LargeStringArray) -> tuple[Int64, npt.NDArray[np.uint8]]:
    """Return views of a large_string array's offsets and of its bytes.

    Returns:
        Offsets, int64[n + 1], which may start past 0; and all bytes of the buffer.
    """
    _, offset_buffer, data_buffer = text.buffers()
    # Arrow may leave out the buffers of an empty array, and of empty texts.
    if offset_buffer is None or not len(text):
        return np.zeros(len(text) + 1, np.int64), np.empty(0, np.uint8)
    # A slice shares the buffers of the whole array; its offsets begin further on.
    byte_offset = text.offset * 8
    starts = np.frombuffer(
        memoryview(offset_buffer), np.int64, len(text) + 1, byte_offset
    )
    if data_buffer is None:
        return starts, np.empty(0, np.uint8)
    return starts, np.frombuffer(memoryview(data_buffer), np.uint8)


def blocks(offsets: Int64, size: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of n rows, each of at most `size` items or of one row.

    Args:
        offsets: Offsets of the rows' items, int64[n + 1].
        size: Largest number of items of a piece.

    Yields:
        First row of the piece, and the row after its last one.
    """
    first_row = 0
    row_count = len(offsets) - 1
    while first_row < row_count:
        # The rows that end within the limit, and at least one.
        last_item = int(offsets[first_row]) + size
        end_row = int(np.searchsorted(offsets, last_item, "right")) - 1
        end_row = min(max(end_row, first_row + 1), row_count)
        yield first_row, end_row
        first_row = end_row


def mask_of(keep: Bools) -> pa.BooleanArray:
    """Return bool[n] as an Arrow array.

    `pa.array` would import pandas if it is installed, which takes 0.2 s.
    """
    packed_bits = _ARROW.py_buffer(np.packbits(keep, bitorder="little"))
    return _ARROW.BooleanArray.from_buffers(pa.bool_(), len(keep), [None, packed_bits])


def select(
    text: pa.LargeStringArray, keep: npt.NDArray[np.bool_]
) -> pa.LargeStringArray:
    """Return the texts where `keep` is true."""
    # The method of the class itself takes the mask that `mask_of` makes.
    return _ARROW.Array.filter(text, mask_of(keep))


def is_ascii(text: pa.LargeStringArray) -> bool:
    """Return whether every byte of the array is ASCII (30 GB/s)."""
    offsets, text_bytes = string_buffers(text)
    # A slice looks at its own part of the buffer.
    own_bytes = text_bytes[offsets[0] : offsets[-1]]
    if not own_bytes.size:
        return True
    return int(own_bytes.max()) < 0x80


def is_utf8(text: pa.Array[Any]) -> bool:
    """Return whether all texts, nested ones too, are valid UTF-8.

    It reads 25 GB/s of ASCII, and 1.4 GB/s of other text.
    """
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    pa.int8().id: np.dtype(np.int8),
    pa.int16().id: np.dtype(np.int16),
    pa.int32().id: np.dtype(np.int32),
    pa.int64().id: np.dtype(np.int64),
    pa.uint8().id: np.dtype(np.uint8),
    pa.uint16().id: np.dtype(np.uint16),
    pa.uint32().id: np.dtype(np.uint32),
    pa.uint64().id: np.dtype(np.uint64),
    pa.float16().id: np.dtype(np.float16),
    pa.float32().id: np.dtype(np.float32),
    pa.float64().id: np.dtype(np.float64),
}


def dtype_of(number: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy dtype of an Arrow type of integers or floats.

    Unlike ``to_pandas_dtype``, which raises in pyarrow below 26 where pandas is not
    installed.

    Raises:
        TypeError: It is another type.
    """
    dtype = _DTYPES.get(number.id)
    if dtype is None:
        raise TypeError(f"{number} has no NumPy dtype; expected integers or floats")
    return dtype


def values(array: Any) -> npt.NDArray[Any]:
    """Return the values of an Arrow array of numbers or bits without nulls.

    They are a view, except for bits.

    It replaces ``to_numpy``, which first imports pandas if it is installed: most of the
    time to a first batch.

    Raises:
        ValueError: The array has nulls.
    """
    if array.null_count:
        raise ValueError(f"{array.null_count} nulls; expected none")
    value_buffer = array.buffers()[1]
    first_value = array.offset
    value_count = len(array)
    # Bits are unpacked from the first byte on: a slice may begin within a byte.
    if pa.types.is_boolean(array.type):
        if not value_count:
            return np.zeros(0, np.bool_)
        packed_bits = np.frombuffer(value_buffer, np.uint8)
        bit_count = first_value + value_count
        unpacked = np.unpackbits(packed_bits, count=bit_count, bitorder="little")
        return unpacked[first_value:].view(np.bool_)
    # Arrow may leave out the buffer of an empty array.
    dtype = dtype_of(array.type)
    if not value_count:
        return np.zeros(0, dtype)
    byte_offset = first_value * dtype.itemsize
    return np.frombuffer(value_buffer, dtype, value_count, byte_offset)


# Numbers of types: to ask the functions of `pyarrow.types` one after the other took a
# fifth of a small shard's hash.
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string()).id
_ROWS: Final = pa.list_(pa.int32(), 1).id
_LISTS: Final = frozenset({pa.list_(pa.int32()).id, pa.large_list(pa.int32()).id})
_STRUCT: Final = pa.struct([]).id
_NUMBERS: Final = frozenset({pa.int32().id, pa.int64().id})

Values = npt.NDArray[Any]
Level = tuple[int, Values | None, Values | None]
"""Number of values of a level of a column; the values (None if the levels below hold
them); indices of its nulls.
"""


def levels_of(array: Any) -> list[Level]:
    """Return the levels of a column, in a fixed order.

    A list has its lengths (int32, unless all lists have the same length), then the
    levels of its values. A struct has no values itself, then the levels of each field.
    Text and bytes have their lengths (int64), then their bytes. The value of a null is
    zero, an empty list or an empty text.
    """
    array_type = array.type
    type_id = array_type.id
    if type_id == _DICTIONARY:
        return levels_of(array.dictionary_decode())
    nulls: Values | None = None
    if array.null_count:
        nulls = np.flatnonzero(values(array.is_null()))
    levels: list[Level] = [(len(array), None, nulls)]
    if type_id == _ROWS:
        return levels + levels_of(array.flatten())
    if type_id in _LISTS:
        list_lengths = _lengths(array, nulls, "<i4")
        return [(len(array), list_lengths, nulls), *levels_of(array.flatten())]
    if type_id == _STRUCT:
        # `flatten` applies the nulls of the struct to its fields; `field` does not
        # copy.
        if nulls is None:
            fields = map(array.field, range(array_type.num_fields))
        else:
            fields = array.flatten()
        for field in fields:
            levels += levels_of(field)
        return levels
    return _flat(array, nulls)


@final
@dataclass(frozen=True, slots=True)
class FlatRows:
    """Rows whose columns are taken apart, by their names, in the order of their schema.

    Attributes:
        count: Number of rows.
        levels: Column -> its levels, as :func:`levels_of` returns them.
    """

    count: int
    levels: dict[str, list[Level]]

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Self:
        """Take rows apart, without copies where that is possible."""
        levels: dict[str, list[Level]] = {}
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            levels[name] = levels_of(column)
        return cls(len(rows), levels)

    def __len__(self) -> int:
        return self.count


def _flat(array: Any, nulls: Values | None) -> list[Level]:
    """Return the level, or the two levels, of an array that is not nested."""
    array_type = array.type
    types = pa.types
    # 1. Integers without nulls, the columns of ids: nothing is copied.
    if array_type.id in _NUMBERS and nulls is None:
        return [(len(array), values(array), nulls)]
    # 2. Text and bytes, and decimals as their text: one form for all widths of offsets.
    if array_type in STRINGS:
        return _bytes(array.cast(pa.large_string()).cast(pa.large_binary()), nulls)
    is_variable = types.is_binary(array_type) or types.is_large_binary(array_type)
    if is_variable or types.is_fixed_size_binary(array_type):
        return _bytes(array.cast(pa.large_binary()), nulls)
    if types.is_decimal(array_type) or types.is_null(array_type):
        return _bytes(array.cast(pa.string()).cast(pa.large_binary()), nulls)
    # 3. Dates and times as their integers, then all numbers and bits.
    if types.is_temporal(array_type):
        array = array.view(pa.int32() if array_type.bit_width == 32 else pa.int64())
    if nulls is not None:
        array = array.fill_null(False if types.is_boolean(array_type) else 0)
    return [(len(array), np.ascontiguousarray(values(array)), nulls)]


def _bytes(array: Any, nulls: Values | None) -> list[Level]:
    """Return the lengths and the bytes of an array of byte strings."""
    if nulls is not None:
        array = array.fill_null(b"")
    value_count = len(array)
    if not value_count:
        return [(0, np.zeros(0, "<i8"), None), (0, np.zeros(0, np.uint8), None)]
    _, offset_buffer, data_buffer = array.buffers()
    byte_offset = 8 * array.offset
    offsets = np.frombuffer(offset_buffer, np.int64, value_count + 1, byte_offset)
    all_bytes = np.frombuffer(data_buffer or b"", np.uint8)
    content = all_bytes[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets).astype("<i8")
    return [(value_count, lengths, nulls), (len(content), content, None)]


def _lengths(array: Any, nulls: Values | None, dtype: str) -> Values:
    """Return the lengths of lists as a NumPy type, 0 for nulls."""
    # A null may have an extent in the values, which `flatten` leaves out.
    lengths = np.diff(values(array.offsets)).astype(dtype)
    if nulls is not None:
        lengths[nulls] = 0
    return lengths


def offsets_of(lengths: npt.ArrayLike) -> Int64:
    """Return the starts of n runs that follow one another, and the end of the last.

    Returns:
        int64[n + 1] from 0.
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def lengths_between(begins: Sequence[Sequence[int]], ends: Sequence[int]) -> Int64:
    """Return the length of each run of n wholes, one whole after the other.

    Args:
        begins: Starts of the runs of each whole, ascending.
        ends: End of each whole.

    Returns:
        int64[runs].
    """
    # The differences of all edges are the lengths, except from the end of a whole to
    # the start of the next.
    edges: list[Sequence[int]] = []
    edge_counts: list[int] = []
    for begin, end in zip(begins, ends, strict=True):
        edges += (begin, (end,))
        edge_counts.append(len(begin) + 1)
    all_edges = np.fromiter(chain.from_iterable(edges), np.int64)
    last_edges = np.cumsum(edge_counts, dtype=np.int64) - 1
    return np.delete(np.diff(all_edges), last_edges[:-1])


def places(start: Int64, lengths: Int64) -> Int64:
    """Return the indices of n runs: ``start[i], start[i] + 1 ...``, int64[sum].

    Args:
        start: First index of each run, int64[n].
        lengths: Number of indices of each run, int64[n].
    """
    # The steps are those of the module's docstring.
    offsets = offsets_of(lengths)
    return np.repeat(start - offsets[:-1], lengths) + np.arange(offsets[-1])


def cut_runs(
    lengths: npt.ArrayLike, offsets: Int64, every: int
) -> tuple[Int64, Int64, Int64]:
    """Cut the runs of rows at every multiple of `every` in their row.

    Args:
        lengths: Length of each run, at least 1, one row after the other, int[n].
        offsets: Offsets of each row's runs, int64[rows + 1].
        every: Distance of the cuts in a row.

    Returns:
        Length of each piece, its row, and the number of its stretch of `every` places
        in the row, each int64[m].
    """
    edges = offsets_of(lengths)
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    # Places of each run in its row.
    row_start = edges[offsets[row]]
    run_start = edges[:-1] - row_start
    run_stop = edges[1:] - row_start
    # A run has a piece in each stretch from that of its first place to that of its
    # last.
    first_stretch = run_start // every
    piece_count = (run_stop - 1) // every - first_stretch + 1
    stretch = places(first_stretch, piece_count)
    # A piece is the part of the run inside its stretch.
    run_start_of_piece = np.repeat(run_start, piece_count)
    run_stop_of_piece = np.repeat(run_stop, piece_count)
    piece_start = np.maximum(run_start_of_piece, stretch * every)
    piece_stop = np.minimum(run_stop_of_piece, (stretch + 1) * every)
    return piece_stop - piece_start, np.repeat(row, piece_count), stretch


def grouped(values: Int64) -> tuple[Int64, Int64, Int64]:
    """Group equal values.

    It replaces ``np.unique`` with counts, which first imports ``numpy.ma``: a tenth of
    the time to a first batch.

    Returns:
        An order that sorts the values and keeps the order of equal ones, int64[n]; the
        k distinct values, ascending; and the start of each value in that order, with
        the end of the last, int64[k + 1].
    """
    order = np.argsort(values, kind="stable")
    if not len(values):
        return order, values[order], np.zeros(1, np.int64)
    ascending = values[order]
    later_starts = np.flatnonzero(np.diff(ascending)) + 1
    offsets = np.concatenate([[0], later_starts, [len(values)]]).astype(np.int64)
    return order, ascending[offsets[:-1]], offsets


def cells(lengths: Int64, width: int, *, left: bool) -> Bools:
    """Return the cells of n rows that hold a value and not padding: bool[n, width].

    Args:
        lengths: Number of values of each row, int64[n].
        width: Number of cells of a row.
        left: True if the padding is on the left.
    """
    column = np.arange(width)
    if left:
        return column >= (width - lengths)[:, None]
    return column < lengths[:, None]


@final
@dataclass(frozen=True, slots=True)
class Ragged:
    """n runs of ids, of any lengths.

    Attributes:
        ids: Ids of all runs, one run after the other, int32[total].
        offsets: Start of each run and the end of the last, int64[n + 1] from 0; run i
            is ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: Int32
    offsets: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """Length of each run, int64[n]."""
        return np.diff(self.offsets)

    @classmethod
    def taken(cls, ids: Int32, start: Int64, stop: Int64) -> Self:
        """Return the runs ``ids[start[i]:stop[i]]``, both int64[n]."""
        lengths = stop - start
        return cls(ids[places(start, lengths)], offsets_of(lengths))

    @classmethod
    def alike(cls, run: npt.ArrayLike, times: Bools | int) -> Self:
        """Return n equal runs.

        Args:
            run: Ids of the run.
            times: Number of runs; or bool[n], false for an empty run.
        """
        is_filled = np.ones(times, np.bool_) if isinstance(times, int) else times
        run_ids = np.asarray(run, np.int32)
        all_ids = np.tile(run_ids, int(is_filled.sum()))
        return cls(all_ids, offsets_of(is_filled * np.int64(len(run_ids))))

    @classmethod
    def filled(cls, value: int, lengths: Int64) -> Self:
        """Return runs of one value with the lengths `lengths`, int64[n]."""
        return cls(np.full(int(lengths.sum()), value, np.int32), offsets_of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return for each i the i-th runs of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        part_lengths = np.array([part.lengths for part in parts])
        offsets = offsets_of(part_lengths.sum(axis=0))
        joined_ids = np.empty(offsets[-1], np.int32)
        # All parts but the largest are written at their places. The largest fills the
        # rest in one masked assignment, which costs a third.
        is_free = np.ones(offsets[-1], np.bool_)
        start = offsets[:-1].copy()
        largest = int(np.argmax([len(part.ids) for part in parts]))
        for index, (part, lengths) in enumerate(zip(parts, part_lengths, strict=True)):
            if index != largest:
                indices = places(start, lengths)
                joined_ids[indices] = part.ids
                is_free[indices] = False
            start += lengths
        joined_ids[is_free] = parts[largest].ids
        return cls(joined_ids, offsets)

    def select(self, mask: Bools) -> Self:
        """Return the runs where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        return self.taken(self.ids, self.offsets[:-1][mask], self.offsets[1:][mask])

    def inserted(self, inserted_runs: Self, at: Int64) -> Self:
        """Return the runs with other runs inserted.

        Args:
            inserted_runs: Runs to insert.
            at: Position of each of them in the result, ascending, int64[k].
        """
        # Number of own runs before each inserted one.
        runs_before = at - np.arange(len(at))
        own_pieces = np.split(self.ids, self.offsets[runs_before])
        # The last own piece has no run behind it.
        inserted_pieces = [*inserted_runs.rows(), inserted_runs.ids[:0]]
        pieces: list[Int32] = []
        for own_piece, inserted_piece in zip(own_pieces, inserted_pieces, strict=True):
            pieces += (own_piece, inserted_piece)
        lengths = np.insert(self.lengths, runs_before, inserted_runs.lengths)
        return type(self)(np.concatenate(pieces), offsets_of(lengths))

    def cut(self, limits: Int64) -> Self:
        """Return the first ids of each run, at most `limits` (int64[n]) of them."""
        lengths = self.lengths
        if (lengths <= limits).all():
            return self
        start = self.offsets[:-1]
        return self.taken(self.ids, start, start + np.minimum(lengths, limits))

    def end(self, limits: Int64) -> Self:
        """Return the last ids of each run, at most `limits` (int64[n]) of them."""
        lengths = self.lengths
        if (lengths <= limits).all():
            return self
        stop = self.offsets[1:]
        return self.taken(self.ids, stop - np.minimum(lengths, limits), stop)

    def holds(self, value: int) -> Bools:
        """Return the runs that hold a value: bool[n]."""
        return self.counts(self.ids == value) > 0

    def counts(self, mask: Bools) -> Int64:
        """Return the number of ids of each run that `mask` (bool[total]) marks, int64[n]."""
        # Differences of running sums; a loop over runs would be a hundred times slower.
        return np.diff(offsets_of(mask)[self.offsets])

    def rows(self) -> list[Int32]:
        """Return each run, a view."""
        return [self.ids[start:stop] for start, stop in pairwise(self.offsets.tolist())]

    def rectangle(self, width: int, fill: int, *, left: bool) -> tuple[Int32, Bools]:
        """Return the runs as padded rows.

        Args:
            width: Length of a row; no run may be longer.
            fill: Id of the padding.
            left: True to pad on the left.

        Returns:
            The rows, int32[n, width], and bool[n, width], true for the ids of the runs.
        """
        holds_id = cells(self.lengths, width, left=left)
        rows = np.full(holds_id.shape, fill, np.int32)
        rows[holds_id] = self.ids
        return rows, holds_id

    def begins_with(self, run: Sequence[int]) -> Bools:
        """Return the runs that begin with `run`: bool[n]."""
        return self._holds_at(self.offsets[:-1], run)

    def ends_with(self, run: Sequence[int]) -> Bools:
        """Return the runs that end with `run`: bool[n]."""
        return self._holds_at(self.offsets[1:] - len(run), run)

    def _holds_at(self, start: Int64, run: Sequence[int]) -> Bools:
        """Return the runs that hold the ids of `run` at an index of theirs, bool[n].

        Args:
            start: Index in :attr:`ids` for each run, int64[n].
            run: Ids that are compared.
        """
        is_equal = self.lengths >= len(run)
        if not len(self.ids):
            return is_equal & (len(run) == 0)
        for index, value in enumerate(run):
            # In a run that is too short the index belongs to another run, or to none;
            # its result is false already.
            indices = np.clip(start + index, 0, len(self.ids) - 1)
            is_equal = is_equal & (self.ids[indices] == value)
        return is_equal


def common_prefix(left: Ragged, right: Ragged) -> Int64:
    """Return the length of the common beginning of two runs, for each pair, int64[n]."""
    # Both runs of a pair are cut to the length of the shorter one.
    lengths = np.minimum(left.lengths, right.lengths)
    left_begin = left.offsets[:-1]
    left_cut = Ragged.taken(left.ids, left_begin, left_begin + lengths)
    right_begin = right.offsets[:-1]
    right_cut = Ragged.taken(right.ids, right_begin, right_begin + lengths)
    # The first difference of a pair ends its common beginning.
    differences = np.flatnonzero(left_cut.ids != right_cut.ids)
    pair_of_difference = (
        np.searchsorted(left_cut.offsets, differences, side="right") - 1
    )
    pairs, first_indices = np.unique(pair_of_difference, return_index=True)
    lengths[pairs] = differences[first_indices] - left_cut.offsets[pairs]
    return lengths


def total_lengths(parts: Sequence[Ragged]) -> Int64:
    """Return the sum of the lengths of the i-th runs of all parts: int64[n]."""
    sums = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        sums += part.lengths
    return sums

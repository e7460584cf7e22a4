"""Arrays of numpy and Arrow: values over bytes that are already there, columns level by level, and runs end to end.

Documents in a batch, answers of a pair, pieces of a document: whatever has many lengths is one array and its offsets
(:class:`Ragged`). How runs are taken out, joined, cut and made rectangular comes down to :func:`places`, which says
where the values of runs lie.
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
"""(size, offset) -> bytes, fewer only at the end of the file."""

STRINGS: Final = frozenset({pa.string(), pa.large_string(), pa.string_view()})
"""Arrow's types of text."""

_ARROW: Final[Any] = pa  # the stubs know neither buffers of numpy arrays nor what from_buffers returns


@final
class RandomAccessFile(io.RawIOBase):
    """A file of so many bytes as Python and Arrow want one; it has a place of its own."""

    def __init__(self, size: int, pread: Pread) -> None:
        super().__init__()
        self._size, self._pread, self._at = size, pread, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Return the size; Arrow asks for it."""
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(offset + (0, self._at, self._size)[whence], 0)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._size - self._at, 0)
        data = self._pread(left if size is None or size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            data = self.read(len(target))
            target[: len(data)] = data
        return len(data)


def text_over(offsets: Int64s, data: pa.Buffer) -> pa.LargeStringArray:
    """Return the texts ``data[offsets[i]:offsets[i+1]]`` without copying; not validated."""
    return _ARROW.LargeStringArray.from_buffers(len(offsets) - 1, _ARROW.py_buffer(offsets), data)


def binary_over(offsets: Int64s, data: pa.Buffer) -> pa.LargeBinaryArray:
    """Return the byte strings ``data[offsets[i]:offsets[i+1]]`` without copying."""
    buffers = [None, _ARROW.py_buffer(offsets), data]
    return _ARROW.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


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
    """Return the texts of all arrays in one whose offset is 0; copies unless there is just one like that."""
    if len(arrays) == 1 and not arrays[0].offset:
        return arrays[0]
    return _ARROW.concat_arrays(arrays)


def string_buffers(text: pa.LargeStringArray) -> tuple[Int64, npt.NDArray[np.uint8]]:
    """Return views of a large_string array's offsets (int64[n + 1], may start past 0) and of its bytes."""
    _, offsets, data = text.buffers()
    if offsets is None or not len(text):
        return np.zeros(len(text) + 1, np.int64), np.empty(0, np.uint8)
    starts = np.frombuffer(memoryview(offsets), np.int64, len(text) + 1, text.offset * 8)
    return starts, np.empty(0, np.uint8) if data is None else np.frombuffer(memoryview(data), np.uint8)


def blocks(offsets: Int64, size: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of n rows (first, last exclusive) of at most `size` items by their offsets, or of one row."""
    first, count = 0, len(offsets) - 1
    while first < count:
        last = int(np.searchsorted(offsets, int(offsets[first]) + size, "right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def mask_of(keep: Bools) -> pa.BooleanArray:
    """Return bool[n] as an array; `pa.array` would import pandas where that is installed, 0.2 s."""
    bits = _ARROW.py_buffer(np.packbits(keep, bitorder="little"))
    return _ARROW.BooleanArray.from_buffers(pa.bool_(), len(keep), [None, bits])


def select(text: pa.LargeStringArray, keep: npt.NDArray[np.bool_]) -> pa.LargeStringArray:
    """Return the texts where `keep` is true."""
    return _ARROW.Array.filter(text, mask_of(keep))


def is_ascii(text: pa.LargeStringArray) -> bool:
    """Whether every byte of the array is ASCII (30 GB/s)."""
    offsets, data = string_buffers(text)
    used = data[offsets[0] : offsets[-1]]
    return not used.size or int(used.max()) < 0x80


def is_utf8(text: pa.Array[Any]) -> bool:
    """Say whether all texts, nested ones too, are valid UTF-8: 25 GB/s on ASCII, 1.4 GB/s on anything else."""
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

    Unlike ``to_pandas_dtype``, which raises in pyarrow below 26 where pandas is not installed.

    Raises:
        TypeError: for any other type.
    """
    dtype = _DTYPES.get(number.id)
    if dtype is None:
        raise TypeError(f"{number} has no NumPy dtype; expected integers or floats")
    return dtype


def values(array: Any) -> npt.NDArray[Any]:
    """Return the values of an Arrow array of numbers or bits without nulls, a view of them but for bits.

    As its ``to_numpy``, which first imports pandas where that is installed: most of the time to a first batch.
    """
    if array.null_count:
        raise ValueError(f"{array.null_count} nulls; expected none")
    data, first, count = array.buffers()[1], array.offset, len(array)
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(data, np.uint8) if count else np.zeros(0, np.uint8)
        return np.unpackbits(bits, count=first + count, bitorder="little")[first:].view(np.bool_)
    kind = dtype_of(array.type)
    if not count:
        return np.zeros(0, kind)
    return np.frombuffer(data, kind, count, first * kind.itemsize)


# Numbers of types: to ask the functions of `pyarrow.types` one after the other took a fifth of a small shard's hash.
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string()).id
_ROWS: Final = pa.list_(pa.int32(), 1).id
_LISTS: Final = frozenset({pa.list_(pa.int32()).id, pa.large_list(pa.int32()).id})
_STRUCT: Final = pa.struct([]).id
_NUMBERS: Final = frozenset({pa.int32().id, pa.int64().id})

Values = npt.NDArray[Any]
Level = tuple[int, Values | None, Values | None]
"""How many values a level of a column has, the values (None: they are in the levels below), which are null."""


def levels_of(array: Any) -> list[Level]:
    """Return the levels that make up a column, in a fixed order.

    A list has its lengths (int32, but where all lists have one), then the levels of its values; a struct none of its
    own, then those of each field; text and bytes have their lengths (int64), then their bytes. A null is zero, an empty
    list or an empty text.
    """
    kind, form = array.type, array.type.id
    if form == _DICTIONARY:
        return levels_of(array.dictionary_decode())
    nulls = np.flatnonzero(values(array.is_null())) if array.null_count else None
    own: list[Level] = [(len(array), None, nulls)]
    if form == _ROWS:
        return own + levels_of(array.flatten())
    if form in _LISTS:
        return [(len(array), _lengths(array, nulls, "<i4"), nulls), *levels_of(array.flatten())]
    if form == _STRUCT:
        children = array.flatten() if nulls is not None else map(array.field, range(kind.num_fields))
        return own + [level for child in children for level in levels_of(child)]
    return _flat(array, nulls)


@final
@dataclass(frozen=True, slots=True)
class FlatRows:
    """Rows whose columns are taken apart, by their names, in the order of their schema.

    Attributes:
        count: how many rows.
        levels: of each column, as :func:`levels_of` returns them.
    """

    count: int
    levels: dict[str, list[Level]]

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Self:
        """Take rows apart; what can be a view is one."""
        names = zip(rows.schema.names, rows.columns, strict=True)
        return cls(len(rows), {name: levels_of(column) for name, column in names})

    def __len__(self) -> int:
        return self.count


def _flat(array: Any, nulls: Values | None) -> list[Level]:
    """The level, or two, of an array that is not nested."""
    kind, types = array.type, pa.types
    if kind.id in _NUMBERS and nulls is None:
        return [(len(array), values(array), nulls)]
    if kind in STRINGS:
        return _bytes(array.cast(pa.large_string()).cast(pa.large_binary()), nulls)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _bytes(array.cast(pa.large_binary()), nulls)
    if types.is_decimal(kind) or types.is_null(kind):
        return _bytes(array.cast(pa.string()).cast(pa.large_binary()), nulls)
    if types.is_temporal(kind):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if nulls is not None:
        array = array.fill_null(False if types.is_boolean(kind) else 0)
    return [(len(array), np.ascontiguousarray(values(array)), nulls)]


def _bytes(array: Any, nulls: Values | None) -> list[Level]:
    if nulls is not None:
        array = array.fill_null(b"")
    size = len(array)
    if not size:
        return [(0, np.zeros(0, "<i8"), None), (0, np.zeros(0, np.uint8), None)]
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, np.int64, size + 1, 8 * array.offset)
    content = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    return [(size, np.diff(offsets).astype("<i8"), nulls), (len(content), content, None)]


def _lengths(array: Any, nulls: Values | None, kind: str) -> Values:
    lengths = np.diff(values(array.offsets)).astype(kind)
    if nulls is not None:
        lengths[nulls] = 0
    return lengths


def offsets_of(lengths: npt.ArrayLike) -> Int64:
    """Return where each of n runs begins, and the last ends: int64[n + 1] from 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def lengths_between(begins: Sequence[Sequence[int]], ends: Sequence[int]) -> Int64:
    """Return the length of each run of n wholes, one whole after the other: int64[runs].

    Args:
        begins: where the runs of each whole begin, ascending.
        ends: where each whole ends.
    """
    edges = chain.from_iterable((*begin, end) for begin, end in zip(begins, ends, strict=True))
    lengths = np.diff(np.fromiter(edges, np.int64))
    last = (
        np.cumsum([len(begin) + 1 for begin in begins], dtype=np.int64) - 1
    )  # from it on another whole begins
    return np.delete(lengths, last[:-1])


def places(start: Int64, lengths: Int64) -> Int64:
    """Return the indices ``start[i], start[i] + 1 ...``, `lengths[i]` of them, for each of n runs: int64[sum]."""
    offsets = offsets_of(lengths)
    return np.repeat(start - offsets[:-1], lengths) + np.arange(offsets[-1])


def cut_runs(lengths: npt.ArrayLike, offsets: Int64, every: int) -> tuple[Int64, Int64, Int64]:
    """Cut the runs of rows at every multiple of `every` in their row.

    Args:
        lengths: of the runs, one row after the other, int[n], at least 1.
        offsets: which are each row's, int64[rows + 1].
        every: at which places of a row runs are cut.

    Returns:
        lengths of the pieces, the row of each, and which stretch of `every` places of it each lies in, int64[m] all.
    """
    ends = offsets_of(lengths)
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    start, stop = (bounds - ends[offsets[row]] for bounds in (ends[:-1], ends[1:]))
    first = start // every
    pieces = (stop - 1) // every - first + 1
    stretch = places(first, pieces)
    begin, end = np.repeat(start, pieces), np.repeat(stop, pieces)
    cut = np.minimum(end, (stretch + 1) * every) - np.maximum(begin, stretch * every)
    return cut, np.repeat(row, pieces), stretch


def grouped(values: Int64) -> tuple[Int64, Int64, Int64]:
    """Bring equal values together.

    As ``np.unique`` with counts, which first imports ``numpy.ma``: a tenth of the time to a first batch.

    Returns:
        an order that sorts the values and leaves equal ones as they came, int64[n]; the k distinct values, ascending;
        and where each begins in that order and the last ends, int64[k + 1].
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    first = np.flatnonzero(np.diff(ascending)) + 1 if len(values) else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], first, [len(values)]]) if len(values) else np.zeros(1, np.int64)
    return order, ascending[offsets[:-1]], offsets.astype(np.int64)


def cells(lengths: Int64, width: int, *, left: bool) -> Bools:
    """Return which cells of n rows of `width` hold a value, padding being on the right or left: bool[n, width]."""
    place = np.arange(width)
    return place >= (width - lengths)[:, None] if left else place < lengths[:, None]


@final
@dataclass(frozen=True, slots=True)
class Ragged:
    """n runs.

    Attributes:
        ids: int32[total].
        offsets: int64[n + 1] from 0; run i is ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: Int32
    offsets: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """int64[n]."""
        return np.diff(self.offsets)

    @classmethod
    def taken(cls, ids: Int32, start: Int64, stop: Int64) -> Self:
        """Return the runs ``ids[start[i]:stop[i]]``, both int64[n]."""
        lengths = stop - start
        return cls(ids[places(start, lengths)], offsets_of(lengths))

    @classmethod
    def alike(cls, run: npt.ArrayLike, times: Bools | int) -> Self:
        """Return `run` where `times` (bool[n]) is true and nothing elsewhere; a number: so many times."""
        there = np.ones(times, np.bool_) if isinstance(times, int) else times
        values = np.asarray(run, np.int32)
        return cls(np.tile(values, int(there.sum())), offsets_of(there * np.int64(len(values))))

    @classmethod
    def filled(cls, value: int, lengths: Int64) -> Self:
        """Return runs of one value, `lengths` (int64[n])."""
        return cls(np.full(int(lengths.sum()), value, np.int32), offsets_of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return for each i the i-th runs of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = np.array([part.lengths for part in parts])
        offsets = offsets_of(sizes.sum(axis=0))
        ids, rest = np.empty(offsets[-1], np.int32), np.ones(offsets[-1], np.bool_)
        begin = offsets[:-1].copy()
        largest = int(np.argmax([len(part.ids) for part in parts]))
        for index, (part, lengths) in enumerate(zip(parts, sizes, strict=True)):
            if index != largest:
                at = places(begin, lengths)
                ids[at], rest[at] = part.ids, False
            begin += lengths
        # A mask costs a third of what places cost.
        ids[rest] = parts[largest].ids
        return cls(ids, offsets)

    def select(self, mask: Bools) -> Self:
        """Return the runs where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        return self.taken(self.ids, self.offsets[:-1][mask], self.offsets[1:][mask])

    def inserted(self, others: Self, at: Int64) -> Self:
        """Return the runs with `others` between them, so that these end up at the places `at` (ascending)."""
        before = at - np.arange(len(at))  # how many of these runs come before each of them
        pieces = np.split(self.ids, self.offsets[before])
        pairs = zip(pieces, [*others.rows(), others.ids[:0]], strict=True)
        lengths = np.insert(self.lengths, before, others.lengths)
        return type(self)(np.concatenate([piece for pair in pairs for piece in pair]), offsets_of(lengths))

    def cut(self, most: Int64) -> Self:
        """Return the first ids of each run, `most` (int64[n]) or fewer."""
        start, lengths = self.offsets[:-1], self.lengths
        return (
            self
            if (lengths <= most).all()
            else self.taken(self.ids, start, start + np.minimum(lengths, most))
        )

    def end(self, most: Int64) -> Self:
        """Return the last ids of each run, `most` (int64[n]) or fewer."""
        stop, lengths = self.offsets[1:], self.lengths
        return (
            self if (lengths <= most).all() else self.taken(self.ids, stop - np.minimum(lengths, most), stop)
        )

    def holds(self, value: int) -> Bools:
        """Return which runs hold a value: bool[n]."""
        return self.counts(self.ids == value) > 0

    def counts(self, mask: Bools) -> Int64:
        """Return how many ids of each run are marked by `mask` (bool[total]): int64[n]."""
        return np.diff(offsets_of(mask)[self.offsets])

    def rows(self) -> list[Int32]:
        """Return each run, a view."""
        return [self.ids[start:stop] for start, stop in pairwise(self.offsets.tolist())]

    def rectangle(self, width: int, fill: int, *, left: bool) -> tuple[Int32, Bools]:
        """Return n rows of `width`, none of which may be longer: int32[n, width], and bool, which cells hold ids."""
        here = cells(self.lengths, width, left=left)
        ids = np.full(here.shape, fill, np.int32)
        ids[here] = self.ids
        return ids, here

    def begins_with(self, run: Sequence[int]) -> Bools:
        """Return which runs begin with `run`: bool[n]."""
        return self._holds_at(self.offsets[:-1], run)

    def ends_with(self, run: Sequence[int]) -> Bools:
        """Return which runs end with `run`: bool[n]."""
        return self._holds_at(self.offsets[1:] - len(run), run)

    def _holds_at(self, start: Int64, run: Sequence[int]) -> Bools:
        same = self.lengths >= len(run)
        for index, value in enumerate(run):
            # Where the run is too short the place is another's, or nobody's: any will do.
            at = np.clip(start + index, 0, max(len(self.ids) - 1, 0))
            same = same & (self.ids[at] == value if len(self.ids) else False)
        return same


def common_prefix(left: Ragged, right: Ragged) -> Int64:
    """Return how many ids two runs begin with alike, for each pair: int64[n]."""
    lengths = np.minimum(left.lengths, right.lengths)
    a = Ragged.taken(left.ids, left.offsets[:-1], left.offsets[:-1] + lengths)
    b = Ragged.taken(right.ids, right.offsets[:-1], right.offsets[:-1] + lengths)
    differs = np.flatnonzero(a.ids != b.ids)
    row = np.searchsorted(a.offsets, differs, side="right") - 1
    rows, first = np.unique(row, return_index=True)
    lengths[rows] = differs[first] - a.offsets[rows]
    return lengths


def total_lengths(parts: Sequence[Ragged]) -> Int64:
    """Return the lengths of the i-th runs of all parts together: int64[n]."""
    total = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        total += part.lengths
    return total

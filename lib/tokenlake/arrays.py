"""Arrow arrays over bytes that are already there, and their values as numpy sees them, nested ones level by level."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.column_types import STRINGS

Bools = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
Int64s = Int64

Pread = Callable[[int, int], bytes]
"""(size, offset) -> bytes, fewer only at the end of the file."""

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
    kind = np.dtype(array.type.to_pandas_dtype())
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

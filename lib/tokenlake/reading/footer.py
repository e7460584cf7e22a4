"""What the footer of a shard says of where its columns lie, as plain numbers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self, final

import numpy as np

from tokenlake.parquet.thrift import Struct, read_struct
from tokenlake.ragged import Bools, Int64

# Ids of Thrift fields: of FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData.
_SCHEMA, _GROUPS = 2, 4
_REPETITION, _NAME, _CHILDREN = 3, 4, 5
_COLUMNS, _ROWS = 1, 3
_META = 3
_TYPE, _CODEC, _VALUES, _SIZE, _DATA, _DICTIONARY = 1, 4, 5, 7, 9, 11

_MAGIC: Final = b"PAR1"
_TAIL: Final = 1 << 16  # bytes that hold most footers, read at once
_ZSTD: Final = 6
_REQUIRED, _REPEATED = 0, 2


class ByteSource(Protocol):
    """The bytes of one open shard; any number of threads may read at once."""

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        ...


class ColumnChunk(NamedTuple):
    """A column of a row group.

    Attributes:
        begin, size: its bytes in the file.
        values: how many it holds, empty lists counted as one.
        kind: Parquet's number of the type its values have, if it is a list that our writers might have written (zstd,
            nothing may be null); else -1.
    """

    begin: int
    size: int
    values: int
    kind: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """A shard's footer.

    Attributes:
        rows: of each row group, int64[groups].
        sizes: bytes of each row group in the file, int64[groups].
        values: of each row group, how many each leaf of the schema has, int64[groups, leaves]; an empty list is one.
        lists: of each column that is a list of plain values: :class:`ColumnChunk` of all row groups, int64[groups, 4].
        digest: of the footer's bytes.
        chunks: of each column chunk: Parquet's number of its type, its values, its bytes, and where it begins,
            int64[groups, leaves, 4].
    """

    rows: Int64
    sizes: Int64
    values: Int64
    lists: dict[str, Int64]
    digest: int
    chunks: Int64

    @classmethod
    def read(cls, source: ByteSource) -> Self:
        """Read the footer of a shard.

        Raises:
            ValueError: there is none, or what it describes is not one column chunk after the other.
        """
        data = _footer_bytes(source)
        try:
            return cls._of(read_struct(data)[0], zlib.crc32(data), source.size - len(data))
        except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the footer lacks what it must have: {error!r}") from error

    @classmethod
    def _of(cls, metadata: Struct, digest: int, end: int) -> Self:
        groups: Sequence[Struct] = metadata[_GROUPS]
        rows = np.array([group[_ROWS] for group in groups], np.int64)
        found = [[_facts(column[_META]) for column in group[_COLUMNS]] for group in groups]
        leaves = len(found[0]) if found else 0
        facts = np.array(found, np.int64).reshape(len(found), leaves, 5)
        chunks, written = facts[:, :, :4], facts[:, :, 4] == 1
        _check_places(chunks[:, :, 3].ravel(), chunks[:, :, 2].ravel(), end)
        lists = {
            name: _list_chunks(chunks[:, leaf], written[:, leaf] & whole, kind)
            for name, (leaf, kind, whole) in _lists(metadata[_SCHEMA]).items()
        }
        return cls(rows, chunks[:, :, 2].sum(axis=1), chunks[:, :, 1], lists, digest, chunks)

    def is_of(self, source: ByteSource) -> bool:
        """Return whether a shard has this footer."""
        return zlib.crc32(_footer_bytes(source)) == self.digest

    def chunk(self, group: int, column: str) -> ColumnChunk:
        """Return a column chunk; ValueError where there is none."""
        if group >= len(self.rows) or column not in self.lists:
            raise ValueError(f"there is no column {column} of row group {group}")
        return ColumnChunk(*self.lists[column][group].tolist())


def _footer_bytes(source: ByteSource) -> bytes:
    """The end of a file: the footer's Thrift, its length in four bytes, ``PAR1``."""
    size = source.size
    tail = source.read(size - min(size, _TAIL), min(size, _TAIL))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("no Parquet magic bytes at the end of the file")
    length = 8 + int.from_bytes(tail[-8:-4], "little")
    if length > size - len(_MAGIC):
        raise ValueError(f"a footer of {length} bytes; the file has {size}")
    return tail[-length:] if length <= len(tail) else source.read(size - length, length)


def _lists(schema: Sequence[Struct]) -> dict[str, tuple[int, int, bool]]:
    """Return of each list: where it stands among the leaves, the type of its values, whether none can be null."""
    found: dict[str, tuple[int, int, bool]] = {}
    at, leaf = 1, 0
    while at < len(schema):
        end = _end(schema, at)
        if end - at == 3:
            outer, middle, values = schema[at:end]
            forms = outer.get(_REPETITION), middle.get(_REPETITION), values.get(_REPETITION)
            if forms[1] == _REPEATED and _TYPE in values:
                found[outer[_NAME].decode()] = (
                    leaf,
                    values[_TYPE],
                    forms == (_REQUIRED, _REPEATED, _REQUIRED),
                )
        leaf += sum(not element.get(_CHILDREN) for element in schema[at:end])
        at = end
    return found


def _end(schema: Sequence[Struct], at: int) -> int:
    """Return where the elements below one end; they follow it."""
    open_ = 1
    while open_:
        open_, at = open_ - 1 + schema[at].get(_CHILDREN, 0), at + 1
    return at


def _facts(chunk: Struct) -> tuple[int, int, int, int, bool]:
    """Type, values, bytes, first byte (a dictionary comes first), and whether it is compressed as our writers do."""
    dictionary = chunk.get(_DICTIONARY)
    return chunk[_TYPE], chunk[_VALUES], chunk[_SIZE], dictionary or chunk[_DATA], chunk[_CODEC] == _ZSTD


def _list_chunks(chunks: Int64, ours: Bools, kind: int) -> Int64:
    """Return a list's :class:`ColumnChunk` of all row groups, int64[groups, 4]."""
    types, values, size, begin = chunks.T
    return np.stack([begin, size, values, np.where(ours & (types == kind), kind, -1)], axis=1)


def _check_places(begin: Int64, size: Int64, end: int) -> None:
    """Raise ValueError unless column chunks follow each other from the first byte on, as writers lay them.

    A flipped bit in a footer could else lead from one good page to another.
    """
    if len(size) and not 0 <= size.min() <= size.max() <= end:
        raise ValueError(f"a column chunk of {size.min()} to {size.max()} bytes; expected 0 to {end}")
    expected = len(_MAGIC) + np.cumsum(size) - size
    wrong = np.flatnonzero(begin != expected)
    if len(wrong):
        raise ValueError(
            f"a column chunk at byte {begin[wrong[0]]}; expected byte {expected[wrong[0]]}, where the last one ends"
        )
    at = len(_MAGIC) + int(size.sum())
    if at > end:
        raise ValueError(f"column chunks up to byte {at}; the footer begins at {end}")

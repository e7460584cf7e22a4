"""What the footer of a shard says of where its columns lie, as plain numbers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.reading.ourgroups import (
    CHILDREN,
    COLUMNS,
    DATA,
    DICTIONARY,
    GROUPS,
    META,
    NAME,
    REPETITION,
    ROWS,
    SCHEMA,
    TAKEN,
    TYPE,
    OurGroups,
    read_groups,
)
from tokenlake.reading.thrift import Struct, read_struct

Int64 = npt.NDArray[np.int64]

_MAGIC: Final = b"PAR1"
_TAIL: Final = 1 << 16  # bytes that hold most footers, read at once
_ZSTD: Final = 6
_REQUIRED, _REPEATED = 0, 2
_TYPE, _CODEC, _VALUES, _SIZE, _BEGIN = range(len(TAKEN))  # where they are among the facts


class Source(Protocol):
    """The bytes of one open shard; any number of threads may read at once."""

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        ...


class Chunk(NamedTuple):
    """A column of a row group.

    Attributes:
        begin, size: its bytes in the file.
        values: how many it holds, empty lists counted as one.
        kind: Parquet's number of the type its values have, if it is a list that our writer might have written (zstd,
            no dictionary, nothing may be null); else -1.
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
        lists: of each column that is a list of plain values: :class:`Chunk` of all row groups, int64[groups, 4].
        digest: of the footer's bytes.
        facts: of each column chunk: Parquet's number of its type, its values, its bytes, and where it begins,
            int64[groups, columns, 4].
    """

    rows: Int64
    sizes: Int64
    values: Int64
    lists: dict[str, Int64]
    digest: int
    facts: Int64

    @classmethod
    def read(cls, source: Source) -> Self:
        """Read the footer of a shard.

        Raises:
            ValueError: there is none, or what it describes is not one column chunk after the other.
        """
        data = _footer_bytes(source)
        try:
            return cls._of(
                read_struct(data, (GROUPS, read_groups)), zlib.crc32(data), source.size - len(data)
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"the footer lacks what it must have: {error!r}") from error

    @classmethod
    def _of(cls, metadata: Struct, digest: int, end: int) -> Self:
        groups: OurGroups | list[Struct] = metadata[GROUPS]
        facts, rows = groups if isinstance(groups, OurGroups) else _facts(groups)
        plain = np.ones(facts.shape[:2], np.bool_)
        if facts.shape[2] > len(TAKEN):
            plain = facts[:, :, len(TAKEN)] == 0
        begin, size = facts[:, :, _BEGIN], facts[:, :, _SIZE]
        _check_places(begin.ravel(), size.ravel(), end)
        lists = {
            name: _chunks(facts[:, leaf], plain[:, leaf], kind, whole)
            for name, (leaf, kind, whole) in _lists(metadata[SCHEMA]).items()
        }
        kept = facts[:, :, [_TYPE, _VALUES, _SIZE, _BEGIN]]
        return cls(rows, size.sum(axis=1), facts[:, :, _VALUES], lists, digest, kept)

    def is_of(self, source: Source) -> bool:
        """Return whether a shard has this footer."""
        return zlib.crc32(_footer_bytes(source)) == self.digest

    def chunk(self, group: int, column: str) -> Chunk:
        """Return a column chunk; ValueError where there is none."""
        if group >= len(self.rows) or column not in self.lists:
            raise ValueError(f"there is no column {column} of row group {group}")
        return Chunk(*self.lists[column][group].tolist())


def _footer_bytes(source: Source) -> bytes:
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
            forms = outer.get(REPETITION), middle.get(REPETITION), values.get(REPETITION)
            if forms[1] == _REPEATED and TYPE in values:
                found[outer[NAME].decode()] = (
                    leaf,
                    values[TYPE],
                    forms == (_REQUIRED, _REPEATED, _REQUIRED),
                )
        leaf += sum(not element.get(CHILDREN) for element in schema[at:end])
        at = end
    return found


def _end(schema: Sequence[Struct], at: int) -> int:
    """Return where the elements below one end; they follow it."""
    open_ = 1
    while open_:
        open_, at = open_ - 1 + schema[at].get(CHILDREN, 0), at + 1
    return at


def _facts(groups: Sequence[Struct]) -> tuple[Int64, Int64]:
    """As :class:`OurGroups`, with a sixth fact: whether a column chunk has a dictionary, which it then begins with."""
    facts = [
        [
            [*(column[META][name] for name in TAKEN[:-1]), _begin(column[META]), DICTIONARY in column[META]]
            for column in group[COLUMNS]
        ]
        for group in groups
    ]
    columns = len(facts[0]) if facts else 0
    rows = np.array([group[ROWS] for group in groups], np.int64)
    return np.array(facts, np.int64).reshape(len(facts), columns, len(TAKEN) + 1), rows


def _chunks(facts: Int64, plain: npt.NDArray[np.bool_], kind: int, whole: bool) -> Int64:
    """Return (begin, size, values, kind) of a column in all row groups, int64[groups, 4]."""
    ours = plain & (facts[:, _TYPE] == kind) & (facts[:, _CODEC] == _ZSTD) & whole
    return np.stack([facts[:, _BEGIN], facts[:, _SIZE], facts[:, _VALUES], np.where(ours, kind, -1)], axis=1)


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


def _begin(chunk: Struct) -> int:
    return chunk.get(DICTIONARY) or chunk[DATA]

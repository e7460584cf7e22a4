"""What the footer of a shard says of where its columns lie, as plain numbers.

Row groups in a footer, in the one form that our writer gives them.

Reading any footer field by field takes a tenth of what decoding the shard does. In footers of ours everything but some
numbers is the same in all row groups, so that one pattern, made from the schema, finds these numbers at once.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.reading.thrift import STRUCT, Struct, list_head, read_struct

OurgroupsInt64 = npt.NDArray[np.int64]

# Ids of Thrift fields: of FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData.
SCHEMA, GROUPS = 2, 4
REPETITION, NAME, CHILDREN = 3, 4, 5
COLUMNS, ROWS = 1, 3
META = 3
TYPE, CODEC, VALUES, SIZE, DATA, DICTIONARY = 1, 4, 5, 7, 9, 11

_SKIP: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_TAKE: Final = rb"(" + _SKIP + rb")"
_SMALL: Final = rb"[\x00-\x7f]"
_BEFORE: Final = rb"&" + _SKIP + rb"\x1c\x15" + _TAKE + rb"\x19(?:\x15.|\x25..|\x35...)\x19"
_NUMBERS: Final = rb"\x15" + _TAKE + rb"\x16" + _TAKE + rb"\x16" + _SKIP + rb"\x16" + _TAKE + rb"&" + _TAKE
# What statistics there are: which pages have which encoding, how many levels there are of each.
_LEVELS: Final = rb"<(?:\x29&" + _SKIP * 2 + rb")?(?:[\x19\x39]&" + _SKIP * 2 + rb")?\x00"
_PAGES: Final = rb"I[\x1c\x2c\x3c](?:\x15" + _SMALL + rb"\x15" + _SMALL + rb"\x15" + _SKIP + rb"\x00){1,3}"
_STATISTICS: Final = rb"(?:" + _PAGES + rb"(?:" + _LEVELS + rb")?)?"
_AFTER: Final = (
    rb"\x16" + _SKIP + rb"\x16" + _TAKE + rb"&" + _SKIP + rb"\x16" + _SKIP + rb"(?:\x14" + _SKIP + rb")?\x00"
)
TAKEN: Final = (TYPE, CODEC, VALUES, SIZE, DATA)
"""What is taken of each column chunk."""

_LONGEST: Final = 9  # bytes of a varint of 63 bits


class OurGroups(NamedTuple):
    """Row groups that were found by the pattern.

    Attributes:
        facts: of each row group and column, as :data:`TAKEN` names them, int64[groups, columns, 5].
        rows: of each row group, int64[groups].
    """

    facts: OurgroupsInt64
    rows: OurgroupsInt64


def read_groups(data: bytes, at: int, before: Struct) -> tuple[OurGroups, int] | None:
    """Read the list of row groups that begins at a place of a footer.

    Args:
        before: the footer's fields before it.

    Returns:
        The row groups and where they end; None: they are not ours.
    """
    number, kind, at = list_head(data, at)
    form = _form(_paths(before[SCHEMA])) if kind == STRUCT and SCHEMA in before else None
    if form is None:
        return None
    found: list[bytes] = []
    for _ in range(number):
        if (group := form.match(data, at)) is None:
            return None
        found.extend(group.groups())
        at = group.end()
    if (numbers := _signed(found)) is None:
        return None
    numbers = numbers.reshape(number, form.groups)
    return OurGroups(numbers[:, :-1].reshape(number, -1, len(TAKEN)), numbers[:, -1]), at


def _signed(varints: list[bytes]) -> OurgroupsInt64 | None:
    """Return the numbers that varints are, as :func:`tokenlake.reading.thrift.signed`; None if one is too long."""
    data = np.frombuffer(b"".join(varints), np.uint8)
    after = np.flatnonzero(data < 0x80) + 1  # the last byte of each has no upper bit
    lengths = np.diff(after, prepend=0)
    if not len(after):
        return np.zeros(0, np.int64)
    if lengths.max() > _LONGEST:
        return None
    place = np.arange(len(data)) - np.repeat(after - lengths, lengths)
    parts = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    whole = np.add.reduceat(parts, after - lengths)
    return (whole >> np.uint64(1)).astype(np.int64) ^ -(whole & np.uint64(1)).astype(np.int64)


def _paths(schema: list[Struct]) -> tuple[tuple[bytes, ...], ...]:
    """Return of each leaf of a schema the names from below the root to it."""
    paths: list[tuple[bytes, ...]] = []
    above: list[tuple[bytes, int]] = []  # names, and how many below each are still to come
    for element in schema[1:]:
        if (children := element.get(CHILDREN, 0)) > 0:
            above.append((element[NAME], children))
            continue
        paths.append((*(name for name, _ in above), element[NAME]))
        while above:
            name, left = above.pop()
            if left > 1:
                above.append((name, left - 1))
                break
    return tuple(paths)


@functools.lru_cache(16)
def _form(paths: tuple[tuple[bytes, ...], ...]) -> re.Pattern[bytes] | None:
    """Return the pattern of a row group; None where it would need longer numbers than it has."""
    if not 0 < len(paths) < 15 or any(len(path) > 14 or len(name) > 127 for path in paths for name in path):
        return None
    columns = [_BEFORE + re.escape(_path(path)) + _NUMBERS + _STATISTICS + rb"\x00\x00" for path in paths]
    return re.compile(
        rb"\x19" + re.escape(bytes([len(paths) << 4 | 12])) + b"".join(columns) + _AFTER, re.DOTALL
    )


def _path(path: tuple[bytes, ...]) -> bytes:
    return bytes([len(path) << 4 | 8]) + b"".join(bytes([len(name)]) + name for name in path)


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

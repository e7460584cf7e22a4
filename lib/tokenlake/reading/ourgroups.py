"""Row groups in a footer, in the one form that our writer gives them.

Reading any footer field by field takes a tenth of what decoding the shard does. In footers of ours everything but some
numbers is the same in all row groups, so that one pattern, made from the schema, finds these numbers at once.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenlake.reading.thrift import STRUCT, Struct, list_head

Int64 = npt.NDArray[np.int64]

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

    facts: Int64
    rows: Int64


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


def _signed(varints: list[bytes]) -> Int64 | None:
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

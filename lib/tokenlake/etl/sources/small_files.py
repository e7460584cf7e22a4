"""Small files of JSON Lines, read and parsed as if they were one.

A file costs more than its bytes do.

Only whole plain files, of which texts alone are wanted, are read together. If there is
anything else to see in one of them, say a bad record, a byte order mark or an end in
the middle of a line, its group is read file by file, so that every fault and every
count belongs to its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64s, offsets_of
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.json import json_lines, parse_records
from tokenlake.etl.sources.lines import LineBlock, read_exactly
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.parsed import Want

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_SMALL_BYTES: Final = 64 << 10  # a file up to this size is small
_GROUP_BYTES: Final = 1 << 20  # they and their texts stay in the processor's cache
# Open files are read one after the other; the number bounds the objects of a group.
_GROUP_FILES: Final = 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles:
    """The records of several files, all of them good.

    Attributes:
        files: Files in the order in which they were read.
        text: Texts of the n records in order, large_string[n].
        file: Id of each record's file, int64[n].
        position: Byte offset of each record's line in its file, int64[n].
        normalized: Number of harmless repairs, by name, as of
            :class:`tokenlake.etl.sources.parsed.RowBatch`.
        bytes_read: Number of bytes of all files.
    """

    files: tuple[InputFile, ...]
    text: pa.LargeStringArray
    file: Int64s
    position: Int64s
    normalized: dict[str, int]
    bytes_read: int


def groups_of(
    parts: Sequence[FileRange], source: ResolvedSource
) -> Iterator[Sequence[FileRange]]:
    """Yield the ranges of a source in order, small files in groups.

    A group may be read together. Any other range is by itself.
    """
    group: list[FileRange] = []
    group_bytes = 0
    for part in parts:
        is_small = _can_be_grouped(part, source)
        has_room = (
            group_bytes + part.weight <= _GROUP_BYTES and len(group) < _GROUP_FILES
        )
        if group and not (is_small and has_room):
            yield group
            group = []
            group_bytes = 0
        if is_small:
            group.append(part)
            group_bytes += part.weight
        else:
            yield [part]
    if group:
        yield group


def read_together(
    parts: Sequence[FileRange], source: ResolvedSource
) -> SmallFiles | None:
    """Read one of the groups of :func:`groups_of`.

    Returns:
        The records; None if the files have to be read one by one.

    Raises:
        InputChangedError: A file is not, or does not stay, as it was planned.
    """
    if not _can_be_grouped(parts[0], source):  # then it is by itself
        return None

    # 1. All files, each with a newline at its end.
    contents: list[bytes] = []
    for part in parts:
        with opened(part.file) as input_bytes:
            content = read_exactly(part, input_bytes, part.file.size, 0)
        # Anything but an object at both ends, say a byte order mark or a cut record, is
        # left to the reader of single files.
        if content[:1] != b"{" or content[-1:] not in b"}\n":
            return None
        if content[-1:] != b"\n":
            content += b"\n"
        contents.append(content)

    # 2. Parsed as one block. A group is smaller than the pieces in which texts are
    #    parsed.
    joined_bytes = b"".join(contents)
    bytes_read = sum(part.weight for part in parts)
    block = LineBlock(
        data=joined_bytes, size=len(joined_bytes), offset=0, bytes_read=bytes_read
    )
    want = Want(text=source.content_field, max_record_bytes=source.max_record_bytes)
    (parsed,) = parse_records(json_lines(block), want)
    if parsed.bad or parsed.text is None:
        return None

    # 3. The file of each record, and its position there.
    file_starts = offsets_of([len(content) for content in contents])
    index_of_file = np.searchsorted(file_starts, parsed.positions, side="right") - 1
    file_ids = np.array([part.file.file_id for part in parts], np.int64)
    repairs = parsed.normalized.items()
    normalized = {repair: count for repair, count in repairs if count}
    files = tuple(part.file for part in parts)
    return SmallFiles(
        files=files,
        text=parsed.text,
        file=file_ids[index_of_file],
        position=parsed.positions - file_starts[index_of_file],
        normalized=normalized,
        bytes_read=bytes_read,
    )


def _can_be_grouped(part: FileRange, source: ResolvedSource) -> bool:
    """Say whether a range is a whole small local file of plain JSON Lines.

    It must have no predicate and no limit.
    """
    file = part.file
    is_whole = part.start == 0 and part.stop == file.size and part.rows is None
    is_plain_lines = file.format == "jsonl" and file.compression is None
    is_small = file.is_local and file.size <= _SMALL_BYTES
    return source.where is None and is_whole and is_plain_lines and is_small

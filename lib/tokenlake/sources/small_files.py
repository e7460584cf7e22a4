"""Small files of lines of JSON, read and parsed as if they were one: what a file costs is more than its bytes do.

Only whole plain files are, of which texts alone are wanted. Whatever else there is to see in one of them, say a bad
record, a byte order mark or an end in the midst of a line, sends its group back to be read file by file, where all of
that has its place and its words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Int64s
from tokenlake.sources.batch import Want
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.sources.json import parse_records, records_of
from tokenlake.sources.lines import LineBlock, read_exactly
from tokenlake.sources.opening import opened

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

SMALL: Final = 64 << 10
"""Bytes of a file up to which it is small."""
_TOGETHER: Final = 1 << 20
"""Bytes that are parsed at a time: they and their texts stay in the processor's cache."""
_MOST_FILES: Final = 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles:
    """The records of several files, all of them good.

    Attributes:
        files: in the order in which they were read.
        text: large_string[n], of the records in order.
        file, position: int64[n], the id of each record's file, and the byte of it at which its line begins.
        normalized: as in :class:`tokenlake.sources.batch.ReadBatch`.
        bytes_read: of all files.
    """

    files: tuple[InputFile, ...]
    text: pa.LargeStringArray
    file: Int64s
    position: Int64s
    normalized: dict[str, int]
    bytes_read: int


def groups_of(parts: Sequence[FileRange], source: ResolvedSource) -> Iterator[Sequence[FileRange]]:
    """Yield the ranges of a source in order: small files that may be read together in groups, any other by itself."""
    group, size = list[FileRange](), 0
    for part in parts:
        fits = _fits(part, source)
        if group and not (fits and size + part.weight <= _TOGETHER and len(group) < _MOST_FILES):
            yield group
            group, size = [], 0
        if fits:
            group.append(part)
            size += part.weight
        else:
            yield [part]
    if group:
        yield group


def read_together(parts: Sequence[FileRange], source: ResolvedSource) -> SmallFiles | None:
    """Read one of :func:`groups_of`; None where its files have to be read one by one.

    Raises:
        InputChangedError: a file is not, or does not stay, what was planned.
    """
    if not _fits(parts[0], source):  # then it is by itself
        return None
    contents: list[bytes] = []
    for part in parts:
        with opened(part.file) as data:
            content = read_exactly(part, data, part.file.size, 0)
        if content[:1] != b"{" or content[-1:] not in b"}\n":
            return None
        contents.append(content if content[-1:] == b"\n" else content + b"\n")
    return _parsed(parts, contents, Want(text=source.content_field, max_record_bytes=source.max_record_bytes))


def _parsed(parts: Sequence[FileRange], contents: Sequence[bytes], want: Want) -> SmallFiles | None:
    data, read = b"".join(contents), sum(part.weight for part in parts)
    edges = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(content) for content in contents], out=edges[1:])
    records = records_of(LineBlock(data=data, size=len(data), offset=0, bytes_read=read))
    # One piece: a group is smaller than those in which texts are parsed.
    (parsed,) = parse_records(records, want)
    if parsed.bad or parsed.text is None:
        return None
    number = np.searchsorted(edges, parsed.positions, side="right") - 1
    return SmallFiles(
        files=tuple(part.file for part in parts),
        text=parsed.text,
        file=np.array([part.file.file_id for part in parts], np.int64)[number],
        position=parsed.positions - edges[number],
        normalized={name: count for name, count in parsed.normalized.items() if count},
        bytes_read=read,
    )


def _fits(part: FileRange, source: ResolvedSource) -> bool:
    file = part.file
    return (
        source.where is None
        and file.size <= SMALL
        and (part.start, part.stop, part.rows) == (0, file.size, None)
        and (file.format, file.compression) == ("jsonl", None)
        and file.is_local
    )

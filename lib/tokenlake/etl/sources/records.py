"""Reading a range of an input: the format's reader, the predicate, the limit, and the policy for bad records.

Small files of lines of JSON are read and parsed as if they were one: what a file costs is more than its bytes do. Only
whole plain files are, of which texts alone are wanted. Whatever else there is to see in one of them, say a bad record,
a byte order mark or an end in the midst of a line, sends its group back to be read file by file, where all of that has
its place and its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64s, no_text, offsets_of, select
from tokenlake.config.formats import FORMATS, Format
from tokenlake.etl.sources.bad_records import BadLine, BadRecord, refuse
from tokenlake.etl.sources.file_signatures import check_plain
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.json import json_lines, parse_records
from tokenlake.etl.sources.lines import LineBlock, count_lines, read_exactly
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.parsed import ALL, BLOCK_BYTES, PLAIN, Parsed, RowBatch, TextBatch, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.where import Predicate

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Reader = Callable[[FileRange, InputBytes, Want, Predicate | None], Iterator[Parsed]]
"""Reads the records of a range in file order in bounded memory.

The predicate is a hint for formats with statistics: they may leave out stretches in which it holds
nowhere, counting the records as ``skipped["pruned"]``. Records are never left out one by one here.
"""

SMALL: Final = 64 << 10
"""Bytes of a file up to which it is small."""
_TOGETHER: Final = 1 << 20
"""Bytes that are parsed at a time: they and their texts stay in the processor's cache."""
_MOST_FILES: Final = 1024
_COUNTED_BYTES: Final = 1 << 30
_NOTHING: Final = np.zeros(0, np.int64)
_B = TypeVar("_B", bound=RowBatch)


def reader_of(format_: Format) -> Reader:
    """Return the reader of a format."""
    # By name: what one format needs is no burden to a worker that reads another.
    module, name = FORMATS[format_].reader
    return getattr(import_module(f"tokenlake.etl.sources.{module}"), name)


def read_range(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = (),
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[TextBatch]:
    """Read the texts of a range in batches of about 16 MB, in file order, in bounded memory.

    Under the policy ``quarantine`` bad records come in the batches' `bad`. The `bytes_read` of all
    batches sum up to ``part.weight``; a batch may be empty.

    Args:
        columns: top-level fields beside the text, None for all.
        block_bytes: how much is read at a time, of a file without row groups or batches.

    Raises:
        BadRecordError: a record is bad and the policy is ``fail``.
        DamagedFileError: the file cannot be trusted as a whole, whatever the policy.
        InputChangedError: the file is not, or does not stay, what was planned.
        ConfigError: `where` cannot be evaluated on the source's columns.
    """

    def batch(it: Parsed, account: dict[str, Any]) -> TextBatch:
        text = no_text() if it.text is None else it.text
        return TextBatch(text=text, table=_only(it.rows, columns), all_fields=columns is None, **account)

    return _read(part, source, columns, batch, text=True, block_bytes=block_bytes)


def read_rows(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None = ALL,
    *,
    if_there: bool = False,
    plain: str = PLAIN,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RowBatch]:
    """Read whole records of a range, without a look at their text; otherwise like :func:`read_range`.

    Args:
        columns: top-level fields, None for all.
        if_there: columns that an input lacks are left out, instead of being an error.
        plain: what the one column of plain text is called.
        block_bytes: how much is read at a time, of a file without row groups or batches.
    """

    def batch(it: Parsed, account: dict[str, Any]) -> RowBatch:
        return RowBatch(table=_only(it.rows, columns), all_fields=columns is None, **account)

    more: dict[str, Any] = {"if_there": if_there, "plain": plain, "block_bytes": block_bytes}
    return _read(part, source, columns, batch, **more)


def _only(rows: Rows | None, columns: tuple[str, ...] | None) -> Rows:
    """Leave out what only the predicate asked for."""
    if rows is None:
        return Rows(pa.RecordBatch.from_pydict({}))
    if columns is None:
        return rows
    if rows.has_objects:
        return Rows(objects=rows.objects, names=columns)
    there: list[str] = rows.columns.schema.names
    return Rows(rows.columns.select([name for name in columns if name in there]))


def _read(
    part: FileRange,
    source: ResolvedSource,
    columns: tuple[str, ...] | None,
    batch: Callable[[Parsed, dict[str, Any]], _B],
    *,
    text: bool = False,
    **more: Any,
) -> Iterator[_B]:
    """Take the blocks of a range through limit, predicate and policy; `more` are further wishes."""
    predicate = Predicate(source.where) if source.where else None
    if columns is not None and predicate is not None:
        columns = tuple(dict.fromkeys((*columns, *predicate.columns)))
    want = Want(
        text=source.content_field if text else None,
        columns=columns,
        max_record_bytes=source.max_record_bytes,
        delimiter=source.delimiter,
        **more,
    )
    left, unread = part.rows, part.weight
    with opened(part.file, source.storage_options) as data:
        data.max_expansion = source.max_expansion
        check_plain(data)
        blocks = reader_of(part.file.format)(part, data, want, predicate)
        policy = _Policy(part, data, source)

        def following() -> _B | None:
            nonlocal left, unread
            parsed = None if left == 0 else next(blocks, None)
            if parsed is None:
                return None
            if left is not None:
                parsed = _first(parsed, left, unread)
                left -= len(parsed) + len(parsed.bad) + sum(parsed.skipped.values())
            unread -= parsed.bytes_read
            parsed, left_out = _met(parsed, predicate)
            return batch(*policy.judged(parsed, left_out))

        # No reference to a block stays here: it can hold a text of 200 MB, which only its consumer keeps alive.
        yield from iter(following, None)
    if unread > 0:
        nothing = Parsed(text=None, positions=_NOTHING, bad=(), bytes_read=unread)
        yield batch(nothing, {"file": part.file, "positions": _NOTHING, "bytes_read": unread})


def _first(parsed: Parsed, count: int, weight: int) -> Parsed:
    """Return the first `count` records, good or bad, which weigh at most `weight`; skipped ones come first."""
    skipped = sum(parsed.skipped.values())
    over = max(0, skipped - count)
    parsed = replace(
        parsed,
        bytes_read=min(parsed.bytes_read, weight),
        skipped={key: max(0, n - over) for key, n in parsed.skipped.items()},
    )
    count = max(0, count - skipped)
    places = np.concatenate([parsed.positions, np.array([bad.position for bad in parsed.bad], np.int64)])
    if len(places) <= count:
        return parsed
    end = int(np.sort(places)[count])
    kept = _selected(parsed, parsed.positions < end)
    return replace(kept, bad=tuple(bad for bad in parsed.bad if bad.position < end))


def _selected(parsed: Parsed, keep: npt.NDArray[np.bool_]) -> Parsed:
    """Return the records where `keep` is true; what could not be read as a record stays."""
    if keep.all():
        return parsed
    chosen = set(parsed.positions[keep].tolist())
    return replace(
        parsed,
        text=None if parsed.text is None else select(parsed.text, keep),
        rows=None if parsed.rows is None else parsed.rows.select(keep),
        positions=parsed.positions[keep],
        doubtful=tuple(bad for bad in parsed.doubtful if bad.position in chosen),
    )


def _met(parsed: Parsed, predicate: Predicate | None) -> tuple[Parsed, Int64s]:
    """Return the records that meet the predicate, and the positions of those that do not.

    Those that it cannot judge are doubtful.
    """
    if predicate is None or parsed.rows is None or not len(parsed):
        return parsed, _NOTHING
    verdicts = predicate.judge(parsed.rows)
    stays = verdicts.mask.copy()
    stays[list(verdicts.faults)] = True
    kept = _selected(parsed, stays)
    failed = {int(parsed.positions[index]): fault for index, fault in verdicts.faults.items()}
    if failed:
        others = [line for line in kept.doubtful if line.position not in failed]
        bad = [parsed.as_bad(position, fault) for position, fault in failed.items()]
        kept = replace(kept, doubtful=(*others, *bad))
    return kept, parsed.positions[~stays]


def _without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


@final
class _Policy:
    """What becomes of bad records: the first ends the reading, or they are set aside."""

    def __init__(self, part: FileRange, data: InputBytes, source: ResolvedSource) -> None:
        self._part = part
        self._data = data
        self._fail = source.on_bad_record == "fail"
        # Lines of this range in the blocks before the one that is read.
        self._lines_of_blocks = 0
        # Lines of the file before this range; None: not counted yet. A compressed file is one range.
        self._lines_of_ranges: int | None = None if part.file.compression is None else 0

    def judged(self, parsed: Parsed, left_out: Int64s) -> tuple[Parsed, dict[str, Any]]:
        """Return the good records of a block, and the account of all of them; BadRecordError if one may not be bad."""
        bad = parsed.bad
        if parsed.doubtful:
            bad = tuple(sorted(bad + parsed.doubtful, key=lambda line: line.position))
            doubtful = [line.position for line in parsed.doubtful]
            parsed = _selected(parsed, ~np.isin(parsed.positions, doubtful))
        records = tuple(map(self._record, bad))
        self._lines_of_blocks += parsed.lines
        if records and self._fail:
            raise refuse(records[0], self._part.file)
        return parsed, {
            "file": self._part.file,
            "positions": parsed.positions,
            "bytes_read": parsed.bytes_read,
            "bad": records,
            "filtered": _without_zeros({"where": len(left_out)}),
            "left_out": left_out,
            "skipped": _without_zeros(parsed.skipped),
            "normalized": _without_zeros(parsed.normalized),
        }

    def _record(self, bad: BadLine) -> BadRecord:
        number: int | None = None
        if bad.line_index is not None:
            lines_of_range = self._lines_of_blocks + bad.line_index  # before the bad one
            # Lines before a range are counted only when the first number is needed. Where reading continues, they are
            # counted only within the first GiB: a unit at the end of a file of a terabyte would read all of it.
            if self._lines_of_ranges is None and (self._fail or self._part.start <= _COUNTED_BYTES):
                self._lines_of_ranges = count_lines(self._data, bad.position) - lines_of_range
            if self._lines_of_ranges is not None:
                number = self._lines_of_ranges + lines_of_range + 1
        return BadRecord(
            file=self._part.file.path,
            file_id=self._part.file.file_id,
            position=bad.position,
            line=number,
            reason=bad.fault.reason,
            detail=bad.fault.detail,
            raw=bad.raw,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles:
    """The records of several files, all of them good.

    Attributes:
        files: in the order in which they were read.
        text: large_string[n], of the records in order.
        file, position: int64[n], the id of each record's file, and the byte of it at which its line begins.
        normalized: as in :class:`tokenlake.etl.sources.parsed.RowBatch`.
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

    whole, read = b"".join(contents), sum(part.weight for part in parts)
    records = json_lines(LineBlock(data=whole, size=len(whole), offset=0, bytes_read=read))
    # One piece: a group is smaller than those in which texts are parsed.
    want = Want(text=source.content_field, max_record_bytes=source.max_record_bytes)
    (parsed,) = parse_records(records, want)
    if parsed.bad or parsed.text is None:
        return None
    edges = offsets_of([len(content) for content in contents])
    number = np.searchsorted(edges, parsed.positions, side="right") - 1
    return SmallFiles(
        files=tuple(part.file for part in parts),
        text=parsed.text,
        file=np.array([part.file.file_id for part in parts], np.int64)[number],
        position=parsed.positions - edges[number],
        normalized=_without_zeros(parsed.normalized),
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

"""Reading a range of an input: the formats behind one door, and the policy for bad records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

import numpy as np

from tokenlake.sources.arrays import no_text
from tokenlake.sources.batch import BadRecord, TextBatch, make_batch, refuse
from tokenlake.sources.blocks import count_lines, read_blocks
from tokenlake.sources.jsonl import read_jsonl
from tokenlake.sources.opening import opened
from tokenlake.sources.parquet import read_row_groups
from tokenlake.sources.parsed import BadLine, Parsed
from tokenlake.sources.split import FileRange
from tokenlake.sources.text import read_document, read_lines

if TYPE_CHECKING:
    from tokenlake.config.resolve import ResolvedSource

__all__ = ["BadRecord", "TextBatch", "read_range"]

_COUNTED_BYTES: Final = 1 << 30


def read_range(part: FileRange, source: ResolvedSource) -> Iterator[TextBatch]:
    """Read the records of a range in batches of about 16 MB, in file order, in bounded memory.

    Under the policy ``quarantine`` bad records come in the batches' `bad`. The `bytes_read` of all
    batches sum up to ``part.weight``; a batch may be empty.

    Raises:
        BadRecordError: a record is bad and the policy is ``fail``.
        DamagedFileError: the file cannot be trusted as a whole, whatever the policy.
        InputChangedError: the file is not, or does not stay, what was planned.
    """
    done = 0
    with opened(part.file) as descriptor:
        numbers = LineNumbers(part, descriptor, always=source.on_bad_record == "fail")
        for parsed in _parse(part, descriptor, source):
            done += parsed.bytes_read
            box = [_deliver(part, source, parsed, numbers)]
            del parsed  # a batch can hold a text of 200 MB: only its consumer keeps it alive
            yield box.pop()
    if done < part.weight:
        yield make_batch(part.file, no_text(), np.zeros(0, np.int64), bytes_read=part.weight - done)


def _parse(part: FileRange, descriptor: int, source: ResolvedSource) -> Iterator[Parsed]:
    limit = source.max_record_bytes
    if part.file.format == "parquet":
        return read_row_groups(part.file, descriptor, part.start, part.stop, source.content_field, limit)
    if part.file.format == "jsonl":
        return read_jsonl(read_blocks(part, descriptor, limit), source.content_field, limit)
    if part.file.text_mode == "lines":
        return read_lines(read_blocks(part, descriptor, limit), limit)
    return iter([read_document(part, descriptor, limit)])


def _deliver(part: FileRange, source: ResolvedSource, parsed: Parsed, numbers: LineNumbers) -> TextBatch:
    bad = tuple(_record(part, line, numbers) for line in parsed.bad)
    numbers.pass_over(parsed.lines)
    if bad and source.on_bad_record == "fail":
        raise refuse(bad[0], part.file.url)
    return make_batch(
        part.file, parsed.text, parsed.positions, parsed.bytes_read, bad=bad, normalized=parsed.normalized
    )


def _record(part: FileRange, line: BadLine, numbers: LineNumbers) -> BadRecord:
    return BadRecord(
        file=part.file.path,
        file_id=part.file.file_id,
        position=line.position,
        line=None if line.line is None else numbers.number(line.line, line.position),
        reason=line.fault.reason,
        detail=line.fault.detail,
        raw=line.raw,
    )


@final
class LineNumbers:
    """Numbers of lines in the file, for those who must name one.

    The lines before a range are counted only when the first number is asked for, and, unless
    `always`, only within the first GiB: a unit at the end of a file of a terabyte would else read it all.
    """

    def __init__(self, part: FileRange, descriptor: int, *, always: bool) -> None:
        self._part, self._descriptor, self._always = part, descriptor, always
        self._passed = 0
        self._before: int | None = None if part.file.compression is None else 0

    def pass_over(self, lines: int) -> None:
        """Note that a block of so many lines is done with."""
        self._passed += lines

    def number(self, line: int, position: int) -> int | None:
        """Return the 1-based number of line `line` of the block at hand, which starts at byte `position`."""
        if self._before is None:
            if not self._always and self._part.start > _COUNTED_BYTES:
                return None
            self._before = count_lines(self._descriptor, position) - self._passed - line
        return self._before + self._passed + line + 1

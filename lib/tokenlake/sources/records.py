"""Reading a range of an input: the formats behind one door, and the policy for bad records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

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
        for parsed in _parse(part, descriptor, source):
            done += parsed.bytes_read
            box = [_deliver(part, descriptor, source, parsed)]
            del parsed  # a batch can hold a text of 200 MB: only its consumer keeps it alive
            yield box.pop()
    if done < part.weight:
        yield make_batch(
            part.file, pa.array([], pa.large_string()), np.zeros(0, np.int64), bytes_read=part.weight - done
        )


def _parse(part: FileRange, descriptor: int, source: ResolvedSource) -> Iterator[Parsed]:
    limit = source.max_record_bytes
    if part.file.format == "parquet":
        return read_row_groups(part.file, part.start, part.stop, source.content_field)
    if part.file.format == "jsonl":
        return read_jsonl(read_blocks(part, descriptor, limit), source.content_field, limit)
    if part.file.text_mode == "lines":
        return read_lines(part, descriptor, limit)
    return iter([read_document(part, descriptor, limit)])


def _deliver(part: FileRange, descriptor: int, source: ResolvedSource, parsed: Parsed) -> TextBatch:
    bad = _locate(part, descriptor, parsed.bad) if parsed.bad else ()
    if bad and source.on_bad_record == "fail":
        raise refuse(bad[0], part.file.url)
    return make_batch(
        part.file, parsed.text, parsed.positions, parsed.bytes_read, bad=bad, normalized=parsed.normalized
    )


def _locate(part: FileRange, descriptor: int, bad: tuple[BadLine, ...]) -> tuple[BadRecord, ...]:
    """Give bad lines their number in the file; counting what is before the range is put off until here."""
    before = 0
    if bad[0].line is not None and splits_by_byte(part) and part.start:
        before = count_lines(descriptor, bad[0].position) - bad[0].line
    return tuple(
        BadRecord(
            file=part.file.path,
            file_id=part.file.file_id,
            position=line.position,
            line=None if line.line is None else before + line.line + 1,
            reason=line.fault.reason,
            detail=line.fault.detail,
            raw=line.raw,
        )
        for line in bad
    )


def splits_by_byte(part: FileRange) -> bool:
    """Say whether the range is one of bytes of a plain file."""
    return part.file.compression is None and part.file.format != "parquet"

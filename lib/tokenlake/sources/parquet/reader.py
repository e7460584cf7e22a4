"""Parquet: texts and columns, row group by row group, in bounded steps, page checksums verified.

Only what is wanted is decoded; damage in a column that is not read is not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.predicate.where import Predicate
from tokenlake.sources.arrays import concat, no_text
from tokenlake.sources.columnar.records import as_text, pick, row_records, text_records
from tokenlake.sources.columnar.unfolding import unfolded
from tokenlake.sources.columnar.windows import Windows
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.parquet.footer import first_rows, open_parquet
from tokenlake.sources.parquet.leaves import wanted_leaves
from tokenlake.sources.parquet.pruning import excluded
from tokenlake.sources.parquet.rowgroup import RowGroup
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.want import Want

_JOIN_BYTES: Final = 4 << 20  # small steps are joined up to this size
_COUNTED_ROWS: Final = 1 << 20


def read_parquet(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the row groups of `part`; extension columns come as their storage, dictionaries unfolded.

    Raises:
        DamagedFileError: the file is empty, cut or corrupt, its row counts disagree, what is wanted of
            it is missing, the text is not one of strings, or little would unfold to far too much.
    """
    windows = Windows(data)
    with open_parquet(data, windows) as parquet:
        meta, schema = parquet.metadata, parquet.schema_arrow
        starts = first_rows(part.file, meta)
        leaves = wanted_leaves(part, parquet, want)
    windows = Windows(data, len(leaves.indices))
    groups = range(part.start, part.stop)
    with open_parquet(data, windows, leaves.dictionaries, meta) as parquet:
        windows.expect(leaves.stretches(meta, groups))
        for group in groups:
            if predicate and excluded(predicate, meta, group, schema):
                yield _pruned(meta.row_group(group))
                continue
            opened_group = RowGroup(data, windows, parquet, group, leaves, want.max_record_bytes)
            yield from _records(opened_group, starts[group], want)


def _pruned(meta: pq.RowGroupMetaData) -> Parsed:
    nothing = np.zeros(0, np.int64)
    return Parsed(
        text=no_text(),
        positions=nothing,
        bad=(),
        bytes_read=meta.total_byte_size,
        skipped={"pruned": meta.num_rows},
    )


def _records(group: RowGroup, first: int, want: Want) -> Iterator[Parsed]:
    if not group.leaves.indices:
        return _counted(group, first)
    if group.leaves.names or want.columns is None:
        return _rows(group, first, want.max_record_bytes)
    return _texts(group, first, want.max_record_bytes)


def _counted(group: RowGroup, first: int) -> Iterator[Parsed]:
    """Yield the numbers of rows of which nothing is wanted."""
    done = 0
    while done < group.rows:
        size = min(_COUNTED_ROWS, group.rows - done)
        positions = np.arange(first + done, first + done + size, dtype=np.int64)
        done += size
        yield Parsed(text=None, positions=positions, bad=(), bytes_read=group.bytes_until(done))


def _texts(group: RowGroup, first: int, max_record_bytes: int) -> Iterator[Parsed]:
    done = 0
    for text in _joined(_picked(group)):
        size = len(text)
        box = [text_records(text, first + done, group.bytes_until(done + size), max_record_bytes)]
        del text
        yield box.pop()
        done += size


def _picked(group: RowGroup) -> Iterator[pa.LargeStringArray]:
    for batch in group.steps():
        box = [as_text(pick(batch, group.leaves.text))]
        del batch
        group.count_text(box[0].nbytes)
        yield box.pop()


def _rows(group: RowGroup, first: int, max_record_bytes: int) -> Iterator[Parsed]:
    leaves, done = group.leaves, 0
    for batch in group.steps():
        for piece in unfolded(batch, leaves.schema):
            text = as_text(pick(piece, leaves.text)) if leaves.text else None
            group.count_text(text.nbytes if text is not None else 0)
            rows = piece.select(list(leaves.names))
            done += piece.num_rows
            yield row_records(
                rows, text, first + done - piece.num_rows, group.bytes_until(done), max_record_bytes
            )


def _joined(arrays: Iterator[pa.LargeStringArray]) -> Iterator[pa.LargeStringArray]:
    """Join small arrays, so that what follows works on blocks."""
    held: list[pa.LargeStringArray] = []
    size = 0
    for array in arrays:
        held.append(array)
        size += array.nbytes
        del array
        if size >= _JOIN_BYTES:
            box, held, size = [concat(held)], [], 0
            yield box.pop()
    if held:
        yield concat(held)

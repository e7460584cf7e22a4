"""Arrow IPC files and streams, distinguished by their first bytes.

The batches of a file can be read in any order, those of a stream one after the other.

pyarrow decodes both. Four conditions are checked before it does, because it does not
check them:

- A file's footer lists all of its batches: the blocks fill the file from its schema to
  its footer.
- A stream ends with the marker of its end: a stream that was cut between two batches
  looks whole to pyarrow.
- The buffers of a message lie inside of its body.
- They do not take too much memory once they are decompressed.

Nothing is mapped into memory: a file that shrinks under a mapping kills the process.

Batches and rows are numbered from 0. The position of a record is its row index in the
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc

from tokenlake.base.arrays import Pread
from tokenlake.etl.sources import arrow_messages, columnar
from tokenlake.etl.sources.arrow_columns import StoredBatch, WantedColumns
from tokenlake.etl.sources.arrow_messages import (
    BATCH,
    DICTIONARY,
    FILE_START,
    SCHEMA,
    FileBlocks,
)
from tokenlake.etl.sources.arrow_stream import open_stream
from tokenlake.etl.sources.columnar import Piece
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.offset_checks import check_offsets
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.where import Predicate

_ARROW: Final[Any] = pa
_IPC: Final[Any] = pyarrow.ipc


def read_arrow(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the record batches of `part`.

    Extension columns are read as their storage, dictionaries unfolded.

    Raises:
        DamagedFileError: The file is empty, cut or corrupt, a wanted column is missing,
            the text does not consist of strings, or a batch would take too much memory.
    """
    open_batches = _open_file if arrow_messages.is_file(data) else open_stream
    columns, batches = open_batches(part, data, want)
    limit = want.max_record_bytes
    first_row = 0
    for batch_index in count():
        with columnar.reading(part.file, f"record batch {batch_index}"):
            batch = next(batches, None)
            if batch is None:
                return
            metadata = batch.message
            # Batches before the part are only counted: row indices are those of the
            # file.
            if batch_index < part.start:
                first_row += metadata.rows
                continue
            weight = _counted_once(batch.size)
            # Three ways lead from a batch to its records: texts straight from the file,
            # a count without any column, and pyarrow's decoder.
            if columns.is_sliceable(metadata):
                records = columnar.numbered(
                    columns.slices(batch), first_row, weight, limit
                )
            else:
                columns.check(metadata, batch.read)
                if columns.nothing:
                    records = columnar.counted_records(first_row, metadata.rows, weight)
                else:
                    records = columnar.numbered(
                        _decode(batch, columns), first_row, weight, limit
                    )
            # Only the consumer of the records keeps the batch alive that they are read
            # from.
            del batch
            yield from records
            del records
        first_row += metadata.rows


def _counted_once(size: int) -> Callable[[int], int]:
    """Return a weight of pieces.

    The first call returns the bytes of all of them, each later one 0.
    """
    sizes = chain([size], repeat(0))
    return lambda _: next(sizes)


def _decode(stored: StoredBatch, columns: WantedColumns) -> Iterator[Piece]:
    """Return a batch as pyarrow decodes it, in pieces, after a check of its offsets."""
    record_batch = stored.decode()
    # Row indices of later batches are counted by the metadata, so a batch that
    # disagrees with it would shift them.
    if record_batch.num_rows != stored.message.rows:
        raise ValueError(
            f"it holds {record_batch.num_rows} rows, its metadata counts {stored.message.rows}"
        )
    record_batch.validate()
    for column in record_batch.columns:
        check_offsets(column)
    return columns.rows(record_batch)


def _open_file(
    part: FileRange, data: InputBytes, want: Want
) -> tuple[WantedColumns, Iterator[StoredBatch]]:
    """Return the wanted columns of a file, and its batches to the last of `part`."""
    blocks = arrow_messages.read_footer(data)
    with columnar.reading(part.file, "its schema"):
        # The schema is stored twice, and pyarrow decodes by the one in the footer,
        # which has no checksum. The two must agree.
        schema = _first_schema(data)
        with _as_arrow_file(data) as source:
            if not schema.equals(_IPC.open_file(source).schema):
                raise ValueError(
                    "the schema at the beginning of the file differs from the one in its footer"
                )
        columns = WantedColumns(part.file, schema, want)
    return columns, _batches_of_file(part, data, blocks, columns)


def _first_schema(data: InputBytes) -> pa.Schema:
    """Return the schema at the beginning of a file, which its footer repeats."""
    length_size, metadata_size = arrow_messages.metadata_size(
        data.pread(8, FILE_START).ljust(8, b"\0")
    )
    metadata = data.pread(length_size + metadata_size, FILE_START)
    is_whole = metadata_size > 0 and len(metadata) == length_size + metadata_size
    if (
        not is_whole
        or arrow_messages.parse_message(metadata[length_size:]).kind != SCHEMA
    ):
        raise ValueError("the file has no schema after its first bytes")
    return _IPC.read_schema(pa.py_buffer(metadata))


def _as_arrow_file(data: InputBytes) -> Any:
    """Return a new file object of pyarrow."""
    arrow_input = data.for_arrow()
    # A local file is a path, which pyarrow opens by itself. Any other input is read
    # through Python.
    if isinstance(arrow_input, str):
        return _ARROW.OSFile(arrow_input)
    return _ARROW.PythonFile(arrow_input, mode="r")


def _batches_of_file(
    part: FileRange, data: InputBytes, blocks: FileBlocks, columns: WantedColumns
) -> Iterator[StoredBatch]:
    """Yield the batches of a file from its first one on, to the last one of `part`."""
    # pyarrow decodes all dictionaries with the first batch.
    for block_index, block in enumerate(blocks.dictionaries):
        with columnar.reading(part.file, f"dictionary {block_index}"):
            metadata = arrow_messages.read_message(data.pread, block, DICTIONARY)
            columns.check(metadata, _body_reader(data, block.offset + block.metadata))
    with _as_arrow_file(data) as source:
        reader = _IPC.open_file(source, options=columns.options)
        for block_index, block in enumerate(blocks.batches[: part.stop]):
            metadata = arrow_messages.read_message(data.pread, block, BATCH)
            read_body = _body_reader(data, block.offset + block.metadata)
            yield StoredBatch(
                metadata, block.size, read_body, partial(reader.get_batch, block_index)
            )


def _body_reader(data: InputBytes, start: int) -> Pread:
    """Return a function that reads from the body of a message.

    The body begins at byte `start` of a file.
    """

    def read(size: int, offset: int) -> bytes:
        # Callers unpack exact sizes. Bytes beyond the end of the file read as zero.
        return data.pread(size, start + offset).ljust(size, b"\0")

    return read

"""Files of token ids whose records are numbered.

Any record can be read without those before it.

A format opens a file as :class:`NumberedRecords`. This module cuts the file into ranges
of records, and reads a range in blocks of bounded size. Records are numbered from 0,
and the position of a record is its number.

Example: a file has 4 records of 10, 30, 5 and 15 bytes, its edges are ``[0, 10, 40, 45,
60]``. With units of 25 bytes the first range ends where at least 25 bytes are read,
behind record 1, and the second one holds records 2 and 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.base.lazy_names import load
from tokenlake.config.formats import Format
from tokenlake.etl.sources.bad_records import BadLine, Fault
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, no_column, unsuitable
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.opening import open_companions, opened
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.where import Predicate

Numbers: TypeAlias = npt.NDArray[Any]
"""Values of a one-dimensional array of integers of any type."""

_ARROW: Final[Any] = pa
_SPLIT_RECORDS: Final = 1 << 20
"""Records whose edges are looked at together when a file is cut into ranges."""
_BLOCK_RECORDS: Final = 1 << 17
"""Largest number of records of a block, however small they are."""


class NumberedRecords(ABC):
    """An open file of numbered records.

    Attributes:
        count: Number of its records.
        names: Names of the fields that each record has.
    """

    count: int
    names: tuple[str, ...]

    @abstractmethod
    def edges(self, first: int, last: int) -> Int64:
        """Return the edges of records ``first:last`` in bytes.

        They are the beginnings, and the end of the last one, int64[last - first + 1].
        """

    @abstractmethod
    def read(self, first: int, last: int, names: Sequence[str]) -> pa.RecordBatch:
        """Return some fields of records ``first:last``, each a list of integers.

        Raises:
            DamagedFileError: The records are not as the file says they are.
        """


_OPENERS: Final[Mapping[Format, str]] = {
    "megatron": "tokenlake.etl.sources.megatron:open_megatron",
    "mds": "tokenlake.etl.sources.mds:open_mds",
    "litdata": "tokenlake.etl.sources.litdata:open_litdata",
    "array_record": "tokenlake.etl.sources.array_record:open_array_record",
}
"""Format -> function of an open file and a :class:`Want` that returns its records,
as ``module:name``.
"""


def open_numbered(data: InputBytes, want: Want) -> NumberedRecords:
    """Return the records of an open file.

    Args:
        data: The file.
        want: Form of its ids, and the open files that belong to it.

    Raises:
        DamagedFileError: The file is cut, or does not agree with its index.
        UnsuitableFileError: The file is whole, but its records are not read here.
    """
    # By its name, so that a format costs no import, and no package, until it is read.
    format_name = data.file.format
    opener: Callable[[InputBytes, Want], NumberedRecords] = load(
        _OPENERS[format_name], f"format {format_name!r}", "etl"
    )
    return opener(data, want)


def split_records(
    file: InputFile, unit_size: int, storage_options: Mapping[str, Any] | None = None
) -> list[FileRange]:
    """Cut a file into ranges of records of about `unit_size` bytes.

    Args:
        file: The file.
        unit_size: Size of a range in bytes.
        storage_options: Options of the file system that a URL is on.

    Raises:
        DamagedFileError: The file is cut, or does not agree with its index.
    """
    # Edges are read in portions: a file may have billions of records.
    with _opened_records(file, storage_options) as records:
        ranges: list[FileRange] = []
        first_record = 0  # of the range that is not ended yet, and its first byte
        first_byte = int(records.edges(0, 0)[0])
        last_byte = first_byte
        for portion_start in range(0, records.count, _SPLIT_RECORDS):
            portion_stop = min(portion_start + _SPLIT_RECORDS, records.count)
            edges = records.edges(portion_start, portion_stop)
            last_byte = int(edges[-1])
            # A range ends behind the first record that fills it.
            edge_index = int(np.searchsorted(edges, first_byte + unit_size))
            while edge_index < len(edges):
                stop_record = portion_start + edge_index
                weight = int(edges[edge_index]) - first_byte
                ranges.append(_range_of(file, first_record, stop_record, weight))
                first_record = stop_record
                first_byte += weight
                edge_index = int(np.searchsorted(edges, first_byte + unit_size))
        # The rest of the file; a file without records has one range, too.
        if first_record < records.count or not ranges:
            weight = last_byte - first_byte
            ranges.append(_range_of(file, first_record, records.count, weight))
        return ranges


def _range_of(file: InputFile, start: int, stop: int, weight: int) -> FileRange:
    return FileRange(
        file=file, start=start, stop=stop, weight=weight, records=stop - start
    )


@contextmanager
def _opened_records(
    file: InputFile, storage_options: Mapping[str, Any] | None
) -> Generator[NumberedRecords]:
    """Yield the records of a file, for a look at their number and sizes."""
    with ExitStack() as files:
        data = files.enter_context(opened(file, storage_options))
        companions = open_companions(file, storage_options, files)
        yield open_numbered(data, Want(text=None, companions=companions))


def read_numbered(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the records of a range in blocks.

    See :data:`tokenlake.etl.sources.records.Reader`.
    """
    # An index or another file beside the records has no records of its own.
    input_file = part.file
    if input_file.companion:
        return
    records = open_numbered(data, want)
    field_names = want.names(records.names)
    for field_name in field_names:
        if field_name not in records.names:
            raise no_column(input_file, field_name, records.names)
    # A file that is compressed as a whole is one range, whose records were not counted
    # when it was planned.
    stop_record = part.stop
    if input_file.compression is not None:
        stop_record = records.count
    if stop_record > records.count:
        raise damaged(
            input_file, f"it has {records.count} records, expected {stop_record}"
        )

    # Weights of blocks are shares of the weight of the range, which add up to it.
    first_record = part.start
    first_byte = int(records.edges(first_record, first_record)[0])
    range_bytes = int(records.edges(stop_record, stop_record)[0]) - first_byte
    weight_before = 0
    while first_record < stop_record:
        # 1. As many records as fit into a block, at least one. A record that is too
        #    long is a block by itself.
        edges_stop = min(stop_record, first_record + _BLOCK_RECORDS)
        edges = records.edges(first_record, edges_stop)
        block_end = edges[0] + want.block_bytes
        record_count = int(np.searchsorted(edges, block_end, side="right")) - 1
        record_count = max(1, record_count)
        record_sizes = np.diff(edges[: record_count + 1])
        long_records = np.flatnonzero(record_sizes > want.max_record_bytes)
        begins_too_long = False
        if len(long_records):
            record_count = max(1, int(long_records[0]))
            begins_too_long = int(long_records[0]) == 0
        end_record = first_record + record_count
        # 2. Input bytes, which the range counts as they are stored.
        block_bytes = int(edges[record_count]) - first_byte
        weight = part.weight * block_bytes // max(range_bytes, 1)
        bytes_read = weight - weight_before
        weight_before = weight
        # 3. The records, or the one that is too long.
        if begins_too_long:
            yield _too_long(
                first_record, int(record_sizes[0]), want.max_record_bytes, bytes_read
            )
        else:
            rows = None
            if field_names:
                batch = records.read(first_record, end_record, field_names)
                rows = Rows(_checked(input_file, batch, record_count))
            yield Parsed(
                text=None,
                positions=np.arange(first_record, end_record, dtype=np.int64),
                bad=(),
                bytes_read=bytes_read,
                rows=rows,
            )
        first_record = end_record


def _checked(file: InputFile, rows: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """Return rows; they must be as many as the records that were asked for."""
    if rows.num_rows != count:
        raise damaged(file, f"{count} records hold {rows.num_rows} lists of ids")
    return rows


def _too_long(position: int, size: int, limit: int, bytes_read: int) -> Parsed:
    """Return a record that is too long as a bad one."""
    fault = Fault(
        "record_too_long", f"the record has {size} bytes, max_record_bytes is {limit}"
    )
    return Parsed(
        text=None,
        positions=np.zeros(0, np.int64),
        bad=(BadLine(position, None, fault, b""),),
        bytes_read=bytes_read,
    )


def id_batch(columns: Mapping[str, tuple[Numbers, Int64]]) -> pa.RecordBatch:
    """Return lists of integers as columns; nothing is copied.

    Args:
        columns: Name -> values of all lists, and where each list begins and the last
            one ends, int64[n + 1].
    """
    # Large lists take the offsets as they are, int64.
    arrays: list[Any] = []
    for values, offsets in columns.values():
        # Arrow takes the bytes of a machine with little-endian integers, as the files
        # have them.
        plain_values = values.astype(values.dtype.newbyteorder("="), copy=False)
        list_array = _ARROW.LargeListArray.from_arrays(
            _ARROW.array(offsets), _ARROW.array(plain_values)
        )
        arrays.append(list_array)
    return _ARROW.RecordBatch.from_arrays(arrays, names=list(columns))


def index_of(file: InputFile, want: Want, name: str) -> InputBytes:
    """Return the open index of a file.

    Args:
        file: The file.
        want: Wishes to its reader, with the open files that belong to it.
        name: Name that the format has for the index.

    Raises:
        UnsuitableFileError: The file was opened without its index.
    """
    index = want.companions.get(name)
    if index is None:
        raise unsuitable(
            file,
            f"it is read by its index ({name}), which is not there",
            "put it beside the file",
        )
    return index


def require_dtype(file: InputFile, want: Want, content: str) -> np.dtype[Any]:
    """Return the type of ids of a file that does not state one.

    It is that of the section `tokens`.

    Args:
        file: The file.
        want: Wishes to its reader.
        content: Part of the file, for messages.

    Raises:
        UnsuitableFileError: The configuration does not state it either.
    """
    # A type that is guessed wrong would read other ids, and no error would show it.
    type_name: str | None = None
    if want.tokens is not None:
        type_name = want.tokens.dtype
    if type_name is None:
        raise unsuitable(
            file,
            f"{content} does not state the type of its ids",
            "set tokens.dtype (uint16, int32, uint32 or int64)",
        )
    return np.dtype(type_name).newbyteorder("<")

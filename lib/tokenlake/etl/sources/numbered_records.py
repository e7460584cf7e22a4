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
    name = data.file.format
    opener: Callable[[InputBytes, Want], NumberedRecords] = load(
        _OPENERS[name], f"format {name!r}", "etl"
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
        start = 0  # first record of the range, and its first byte
        begin = int(records.edges(0, 0)[0])
        end = begin
        for first in range(0, records.count, _SPLIT_RECORDS):
            edges = records.edges(first, min(first + _SPLIT_RECORDS, records.count))
            end = int(edges[-1])
            # A range ends behind the first record that fills it.
            while (row := int(np.searchsorted(edges, begin + unit_size))) < len(edges):
                ranges.append(
                    _range_of(file, start, first + row, int(edges[row]) - begin)
                )
                start = first + row
                begin = int(edges[row])
        if start < records.count or not ranges:
            ranges.append(_range_of(file, start, records.count, end - begin))
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
    file = part.file
    if file.companion:
        return
    records = open_numbered(data, want)
    names = want.names(records.names)
    for name in names:
        if name not in records.names:
            raise no_column(file, name, records.names)
    # A file that is compressed as a whole is one range, whose records were not counted
    # when it was planned.
    stop = part.stop
    if file.compression is not None:
        stop = records.count
    if stop > records.count:
        raise damaged(file, f"it has {records.count} records, expected {stop}")

    # Weights of blocks are shares of the weight of the range, which add up to it.
    first = part.start
    begin = int(records.edges(first, first)[0])
    size = int(records.edges(stop, stop)[0]) - begin
    weight_before = 0
    while first < stop:
        # 1. As many records as fit into a block, at least one. A record that is too
        #    long is a block by itself.
        edges = records.edges(first, min(stop, first + _BLOCK_RECORDS))
        count = max(
            1,
            int(np.searchsorted(edges, edges[0] + want.block_bytes, side="right")) - 1,
        )
        long_records = np.flatnonzero(
            np.diff(edges[: count + 1]) > want.max_record_bytes
        )
        if len(long_records):
            count = max(1, int(long_records[0]))
        last = first + count
        # 2. Input bytes, which the range counts as they are stored.
        weight = part.weight * (int(edges[count]) - begin) // max(size, 1)
        bytes_read = weight - weight_before
        weight_before = weight
        # 3. The records, or the one that is too long.
        if len(long_records) and int(long_records[0]) == 0:
            yield _too_long(
                first, int(edges[1] - edges[0]), want.max_record_bytes, bytes_read
            )
        else:
            rows = None
            if names:
                rows = Rows(_checked(file, records.read(first, last, names), count))
            positions = np.arange(first, last, dtype=np.int64)
            yield Parsed(
                text=None, positions=positions, bad=(), bytes_read=bytes_read, rows=rows
            )
        first = last


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
    names: list[str] = []
    arrays: list[Any] = []
    for name, (values, offsets) in columns.items():
        names.append(name)
        # Arrow takes the bytes of a machine with little-endian integers, as the files
        # have them.
        plain_values = values.astype(values.dtype.newbyteorder("="), copy=False)
        arrays.append(
            _ARROW.LargeListArray.from_arrays(
                _ARROW.array(offsets), _ARROW.array(plain_values)
            )
        )
    return _ARROW.RecordBatch.from_arrays(arrays, names=names)


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
    dtype = None if want.tokens is None else want.tokens.dtype
    if dtype is None:
        raise unsuitable(
            file,
            f"{content} does not state the type of its ids",
            "set tokens.dtype (uint16, int32, uint32 or int64)",
        )
    return np.dtype(dtype).newbyteorder("<")

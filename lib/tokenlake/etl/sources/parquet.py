"""Parquet: texts and columns, row group by row group, in steps of bounded memory, page checksums verified.

Only what is wanted is decoded; damage in a column that is not read is not looked for. What a step can cost is bounded
by the pages' headers, never by what the footer declares: a page holds at most its size in values, and an index may
stand for the largest entry of the dictionary. Row groups in which a predicate surely holds nowhere are not read.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenlake.base.arrays import concat, no_text
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import columnar
from tokenlake.etl.sources.contents import wrong_magic
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.where import ColumnRange, Predicate
from tokenlake.runtime.parquet.page_headers import DELTA_BYTE_ARRAY, PageHeader, chunk_start, walk_pages
from tokenlake.runtime.reading.unfolding import Bomb, check_unfolded

_MAGIC: Final = b"PAR1"
_BUFFER_BYTES: Final = 1 << 20  # a column chunk is streamed, never held compressed as a whole
_COMPUTE: Final[Any] = pc
STEP_BYTES: Final = 8 << 20  # aimed at
_STEP_ROWS: Final = 1 << 16
_RARELY: Final = 16  # hardly ever is every row the largest it can be; a step then takes so many times more
_MAX_PAGE_BYTES: Final = 512 << 20  # beyond the largest record there may be
_ROW_BYTES: Final = 8  # an offset and a bit of validity, or a number
_INDEX_BYTES: Final = 4
_NUMBER_BYTES: Final = 16
_FEW_ROWS: Final = 4096  # not worth a look into the dictionary
_JOIN_BYTES: Final = 4 << 20  # small steps are joined up to this size
_ENCODED: Final = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_COMPARED: Final[tuple[tuple[Callable[[Any], bool], type], ...]] = (
    (pa.types.is_integer, int),
    (pa.types.is_boolean, bool),
    (pa.types.is_date32, datetime.date),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
)


def row_group_starts(data: InputBytes) -> list[int]:
    """Return the number of the first row of every row group, and behind them the number of rows.

    Raises:
        DamagedFileError: the footer cannot be read, or its counts disagree.
    """
    return _first_rows(data.file, footer(data))


def footer(data: InputBytes) -> pq.FileMetaData:
    """Return the footer of an open file; DamagedFileError if it cannot be read."""
    with open_parquet(data) as parquet:
        return parquet.metadata


def _first_rows(file: InputFile, meta: pq.FileMetaData) -> list[int]:
    rows = [meta.row_group(index).num_rows for index in range(meta.num_row_groups)]
    if sum(rows) != meta.num_rows or min(rows, default=0) < 0:
        raise damaged(
            file, f"its footer counts {meta.num_rows} rows, its {len(rows)} row groups together {sum(rows)}"
        )
    return list(accumulate(rows, initial=0))


def open_parquet(
    data: InputBytes, dictionaries: Sequence[str] = (), meta: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Open a Parquet file for reading in steps, page checksums verified.

    Args:
        data: the open file.
        dictionaries: paths of the columns of strings that are read as dictionaries.
        meta: the footer if it is known.

    Raises:
        DamagedFileError: its footer cannot be read.
    """
    try:
        with columnar.reading(data.file, "its footer"):
            return pq.ParquetFile(
                data.for_arrow(),
                metadata=meta,
                read_dictionary=list(dictionaries),
                page_checksum_verification=True,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
            )
    except DamagedFileError:
        # Only where it cannot be read it costs a look at its beginning.
        if (error := wrong_magic(data, _MAGIC, "Parquet file")) is not None:
            raise error from None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What is read of a file.

    Attributes:
        text: where the text is, () where none is wanted.
        names: the columns that are wanted as rows.
        indices: the leaves that are decoded, by their number in the file's schema.
        dictionaries: paths of leaves that are read as dictionaries, so that they can be measured first.
        schema: of all that is read, as it is handed over.
    """

    text: tuple[str, ...]
    names: tuple[str, ...]
    indices: tuple[int, ...]
    dictionaries: tuple[str, ...]
    schema: pa.Schema


def _wanted_leaves(part: FileRange, parquet: pq.ParquetFile, want: Want) -> Leaves:
    """Return what to read of a file.

    Raises:
        DamagedFileError: a wanted column is missing or there twice, or the text is not one of strings.
    """
    with columnar.reading(part.file, "its schema"):
        schema: pa.Schema = parquet.schema_arrow
    names: tuple[str, ...] = want.names(schema.names)
    columnar.check_names(part.file, schema.names, names)
    text = columnar.text_path(part.file, schema, want.text) if want.text is not None else ()
    reader: Any = parquet.reader
    paths: list[list[str]] = reader.column_paths
    indices = [at for at, path in enumerate(paths) if path[0] in names or path == list(text)]
    # Leaves of strings that have a dictionary in one of the row groups.
    meta, dictionaries = parquet.metadata, list[str]()
    for index in (at for at in indices if names and paths[at] != list(text)):
        leaf = meta.schema.column(index)
        viewed = "view" in str(schema.field(leaf.path.split(".")[0]).type)
        groups = (meta.row_group(group) for group in range(part.start, part.stop))
        folded = any(not _ENCODED.isdisjoint(group.column(index).encodings) for group in groups)
        if leaf.physical_type == "BYTE_ARRAY" and not viewed and folded:
            dictionaries.append(leaf.path)
    return Leaves(
        text=text,
        names=names,
        indices=tuple(indices),
        dictionaries=tuple(dictionaries),
        schema=_read_schema(schema, names, text),
    )


def _read_schema(schema: pa.Schema, names: tuple[str, ...], text: tuple[str, ...]) -> pa.Schema:
    """Return the schema of the top-level columns that are read, of the text's struct its one leaf alone."""
    fields: list[Any] = []
    for field in schema:
        if field.name in names:
            fields.append(pa.field(field.name, columnar.plain_type(field.type), field.nullable))
        elif text and field.name == text[0]:
            fields.append(pa.field(field.name, columnar.plain_type(_narrow(field.type, text[1:]))))
    return pa.schema(fields)


def _narrow(kind: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return kind
    field = kind.field(path[0])
    return pa.struct([pa.field(field.name, _narrow(field.type, path[1:]), field.nullable)])


def _excluded(predicate: Predicate, meta: pq.FileMetaData, group: int, schema: pa.Schema) -> bool:
    """Say whether `predicate` surely holds for no row of the row group numbered `group`."""
    row_group = meta.row_group(group)
    ranges: dict[str, ColumnRange] = {}
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        name = column.path_in_schema
        if name in predicate.columns and meta.schema.column(index).path == name and name in schema.names:
            kind: Any = schema.field(name).type
            if not pa.types.is_nested(kind):
                found: Any = column.statistics
                nulls = found.null_count if found is not None and found.has_null_count else None
                low, high = _bounds(found, kind.value_type if pa.types.is_dictionary(kind) else kind)
                ranges[name] = ColumnRange(low=low, high=high, nulls=nulls, rows=row_group.num_rows)
    return bool(ranges) and predicate.excludes(ranges)


def _bounds(statistics: Any, kind: Any) -> tuple[Any, Any]:
    if statistics is None or not statistics.has_min_max:
        return None, None
    try:
        low, high = statistics.min, statistics.max
    except (ValueError, pa.ArrowException):
        # Text that is cut inside a character, or nanoseconds, which Python's datetime cannot hold.
        return None, None
    if pa.types.is_floating(kind):
        return (low, None) if isinstance(low, float) and low == low else (None, None)
    expected: Any = next((python for is_of, python in _COMPARED if is_of(kind)), None)
    if expected is None or type(low) is not expected or type(high) is not expected or low > high:
        return None, None
    return low, high


@final
class RowGroup:
    """The wanted leaves of one row group."""

    def __init__(
        self, data: InputBytes, parquet: pq.ParquetFile, group: int, leaves: Leaves, max_record_bytes: int
    ) -> None:
        self._data, self._parquet, self._group, self._leaves = data, parquet, group, leaves
        self._meta = parquet.metadata.row_group(group)
        self._max_page = _MAX_PAGE_BYTES + max_record_bytes
        self._plans: list[PageSteps | ListSteps] = []
        self._bytes, self._unfolded = 0, 0
        self._batches: Any = None
        self._done, self._owed = 0, 0  # rows decoded, and those of a step that are still to come

    @property
    def rows(self) -> int:
        """How many rows the footer counts."""
        return self._meta.num_rows

    def bytes_until(self, row: int) -> int:
        """Return the bytes that count as read up to `row`, less those returned before."""
        after = self._meta.total_byte_size * row // max(self.rows, 1)
        self._bytes, before = after, self._bytes
        return after - before

    def steps(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, the top-level columns in the file's order.

        Raises:
            DamagedFileError: a page is corrupt, rows are missing, or little unfolds to far too much.
        """
        with columnar.reading(self._data.file, self._where()):
            self._plans = [self._plan(index) for index in self._leaves.indices]
            # A step can hold a text of 200 MB: only its consumer keeps it alive.
            try:
                yield from iter(self._next, None)
            finally:
                # The plans know this object, so that it lives until cycles are looked for; what it decoded must not.
                self._batches = None
        if self._done != self.rows:
            told = f"row group {self._group} holds {self._done} rows, its footer counts {self.rows}"
            raise damaged(self._data.file, told)

    def text(self, batch: pa.RecordBatch) -> pa.LargeStringArray:
        """Return the text of rows.

        Raises:
            DamagedFileError: with those before it that is much more than the pages can account for.
        """
        text = columnar.as_text(columnar.pick(batch, self._leaves.text))
        self.count_unfolded(text.nbytes)
        return text

    def count_unfolded(self, size: int) -> None:
        """Count bytes that were decoded.

        Raises:
            DamagedFileError: with those before they are much more than the pages can account for.
        """
        self._unfolded += size
        with columnar.reading(self._data.file, self._where()):
            check_unfolded(self._unfolded, sum(plan.stored for plan in self._plans))

    def _where(self) -> str:
        paths = [self._meta.column(index).path_in_schema for index in self._leaves.indices]
        names = f"column {paths[0]!r}" if len(paths) == 1 else f"columns {', '.join(paths)}"
        return f"row group {self._group}, {names}"

    def _next(self) -> pa.RecordBatch | None:
        """Decode the next step, None where there is no more."""
        if self._done >= self.rows:
            return None
        reader: Any = self._parquet.reader  # its step can be set anew before each batch, unlike ParquetFile's
        if not self._owed:
            self._owed = min(self.rows - self._done, *(plan.fitting() for plan in self._plans))
            if self._batches is None:
                leaves = list(self._leaves.indices)
                groups = {"row_groups": [self._group], "column_indices": leaves}
                self._batches = reader.iter_batches(self._owed, use_threads=False, **groups)
            reader.set_batch_size(self._owed)
        batch = next(self._batches, None)
        if batch is not None:
            self._done, self._owed = self._done + batch.num_rows, max(self._owed - batch.num_rows, 0)
            for plan in self._plans:
                plan.advance(batch.num_rows)
        return batch

    def _plan(self, index: int) -> PageSteps | ListSteps:
        column, leaf = self._meta.column(index), self._parquet.metadata.schema.column(index)
        pages = walk_pages(self._data.pread, column)
        if leaf.max_repetition_level:
            entry = _INDEX_BYTES if leaf.physical_type == "BYTE_ARRAY" else _NUMBER_BYTES
            return ListSteps(pages, entry, self._max_page, self.rows)
        if column.num_values != self.rows:
            raise ValueError(f"it holds {column.num_values} values, its row group {self.rows} rows")

        def largest_entry(size: int) -> int:
            if leaf.physical_type != "BYTE_ARRAY" or leaf.path in self._leaves.dictionaries:
                return max(leaf.length or 0, _NUMBER_BYTES)
            return size if self.rows <= _FEW_ROWS else self._largest_entry(index, leaf.path)

        return PageSteps(pages, largest_entry, self._max_page)

    def _largest_entry(self, index: int, path: str) -> int:
        """Return the size of the largest entry of a leaf's dictionary."""
        meta = self._parquet.metadata
        with open_parquet(self._data, (path,), meta) as parquet:
            reader: Any = parquet.reader
            batches = reader.iter_batches(
                1, row_groups=[self._group], column_indices=[index], use_threads=False
            )
            column = next(batches).column(0)
            while pa.types.is_struct(column.type):
                column = column.field(0)
            sizes: Any = _COMPUTE.binary_length(column.dictionary)
            return _COMPUTE.max(sizes).as_py() or 0


@final
class PageSteps:
    """The rows of one column chunk whose values are not repeated, as pages that are looked at ahead of decoding.

    Args:
        pages: the chunk's.
        largest_entry: dictionary's size -> size of its largest entry, or a bound of it.
        max_page: a larger page is a bomb.

    Attributes:
        stored: decompressed bytes of the pages seen so far.
    """

    def __init__(
        self, pages: Iterator[PageHeader], largest_entry: Callable[[int], int], max_page: int
    ) -> None:
        self._pages, self._largest_entry, self._max_page = pages, largest_entry, max_page
        self._ahead: deque[list[int]] = deque()  # rows of each page, and what they may take together
        self._entry, self._values = 0, 0
        self.stored = 0

    def fitting(self) -> int:
        """Return how many of the next rows may be decoded at once, at least 1."""
        rows, room, index = 0, STEP_BYTES, 0
        while rows < _STEP_ROWS and (index < len(self._ahead) or self._look()):
            there, size = self._ahead[index]
            index += 1
            if size > room:
                rows += there * room // size
                break
            rows, room = rows + there, room - size
        return max(1, min(rows, _STEP_ROWS))

    def advance(self, rows: int) -> None:
        """Note that the next `rows` rows were decoded."""
        while rows and (self._ahead or self._look()):
            there, size = self._ahead[0]
            some = min(rows, there)
            self._ahead[0] = [there - some, size - size * some // there]
            rows -= some
            if some == there:
                self._ahead.popleft()

    def _look(self) -> bool:
        for page in self._pages:
            _check_page(page, self._max_page)
            self.stored += page.size
            if page.dictionary:
                self._entry = self._largest_entry(page.size)
            elif page.values:
                self._values += page.values
                check_unfolded(self._values * _ROW_BYTES, self.stored)
                size = page.size
                if page.indices:
                    size = page.values * self._entry // _RARELY
                elif page.encoding == DELTA_BYTE_ARRAY:  # every row may repeat a long prefix
                    size = page.values * page.size // _RARELY
                self._ahead.append([page.values, page.values * _ROW_BYTES + size])
                return True
        return False


@final
class ListSteps:
    """The same for a chunk of lists: where rows begin in its pages is not known, so that averages must do.

    A chunk that could take much more than is stored is refused beforehand, so that a single row cannot.
    """

    def __init__(self, pages: Iterator[PageHeader], entry: int, max_page: int, rows: int) -> None:
        """Take the pages of a chunk of `rows` rows; `entry` bounds what a value read from a dictionary takes."""
        self.stored, taken = 0, 0
        for page in pages:
            _check_page(page, max_page)
            self.stored += page.size
            if not page.dictionary:
                taken += page.values * (_ROW_BYTES + (entry if page.indices else 0))
                check_unfolded(taken, self.stored)
        self._rows = max(1, min(_STEP_ROWS, rows * STEP_BYTES // max(taken + self.stored, 1)))

    def fitting(self) -> int:
        """Return how many of the next rows may be decoded at once."""
        return self._rows

    def advance(self, rows: int) -> None:
        """All stretches are alike."""


def _check_page(page: PageHeader, limit: int) -> None:
    if page.size > limit:
        raise Bomb(
            f"a page unfolds to {page.size} bytes, more than {limit}; write the file with smaller pages"
        )


def read_parquet(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the row groups of `part`; extension columns come as their storage, dictionaries unfolded.

    Raises:
        DamagedFileError: the file is empty, cut or corrupt, its row counts disagree, what is wanted of
            it is missing, the text is not one of strings, or little would unfold to far too much.
    """
    with open_parquet(data) as parquet:
        meta, schema = parquet.metadata, parquet.schema_arrow
        starts = _first_rows(part.file, meta)
        leaves = _wanted_leaves(part, parquet, want)
    groups = range(part.start, part.stop)
    chunks = (meta.row_group(group).column(index) for group in groups for index in leaves.indices)
    places = ((chunk_start(chunk), chunk.total_compressed_size) for chunk in chunks)
    data.expect(((start, start + size) for start, size in places), len(leaves.indices))
    with open_parquet(data, leaves.dictionaries, meta) as parquet:
        for number in groups:
            if predicate and _excluded(predicate, meta, number, schema):
                yield Parsed(
                    text=no_text(),
                    positions=np.zeros(0, np.int64),
                    bad=(),
                    bytes_read=meta.row_group(number).total_byte_size,
                    skipped={"pruned": meta.row_group(number).num_rows},
                )
                continue
            group = RowGroup(data, parquet, number, leaves, want.max_record_bytes)
            if not leaves.indices:
                yield from columnar.counted_records(starts[number], group.rows, group.bytes_until)
                continue
            pieces = _texts(group) if not leaves.names and want.columns is not None else _rows(group, leaves)
            yield from columnar.numbered(pieces, starts[number], group.bytes_until, want.max_record_bytes)


def _rows(group: RowGroup, leaves: Leaves) -> Iterator[tuple[pa.RecordBatch, pa.LargeStringArray | None]]:
    for batch in group.steps():
        for piece in columnar.unfolded(batch, leaves.schema):
            group.count_unfolded(columnar.unfolded_bytes(piece))
            yield (
                piece.select(list(leaves.names)),
                columnar.as_text(columnar.pick(piece, leaves.text)) if leaves.text else None,
            )


def _texts(group: RowGroup) -> Iterator[tuple[None, pa.LargeStringArray]]:
    """Yield the texts alone; small arrays are joined, so that what follows works on blocks."""
    steps = group.steps()

    def joined() -> tuple[None, pa.LargeStringArray] | None:
        held: list[pa.LargeStringArray] = []
        size = 0
        while size < _JOIN_BYTES and (batch := next(steps, None)) is not None:
            held.append(group.text(batch))
            size += held[-1].nbytes
            del batch
        return (None, concat(held)) if held else None

    return iter(joined, None)

"""Parquet, row group by row group, in steps of bounded memory.

Page checksums are verified.

Only the wanted columns are decoded; damage in a column that is not read is not searched
for. Row groups in which a predicate surely holds nowhere are not read. The size of a
step is bounded by the headers of the pages
(:mod:`tokenlake.etl.sources.parquet_steps`).

Row groups and rows are numbered from 0. The position of a record is its row index in
the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenlake.base.arrays import concat, no_text
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import columnar
from tokenlake.etl.sources.columnar import Piece
from tokenlake.etl.sources.contents import wrong_magic
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.parquet_columns import Leaves, is_excluded, wanted_leaves
from tokenlake.etl.sources.parquet_steps import ListSteps, PageSteps
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.unfolding import unfold, unfolded_bytes
from tokenlake.etl.sources.where import Predicate
from tokenlake.runtime.parquet.page_headers import chunk_start, walk_pages
from tokenlake.runtime.reading.unfolding import check_unfolded

_MAGIC: Final = b"PAR1"
# A column chunk is streamed, and never held compressed as a whole.
_BUFFER_BYTES: Final = 1 << 20
_COMPUTE: Final[Any] = pc
_MAX_PAGE_BYTES: Final = 512 << 20  # beyond the largest record
# Bytes that a value of a list can take beside its page: an index into a dictionary of
# strings, which are not unfolded, or a number.
_INDEX_BYTES: Final = 4
_NUMBER_BYTES: Final = 16
# Up to so many rows, the size of the dictionary is bound enough for its largest entry.
_FEW_ROWS: Final = 4096
_JOIN_BYTES: Final = 4 << 20  # small steps are joined up to this size


def read_parquet(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the row groups of `part`.

    Extension columns are read as their storage, dictionaries unfolded.

    Raises:
        DamagedFileError: The file is empty, cut or corrupt, its row counts disagree, a
            wanted column is missing, the text does not consist of strings, or little
            would unfold to far too much.
    """
    # 1. The footer: row groups, schema and the leaves to decode.
    # The file is opened twice: the first time to learn which columns are to be read as
    # dictionaries, the second time to read them. The footer is read once.
    with open_parquet(data) as parquet:
        file_metadata = parquet.metadata
        schema = parquet.schema_arrow
        group_starts = _first_rows(part.file, file_metadata)
        leaves = wanted_leaves(part, parquet, want)
    row_groups = range(part.start, part.stop)
    _announce_reads(data, file_metadata, row_groups, leaves)
    # 2. The row groups: ruled out by statistics, only counted, as texts alone, or as
    #    rows.
    with open_parquet(data, leaves.dictionaries, file_metadata) as parquet:
        for group_index in row_groups:
            first_row = group_starts[group_index]
            if predicate and is_excluded(predicate, file_metadata, group_index, schema):
                yield _pruned(file_metadata, group_index)
                continue
            row_group = RowGroup(
                data, parquet, group_index, leaves, want.max_record_bytes
            )
            if not leaves.indices:
                yield from columnar.counted_records(
                    first_row, row_group.rows, row_group.bytes_until
                )
                continue
            pieces: Iterator[Piece]
            if not leaves.names and want.columns is not None:
                pieces = _text_pieces(row_group)
            else:
                pieces = _row_pieces(row_group, leaves)
            yield from columnar.numbered(
                pieces, first_row, row_group.bytes_until, want.max_record_bytes
            )


def row_group_starts(data: InputBytes) -> list[int]:
    """Return the row index of every row group's first row, followed by the row count.

    Raises:
        DamagedFileError: The footer cannot be read, or its counts disagree.
    """
    return _first_rows(data.file, footer(data))


def footer(data: InputBytes) -> pq.FileMetaData:
    """Return the footer of an open file; DamagedFileError if it cannot be read."""
    with open_parquet(data) as parquet:
        return parquet.metadata


def open_parquet(
    data: InputBytes,
    dictionaries: Sequence[str] = (),
    meta: pq.FileMetaData | None = None,
) -> pq.ParquetFile:
    """Open a Parquet file for reading in steps, page checksums verified.

    Args:
        data: The open file.
        dictionaries: Paths of the columns of strings that are read as dictionaries.
        meta: Footer, if it is known.

    Raises:
        DamagedFileError: The footer cannot be read.
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
        # Only a file that cannot be read costs a look at its beginning.
        error = wrong_magic(data, _MAGIC, "Parquet file")
        if error is not None:
            raise error from None
        raise


def _first_rows(file: InputFile, meta: pq.FileMetaData) -> list[int]:
    """Return the row index of every row group's first row, followed by the row count."""
    row_counts = [
        meta.row_group(index).num_rows for index in range(meta.num_row_groups)
    ]
    if sum(row_counts) != meta.num_rows or min(row_counts, default=0) < 0:
        raise damaged(
            file,
            f"its footer counts {meta.num_rows} rows, its {len(row_counts)} row groups together {sum(row_counts)}",
        )
    return list(accumulate(row_counts, initial=0))


def _announce_reads(
    data: InputBytes, meta: pq.FileMetaData, row_groups: Sequence[int], leaves: Leaves
) -> None:
    """Tell a remote file which stretches will be read."""
    stretches: list[tuple[int, int]] = []
    for group in row_groups:
        for leaf in leaves.indices:
            chunk = meta.row_group(group).column(leaf)
            chunk_offset = chunk_start(chunk)
            stretches.append((chunk_offset, chunk_offset + chunk.total_compressed_size))
    data.expect(stretches, len(leaves.indices))


def _pruned(meta: pq.FileMetaData, index: int) -> Parsed:
    """Return a row group that statistics rule out.

    All of its rows count as skipped.
    """
    row_group = meta.row_group(index)
    return Parsed(
        text=no_text(),
        positions=np.zeros(0, np.int64),
        bad=(),
        bytes_read=row_group.total_byte_size,
        skipped={"pruned": row_group.num_rows},
    )


def _row_pieces(row_group: RowGroup, leaves: Leaves) -> Iterator[Piece]:
    """Yield the wanted columns, and the texts beside them."""
    for batch in row_group.steps():
        for piece in unfold(batch, leaves.schema):
            row_group.count_unfolded(unfolded_bytes(piece))
            text = None
            if leaves.text:
                text = columnar.as_text(columnar.pick(piece, leaves.text))
            yield piece.select(list(leaves.names)), text


def _text_pieces(row_group: RowGroup) -> Iterator[Piece]:
    """Yield the texts alone.

    Small arrays are joined, so that later steps work on blocks.
    """
    steps = row_group.steps()

    def next_piece() -> Piece | None:
        texts: list[pa.LargeStringArray] = []
        joined_bytes = 0
        while joined_bytes < _JOIN_BYTES:
            batch = next(steps, None)
            if batch is None:
                break
            texts.append(row_group.text(batch))
            joined_bytes += texts[-1].nbytes
            del batch  # before the next one is decoded
        return (None, concat(texts)) if texts else None

    return iter(next_piece, None)


@final
class RowGroup:
    """The wanted leaves of one row group, decoded in steps."""

    def __init__(
        self,
        data: InputBytes,
        parquet: pq.ParquetFile,
        index: int,
        leaves: Leaves,
        max_record_bytes: int,
    ) -> None:
        """Take a row group; nothing is read yet.

        Args:
            data: The open file.
            parquet: The same file, opened for Arrow.
            index: Index of the row group, from 0.
            leaves: Leaves to decode.
            max_record_bytes: Largest size of a record in bytes.
        """
        self._data = data
        self._parquet = parquet
        self._index = index
        self._leaves = leaves
        self._meta = parquet.metadata.row_group(index)
        self._max_page = _MAX_PAGE_BYTES + max_record_bytes
        self._plans: list[PageSteps | ListSteps] = []  # one per leaf
        self._bytes_counted = 0  # input bytes that `bytes_until` has returned
        self._unfolded = 0  # decoded bytes
        self._batches: Any = None
        self._rows_decoded = 0
        self._rows_of_step_left = 0  # a step may be decoded in several batches

    @property
    def rows(self) -> int:
        """Number of rows that the footer counts."""
        return self._meta.num_rows

    def bytes_until(self, row: int) -> int:
        """Return the bytes that count as read up to `row`, less those returned before."""
        bytes_before = self._bytes_counted
        # Row groups count by their uncompressed size, of which each row has an equal
        # share.
        self._bytes_counted = self._meta.total_byte_size * row // max(self.rows, 1)
        return self._bytes_counted - bytes_before

    def steps(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, the top-level columns in the file's order.

        Raises:
            DamagedFileError: A page is corrupt, rows are missing, or little unfolds to
                far too much.
        """
        with columnar.reading(self._data.file, self._where()):
            self._plans = [self._plan(leaf) for leaf in self._leaves.indices]
            # A step can hold a text of 200 MB: only its consumer keeps it alive.
            try:
                yield from iter(self._next_batch, None)
            finally:
                # The plans refer to this object, which therefore lives until the
                # garbage collector runs; the decoded data must not.
                self._batches = None
        if self._rows_decoded != self.rows:
            raise damaged(
                self._data.file,
                f"row group {self._index} holds {self._rows_decoded} rows, its footer counts {self.rows}",
            )

    def text(self, batch: pa.RecordBatch) -> pa.LargeStringArray:
        """Return the text of rows.

        Raises:
            DamagedFileError: All texts together are much more than the pages can
                account for.
        """
        text = columnar.as_text(columnar.pick(batch, self._leaves.text))
        self.count_unfolded(text.nbytes)
        return text

    def count_unfolded(self, size: int) -> None:
        """Count decoded bytes.

        Raises:
            DamagedFileError: All of them together are much more than the pages can
                account for.
        """
        self._unfolded += size
        with columnar.reading(self._data.file, self._where()):
            check_unfolded(self._unfolded, sum(plan.stored for plan in self._plans))

    def _where(self) -> str:
        """Return the row group and its columns for a message."""
        column_paths = [
            self._meta.column(leaf).path_in_schema for leaf in self._leaves.indices
        ]
        if len(column_paths) == 1:
            return f"row group {self._index}, column {column_paths[0]!r}"
        return f"row group {self._index}, columns {', '.join(column_paths)}"

    def _next_batch(self) -> pa.RecordBatch | None:
        """Decode the next batch, None at the end of the row group."""
        if self._rows_decoded >= self.rows:
            return None
        # Unlike ParquetFile, it takes another size for each batch.
        reader: Any = self._parquet.reader
        # A new step is as large as the leaf with the largest rows allows.
        if not self._rows_of_step_left:
            rows_left = self.rows - self._rows_decoded
            self._rows_of_step_left = min(
                rows_left, *(plan.fitting() for plan in self._plans)
            )
            if self._batches is None:
                self._batches = reader.iter_batches(
                    self._rows_of_step_left,
                    row_groups=[self._index],
                    column_indices=list(self._leaves.indices),
                    use_threads=False,
                )
            reader.set_batch_size(self._rows_of_step_left)
        # pyarrow may return fewer rows than the step has; the rest comes with the next
        # batches.
        batch = next(self._batches, None)
        if batch is not None:
            self._rows_decoded += batch.num_rows
            self._rows_of_step_left = max(self._rows_of_step_left - batch.num_rows, 0)
            for plan in self._plans:
                plan.advance(batch.num_rows)
        return batch

    def _plan(self, leaf: int) -> PageSteps | ListSteps:
        """Return the steps in which a leaf may be decoded."""
        chunk = self._meta.column(leaf)
        leaf_schema = self._parquet.metadata.schema.column(leaf)
        is_bytes = leaf_schema.physical_type == "BYTE_ARRAY"
        pages = walk_pages(self._data.pread, chunk)
        # Lists: the beginnings of rows in the pages are not known.
        if leaf_schema.max_repetition_level:
            entry_bytes = _INDEX_BYTES if is_bytes else _NUMBER_BYTES
            return ListSteps(pages, entry_bytes, self._max_page, self.rows)
        if chunk.num_values != self.rows:
            raise ValueError(
                f"it holds {chunk.num_values} values, its row group {self.rows} rows"
            )

        def largest_entry(dictionary_bytes: int) -> int:
            if not is_bytes or leaf_schema.path in self._leaves.dictionaries:
                return max(leaf_schema.length or 0, _NUMBER_BYTES)
            if self.rows <= _FEW_ROWS:
                return dictionary_bytes
            return self._largest_entry(leaf, leaf_schema.path)

        return PageSteps(pages, largest_entry, self._max_page)

    def _largest_entry(self, leaf: int, path: str) -> int:
        """Return the size in bytes of the largest entry of a leaf's dictionary."""
        with open_parquet(self._data, (path,), self._parquet.metadata) as parquet:
            reader: Any = parquet.reader
            batches = reader.iter_batches(
                1, row_groups=[self._index], column_indices=[leaf], use_threads=False
            )
            column = next(batches).column(0)
            while pa.types.is_struct(column.type):
                column = column.field(0)
            entry_sizes: Any = _COMPUTE.binary_length(column.dictionary)
            return _COMPUTE.max(entry_sizes).as_py() or 0

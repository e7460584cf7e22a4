"""One row group of a Parquet file, decoded in bounded steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenlake.reading.bombs import check_unfolded
from tokenlake.reading.pageheaders import Page, walk_pages
from tokenlake.sources.columnar.access import reading
from tokenlake.sources.columnar.windows import Windows
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import damaged
from tokenlake.sources.parquet.footer import open_parquet
from tokenlake.sources.parquet.leaves import Leaves
from tokenlake.sources.parquet.steps import MAX_PAGE_BYTES, RepeatedSteps, Steps

_COMPUTE: Final[Any] = pc
_INDEX_BYTES: Final = 4
_NUMBER_BYTES: Final = 16
_FEW_ROWS: Final = 4096  # not worth a look into the dictionary


@final
class RowGroup:
    """The wanted leaves of one row group."""

    def __init__(
        self,
        data: InputBytes,
        windows: Windows,
        parquet: pq.ParquetFile,
        group: int,
        leaves: Leaves,
        max_record_bytes: int,
    ) -> None:
        self._data, self._windows, self._parquet, self._group = data, windows, parquet, group
        self.leaves = leaves
        self._meta = parquet.metadata.row_group(group)
        self._max_page = MAX_PAGE_BYTES + max_record_bytes
        self._plans: list[Steps | RepeatedSteps] = []
        self._bytes, self._unfolded = 0, 0

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
        row = 0
        with reading(self._data.file, self._where()):
            self._plans = [self._plan(index) for index in self.leaves.indices]
            for batch in self._decoded(self._plans):
                row += batch.num_rows
                box = [batch]
                del batch  # a step can hold a text of 200 MB: only its consumer keeps it alive
                yield box.pop()
        if row != self.rows:
            raise damaged(
                self._data.file, f"row group {self._group} holds {row} rows, its footer counts {self.rows}"
            )

    def count_text(self, size: int) -> None:
        """Note that the text column unfolded to another `size` bytes.

        Raises:
            DamagedFileError: that is much more than the pages can account for.
        """
        self._unfolded += size
        with reading(self._data.file, self._where()):
            check_unfolded(self._unfolded, sum(plan.stored for plan in self._plans))

    def _where(self) -> str:
        paths = [self._meta.column(index).path_in_schema for index in self.leaves.indices]
        names = f"column {paths[0]!r}" if len(paths) == 1 else f"columns {', '.join(paths)}"
        return f"row group {self._group}, {names}"

    def _decoded(self, plans: list[Steps | RepeatedSteps]) -> Iterator[pa.RecordBatch]:
        reader: Any = self._parquet.reader  # its step can be set anew before each batch, unlike ParquetFile's
        batches: Any = None
        row, owed = 0, 0
        while row < self.rows:
            if not owed:
                owed = min(self.rows - row, *(plan.fitting() for plan in plans))
                if batches is None:
                    batches = reader.iter_batches(
                        owed,
                        row_groups=[self._group],
                        column_indices=list(self.leaves.indices),
                        use_threads=False,
                    )
                reader.set_batch_size(owed)
            batch = next(batches, None)
            if batch is None:
                return
            row, owed = row + batch.num_rows, max(owed - batch.num_rows, 0)
            for plan in plans:
                plan.advance(batch.num_rows)
            box = [batch]
            del batch
            yield box.pop()

    def _plan(self, index: int) -> Steps | RepeatedSteps:
        column, leaf = self._meta.column(index), self._parquet.metadata.schema.column(index)
        pages = self._pages(column)
        if leaf.max_repetition_level:
            entry = _INDEX_BYTES if leaf.physical_type == "BYTE_ARRAY" else _NUMBER_BYTES
            return RepeatedSteps(pages, entry, self._max_page, self.rows)
        if column.num_values != self.rows:
            raise ValueError(f"it holds {column.num_values} values, its row group {self.rows} rows")

        def largest_entry(size: int) -> int:
            if leaf.physical_type != "BYTE_ARRAY" or leaf.path in self.leaves.dictionaries:
                return max(leaf.length or 0, _NUMBER_BYTES)
            return size if self.rows <= _FEW_ROWS else self._largest_entry(index, leaf.path)

        return Steps(pages, largest_entry, self._max_page)

    def _pages(self, column: pq.ColumnChunkMetaData) -> Iterator[Page]:
        pread = self._data.pread if self._data.file.is_local else self._windows.pread
        return walk_pages(pread, column)

    def _largest_entry(self, index: int, path: str) -> int:
        """Return the size of the largest entry of a leaf's dictionary."""
        meta = self._parquet.metadata
        with open_parquet(self._data, self._windows, (path,), meta) as parquet:
            reader: Any = parquet.reader
            batches = reader.iter_batches(
                1, row_groups=[self._group], column_indices=[index], use_threads=False
            )
            column = next(batches).column(0)
            while pa.types.is_struct(column.type):
                column = column.field(0)
            sizes: Any = _COMPUTE.binary_length(column.dictionary)
            return _COMPUTE.max(sizes).as_py() or 0

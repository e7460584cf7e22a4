"""Files as shards: which there are, what is known of each, and their rows from any one on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from tokenlake.sources.inputs import InputFile
from tokenlake.sources.sharded.info import ShardInfo, beyond, check_row, index_of
from tokenlake.sources.sharded.rowindex import is_lines
from tokenlake.sources.sharded.rowindexes import RowIndexes
from tokenlake.sources.sharded.rows import END, Numbered, Reading, counted, numbered_rows
from tokenlake.sources.sharded.seek import line_rows, rows_without_reading, seek

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


@final
class FileShards:
    """The files of a source; a shard is a file, its name the path below the root of the listing.

    Attributes:
        source: what was asked for; `num_rows` counts records, good or bad, in the order of the files.
        files: as they were listed.
        names: of the shards, in order.
    """

    def __init__(
        self, source: ResolvedSource, files: Sequence[InputFile], columns: Sequence[str] | None = None
    ) -> None:
        self.source, self.files = source, tuple(files)
        self.names = tuple(file.path for file in self.files)
        self._columns = None if columns is None else tuple(dict.fromkeys(columns))
        self._places = {name: place for place, name in enumerate(self.names)}
        self._indexes = RowIndexes()
        self._left = [source.num_rows]  # rows that may be read before each shard; grows with what is counted
        self._told: dict[int, int | None] = {}  # what metadata say of a shard's rows
        self._counted: dict[int, int] = {}  # what reading found

    @property
    def every_row(self) -> bool:
        """Whether nothing is left out."""
        return self.source.on_bad_record == "fail" and self.source.where is None

    def info(self, name: str) -> ShardInfo:
        """Return what is known of a shard."""
        index = self._index(name)
        file = self.files[index]
        return ShardInfo(
            name=name,
            index=index,
            url=file.url,
            format=file.format,
            compression=file.compression,
            bytes=file.size,
            rows=self._known_rows(index),
        )

    def rows(self, name: str, row: int) -> Numbered:
        """Return (number, row) from number `row` on."""
        check_row(row)
        return self._rows(self._index(name), row)

    def count(self, name: str) -> int:
        """Return how many rows a shard has, good or bad; reads the file where nothing else tells."""
        return self._count(self._index(name))

    def _index(self, name: str) -> int:
        place = self._places.get(name)
        return index_of(name, self.names) if place is None else place

    def _rows(self, index: int, row: int) -> Numbered:
        file, name, stop = self.files[index], self.names[index], self._stop(index)
        if stop is not None and row >= stop:
            if row > stop:
                raise beyond(name, row, stop)
            return
        reading = Reading(
            source=self.source, columns=self._columns, shard=name, stop=END if stop is None else stop
        )
        start = seek(file, row, self._indexes, self.source.storage_options)
        rows = yield from numbered_rows(file, reading, start, row)
        if rows != stop:  # the end of the file
            self._counted[index] = rows

    def _stop(self, index: int) -> int | None:
        """Return the number of the first row of a shard that `num_rows` leaves out."""
        while len(self._left) <= index:
            left = self._left[-1]
            self._left.append(left and left - self._count(len(self._left) - 1, left))
        return self._left[index]

    def _count(self, index: int, enough: int = END) -> int:
        """Return how many rows a shard has, or `enough`, if it has so many."""
        rows = self._tell(index)
        rows = self._counted.get(index) if rows is None else rows
        if rows is None:
            rows = self._read_count(index, enough)
            if rows < enough:
                self._counted[index] = rows
        return min(rows, enough)

    def _read_count(self, index: int, enough: int) -> int:
        file = self.files[index]
        if is_lines(file):
            return line_rows(file, enough, self._indexes, self.source.storage_options)
        return counted(file, self.source, enough)

    def _tell(self, index: int) -> int | None:
        if index not in self._told:
            self._told[index] = rows_without_reading(self.files[index], self.source.storage_options)
        return self._told[index]

    def _known_rows(self, index: int) -> int | None:
        rows, left = self._tell(index), self.source.num_rows
        if rows is None or left is None:
            return rows
        for before in range(index):
            told = self._tell(before)
            if told is None:
                return None
            left = max(left - told, 0)
        return min(rows, left)

"""The files of one split in a format of another trainer, while they are written.

A file ends at a size, or at given rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, Self, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import offsets_of
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.etl.export.flat_manifest import FlatFile
from tokenlake.etl.export.shard_folder import ShardFolder
from tokenlake.etl.export.shard_record import Part, Shard
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.closing_shard import ClosingShard
from tokenlake.etl.export.trainers.token_layout import OpenTokenFile, TokenLayout
from tokenlake.runtime.store.writes import HashingFile

GROWTH_BYTES: Final = 1 << 26
"""Bytes of ids by which a shard grows before its state is recorded: an interruption
costs about as much as one shard of 64 MiB.
"""


@final
class TokenFiles:
    """The files of one split while they are written.

    They continue after the finished shards of an interrupted export.

    Args:
        folder: Folder for the finished files.
        series: Name of the split, or of a split and a value, for names.
        layout: Format of the files.
        shards: Folder of the shards until they get their names.
        max_bytes: Largest size of a file; it ends before a row that would exceed it.
            None: no limit.
        edges: Rows at which a file ends, ascending, the last one being the number of
            all rows; None: none.

    Attributes:
        rows: Number of rows so far; at first, those of finished shards. The next row
            is the one with this index.
    """

    def __init__(
        self,
        folder: Path,
        series: str,
        layout: TokenLayout,
        shards: ShardFolder,
        *,
        max_bytes: int | None = None,
        edges: tuple[int, ...] | None = None,
    ) -> None:
        self._folder = folder
        self._series = series
        self._layout = layout
        self._shard_folder = shards
        self._max_bytes = max_bytes
        self._edges = edges
        # Offsets of 32 bits limit the files of some formats.
        if layout.most_bytes is not None:
            self._max_bytes = min(max_bytes or layout.most_bytes, layout.most_bytes)
        if layout.has_folders:
            self._folder = folder / series
            self._folder.mkdir()
        # 1. Finished shards of an interrupted export.
        self._shards = shards.complete(series)
        self.rows = sum(shard.rows for shard in self._shards)
        # 2. A shard that it has begun.
        self._file_rows = 0
        self._recorded_bytes = 0  # of the open shard's ids
        self._open: OpenTokenFile | None = None
        # A shard that is full, and not recorded yet; at most one, so that no more than
        # two shards wait in memory.
        self._closing: ClosingShard | None = None
        growing = shards.growing(series)
        if growing is not None:
            self._open = layout.open(self._open_path, growing.parts)
            self._recorded_bytes = self._open.bytes
            self._file_rows = growing.rows
            self.rows += growing.rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, with their stored columns."""
        self.add_rows(TokenRows.of(batch))

    def add_rows(self, rows: TokenRows) -> None:
        """Add rows."""
        if self._layout.facts.appended_eos is not None:
            rows = rows.with_eos(self._layout.facts.appended_eos)
        # Sizes of all rows at once, so that a file ends by a search, not by a loop.
        bytes_before = offsets_of(self._layout.row_bytes(rows))
        first_row = 0
        while first_row < len(rows):
            if self._open is None:
                self._open = self._layout.open(self._open_path)
                self._recorded_bytes = 0
            # 1. The rows that fit into the open file; an empty file takes a row of any
            #    size.
            end_row = len(rows)
            if self._max_bytes is not None:
                free_bytes = self._max_bytes - self._open.bytes
                end_bytes = bytes_before[first_row] + free_bytes
                end_row = int(np.searchsorted(bytes_before, end_bytes, "right")) - 1
                if self._file_rows == 0:
                    end_row = max(end_row, first_row + 1)
            # 2. Of these, the rows before the row at which the file ends.
            next_edge = self._next_edge()
            if next_edge is not None:
                end_row = min(end_row, first_row + next_edge - self.rows)
            # 3. A file that is full ends.
            row_count = end_row - first_row
            if row_count > 0:
                self._open.write(rows.rows(first_row, end_row))
                self.rows += row_count
                self._file_rows += row_count
                first_row = end_row
            if first_row < len(rows) or self.rows == next_edge:
                self._end_file()
        self._record_growth()

    def finish(self, naming: str | None) -> list[FlatFile]:
        """Close the last file, name all files, and return them; none without rows.

        Args:
            naming: Names of the files, with ``split``, ``index`` and ``count``; None:
                the name of the split.
        """
        if self._open is not None:
            self._end_file()
        self._record_closed()
        if not self._shards:
            if self._layout.has_folders:
                self._folder.rmdir()
            return []
        # 1. Each part of a shard gets its name; the rows are those of its first part.
        files: list[FlatFile] = []
        for shard in self._shards:
            first_part, *other_parts = shard.parts
            named_file = self._named(shard, first_part, naming)
            files.append(replace(named_file, rows=shard.rows))
            for other_part in other_parts:
                files.append(self._named(shard, other_part, naming))
        # 2. Files about the shards.
        for file_name, content in self._layout.split_index(self._shards).items():
            index_file = put_file(self._folder / file_name, content)
            index_path = self._path_of(file_name)
            files.append(replace(index_file, path=index_path, split=self._series))
        return files

    @property
    def _open_path(self) -> Path:
        """Path of the open shard, without a suffix."""
        index = len(self._shards)
        if self._closing is not None:
            index += 1
        return self._shard_folder.path_of(self._series, index)

    def _named(self, shard: Shard, part: Part, naming: str | None) -> FlatFile:
        """Name a part of a shard, and return its entry, without rows."""
        # The parts of a shard have one name and different suffixes: trainers look for
        # the index beside the ids.
        file_name = self._series
        if self._layout.has_folders:
            file_name = self._layout.shard_name(shard.index)
        elif naming is not None:
            file_name = naming.format(
                split=self._series, index=shard.index, count=len(self._shards)
            )
        file_name += part.suffix
        self._shard_folder.place(shard, part, self._folder / file_name)
        return FlatFile(
            path=self._path_of(file_name),
            split=self._series,
            bytes=part.bytes,
            sha256=part.sha256,
            rows=0,
        )

    def _path_of(self, name: str) -> str:
        """Return the path of a file in the folder of the export."""
        if self._layout.has_folders:
            return f"{self._series}/{name}"
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the open files after an error.

        The files are for the caller to remove.
        """
        if self._closing is not None:
            self._closing.discard()
        if self._open is not None:
            self._open.discard()

    def _next_edge(self) -> int | None:
        """Return the row at which the open file ends; None: at none."""
        if self._edges is None:
            return None
        edge_index = int(np.searchsorted(np.asarray(self._edges), self.rows, "right"))
        if edge_index == len(self._edges):
            return None
        return self._edges[edge_index]

    def _end_file(self) -> None:
        """Let a thread close the open shard."""
        assert self._open is not None
        self._record_closed()
        self._closing = ClosingShard(self._open, self._file_rows)
        self._open = None
        self._file_rows = 0

    def _record_closed(self) -> None:
        """Record the shard that the thread closes, after its last byte is written."""
        if self._closing is None:
            return
        closed_parts = tuple(self._closing.finish())
        shard = Shard(self._series, len(self._shards), self._closing.rows, closed_parts)
        self._closing = None
        self._shard_folder.add(shard)
        self._shards.append(shard)

    def _record_growth(self) -> None:
        """Record the state of a shard that has grown.

        An export of one large file can then be resumed inside it.
        """
        if self._open is None:
            return
        if self._open.bytes - self._recorded_bytes < GROWTH_BYTES:
            return
        # Formats that cannot be continued have no parts until their end.
        open_parts = tuple(self._open.so_far())
        if open_parts:
            # Shards are recorded in order: a series is continued after its last one.
            self._record_closed()
            shard = Shard(
                self._series,
                len(self._shards),
                self._file_rows,
                open_parts,
                is_complete=False,
            )
            self._shard_folder.add(shard)
        self._recorded_bytes = self._open.bytes


def put_file(path: Path, data: bytes) -> FlatFile:
    """Write a file that describes others, and return its entry, without a split."""
    with HashingFile(path) as hashing_file:
        hashing_file.write(data)
        sha256 = hashing_file.sha256
    path.chmod(file_mode(path.parent))
    return FlatFile(path=path.name, split="", bytes=len(data), sha256=sha256, rows=0)

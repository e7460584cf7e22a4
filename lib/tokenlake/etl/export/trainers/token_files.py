"""The files of one split in a format of another trainer, while they are written.

A file ends at a size, or at given rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import offsets_of
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.etl.export.flat_manifest import FlatFile
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.token_layout import OpenTokenFile, Part, TokenLayout
from tokenlake.runtime.store.writes import HashingFile


@final
class TokenFiles:
    """The files of one split while they are written.

    Args:
        folder: Folder to write into.
        split: Name of the split.
        layout: Format of the files.
        max_bytes: Largest size of a file; it ends before a row that would exceed it.
            None: no limit.
        edges: Rows at which a file ends, ascending, the last one being the number of
            all rows; None: none.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        layout: TokenLayout,
        *,
        max_bytes: int | None = None,
        edges: tuple[int, ...] | None = None,
    ) -> None:
        self._folder = folder
        self._split = split
        self._layout = layout
        self._max_bytes = max_bytes
        self._edges = edges
        if layout.most_bytes is not None:
            self._max_bytes = min(max_bytes or layout.most_bytes, layout.most_bytes)
        if layout.has_folders:
            self._folder = folder / split
            self._folder.mkdir()
        self._rows = 0
        self._file_rows = 0
        self._open: OpenTokenFile | None = None
        self._shards: list[tuple[Sequence[Part], int]] = []  # parts and rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, with their stored columns."""
        self.add_rows(TokenRows.of(batch))

    def add_rows(self, rows: TokenRows) -> None:
        """Add rows."""
        if self._layout.facts.appended_eos is not None:
            rows = rows.with_eos(self._layout.facts.appended_eos)
        bytes_before = offsets_of(self._layout.row_bytes(rows))
        first = 0
        while first < len(rows):
            if self._open is None:
                self._open = self._layout.open(
                    self._folder / self._shard_name(len(self._shards))
                )
            # 1. The rows that fit into the open file; an empty file takes a row of any
            #    size.
            end = len(rows)
            if self._max_bytes is not None:
                room = self._max_bytes - self._open.bytes
                end = (
                    int(
                        np.searchsorted(
                            bytes_before, bytes_before[first] + room, "right"
                        )
                    )
                    - 1
                )
                if self._file_rows == 0:
                    end = max(end, first + 1)
            # 2. Of these, the rows before the row at which the file ends.
            edge = self._next_edge()
            if edge is not None:
                end = min(end, first + edge - self._rows)
            # 3. A file that is full ends.
            count = end - first
            if count > 0:
                self._open.write(rows.rows(first, end))
                self._rows += count
                self._file_rows += count
                first = end
            if first < len(rows) or self._rows == edge:
                self._end_file()

    def finish(self, naming: str | None) -> list[FlatFile]:
        """Close the last file, name all files, and return them; none if there were no
        rows.

        Args:
            naming: Names of the files, with ``split``, ``index`` and ``count``; None:
                the name of the split.
        """
        if self._open is not None:
            self._end_file()
        if not self._shards:
            if self._layout.has_folders:
                self._folder.rmdir()
            return []
        # 1. Each part of a shard gets its name; the rows are those of its first part.
        files: list[FlatFile] = []
        shards: list[FlatFile] = []
        for index, (parts, rows) in enumerate(self._shards):
            first_part, *other_parts = parts
            shard = replace(self._named(first_part, index, naming), rows=rows)
            shards.append(shard)
            files.append(shard)
            files += [self._named(part, index, naming) for part in other_parts]
        # 2. Files about the shards.
        for name, data in self._layout.split_index(shards).items():
            file = put_file(self._folder / name, data)
            files.append(replace(file, path=self._path_of(name), split=self._split))
        return files

    def _named(self, part: Part, index: int, naming: str | None) -> FlatFile:
        """Name a part of a shard, and return its entry, without rows."""
        name = self._shard_name(index)
        new_name = name
        if not self._layout.has_folders:
            new_name = self._split
            if naming is not None:
                new_name = naming.format(
                    split=self._split, index=index, count=len(self._shards)
                )
        new_name += part.suffix
        (self._folder / (name + part.suffix)).rename(self._folder / new_name)
        return FlatFile(
            path=self._path_of(new_name),
            split=self._split,
            bytes=part.bytes,
            sha256=part.sha256,
            rows=0,
        )

    def _path_of(self, name: str) -> str:
        """Return the path of a file in the folder of the export."""
        if self._layout.has_folders:
            return f"{self._split}/{name}"
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the open file after an error; the files are for the caller to
        remove.
        """
        if self._open is not None:
            self._open.discard()

    def _shard_name(self, index: int) -> str:
        """Return the name of a shard while it is written, without a suffix."""
        if self._layout.has_folders:
            return self._layout.shard_name(index)
        return f"{self._split}~{index}"

    def _next_edge(self) -> int | None:
        """Return the row at which the open file ends; None: at none."""
        if self._edges is None:
            return None
        index = int(np.searchsorted(np.asarray(self._edges), self._rows, "right"))
        if index == len(self._edges):
            return None
        return self._edges[index]

    def _end_file(self) -> None:
        assert self._open is not None
        self._shards.append((self._open.close(), self._file_rows))
        self._open = None
        self._file_rows = 0


def put_file(path: Path, data: bytes) -> FlatFile:
    """Write a file that describes others, and return its entry, without a split."""
    with HashingFile(path) as file:
        file.write(data)
        sha256 = file.sha256
    path.chmod(file_mode(path.parent))
    return FlatFile(path=path.name, split="", bytes=len(data), sha256=sha256, rows=0)

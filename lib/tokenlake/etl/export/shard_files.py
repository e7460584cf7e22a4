"""The files of a split while they are written. A file ends at a size, or at given rows.

Example: 10 rows in 3 files end at the rows 3, 6 and 10 (:func:`edges_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self, final

import pyarrow as pa

from tokenlake.base.checks import expected
from tokenlake.errors import SourceError
from tokenlake.etl.export.flat_manifest import FileFormat, FlatFile
from tokenlake.etl.export.open_file import OpenFile
from tokenlake.etl.export.shard_folder import ShardFolder
from tokenlake.etl.export.shard_record import Part, Shard

_ARROW: Final[Any] = pa

DEFAULT_NAMING: Final = "{split}-{index:05d}-of-{count:05d}"

_GROUP_BYTES: Final = 4 << 20
"""Arrow data of a row group, at most, unless one row is larger."""

GROWTH_BYTES: Final = 1 << 26
"""Bytes by which a shard grows before its state is recorded."""

_NO_LIMIT: Final = 1 << 62


def check_naming(naming: str, splits: Sequence[str], form: FileFormat) -> None:
    """Raise ConfigError unless `naming` makes names of files, and no two the same."""
    # Two files of each split stand for all: their names must differ by split and index.
    file_names: set[str] = set()
    for split in splits:
        for index in range(2):
            file_names.add(_shard_name(split, index, 2, form, naming))
    # Libraries that read folders skip names that begin with a dot or an underscore.
    are_data_names = all(
        name[0] not in "._" and "/" not in name and "\x00" not in name
        for name in file_names
    )
    if not are_data_names or len(file_names) < 2 * len(splits):
        raise _bad_naming(
            naming,
            f"it makes {sorted(file_names)}, which are not distinct names of data files",
        )


def _shard_name(
    split: str, index: int, count: int, form: FileFormat, naming: str
) -> str:
    """Return the name of a file, for example ``train-00000-of-00042.parquet``."""
    try:
        return naming.format(split=split, index=index, count=count) + form.extension
    except (KeyError, IndexError, ValueError) as error:
        raise _bad_naming(naming, f"{type(error).__name__}: {error}") from None


def _bad_naming(naming: str, reason: str) -> Exception:
    return expected(
        "naming",
        naming,
        f"a name like '{{split}}-{{index:05d}}-of-{{count:05d}}': {reason}",
    )


def edges_of(rows: int, shards: int) -> tuple[int, ...]:
    """Return the row after the last one of each file.

    The shares are contiguous, and their sizes differ by one at most.
    """
    return tuple((index + 1) * rows // shards for index in range(shards))


@final
class ShardFiles:
    """The files of one split while they are written. Batches must be of one schema.

    They continue after the finished shards of an interrupted export, and inside a shard
    of Parquet that has grown large. Row groups span no two files and no two runs, so
    that the next row begins one, as it did before the interruption.

    Args:
        folder: Folder for the finished files.
        series: Name of the split, or of a split and a value, for names.
        form: Format of the files.
        schema: Schema of the rows.
        shards: Folder of the shards until they get their names; None: `folder`.
        max_bytes: Largest size of a file: it ends before a row group of the size of its
            largest would exceed it. None: no limit. Below 8 MiB row groups are an
            eighth of it, and the bytes of a file's end are counted.
        edges: Rows at which a file ends, ascending, the last one being the number of
            all rows; None: none.

    Attributes:
        rows: Number of rows so far, those that wait included; at first, those of
            finished shards. The next row is the one with this index.
    """

    def __init__(
        self,
        folder: Path,
        series: str,
        form: FileFormat,
        schema: pa.Schema,
        shards: ShardFolder | None = None,
        *,
        max_bytes: int | None = None,
        edges: tuple[int, ...] | None = None,
    ) -> None:
        self._folder = folder
        self._series = series
        self._form = form
        self._schema = schema
        self._shard_folder = shards or ShardFolder(folder)
        self._max_bytes = max_bytes
        self._edges = edges
        # Small files need row groups smaller than usual.
        self._is_tight = False
        self._group_bytes = _GROUP_BYTES
        if max_bytes is not None and max_bytes < 2 * _GROUP_BYTES:
            self._is_tight = True
            self._group_bytes = max(1, max_bytes // 8)
        self._open: OpenFile | None = None
        # Rows of the next row group.
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        # Finished shards of an interrupted export. One that ended by its size ended
        # before its edge.
        self._shards = self._shard_folder.complete(series)
        self._edge_index = 0  # of the edge that the open file ends at
        self.rows = 0
        for shard in self._shards:
            self.rows += shard.rows
            if edges is not None and self.rows == edges[self._edge_index]:
                self._edge_index += 1
        # A shard that it has begun.
        self._recorded_bytes = 0  # of the open shard
        growing = self._shard_folder.growing(series)
        if growing is not None:
            self._open = self._open_file(growing)
            self._recorded_bytes = self._open.bytes
            self.rows += growing.rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        # A row group ends at its size or at an edge. A large batch makes several, and
        # small batches wait until they fill one.
        while len(batch):
            group_rows = batch.slice(0, min(self._room(), self._group_rows(batch)))
            self._waiting.append(group_rows)
            self._waiting_bytes += group_rows.nbytes
            self.rows += len(group_rows)
            if self._waiting_bytes >= self._group_bytes:
                self._flush()
            batch = batch.slice(len(group_rows))

    def finish(self, naming: str | None) -> list[FlatFile]:
        """Close the last file, name all files, and return them.

        There is at least one file, even without rows.

        Args:
            naming: Names of the files; None: :data:`DEFAULT_NAMING`.
        """
        # 1. The last row group, and the files that are left, also those without rows.
        self._flush()
        if self._edges is not None:
            if self.rows != self._edges[-1]:
                raise _miscounted(self._edges[-1], str(self.rows))
            while self._edge_index < len(self._edges):
                self._end_at_edge()
        if self._open is not None or not self._shards:
            self._end_at_edge()
        # 2. Final names, which contain the number of files.
        files: list[FlatFile] = []
        for shard in self._shards:
            file_name = _shard_name(
                self._series,
                shard.index,
                len(self._shards),
                self._form,
                naming or DEFAULT_NAMING,
            )
            # A shard of rows is one file; those of trainers have several parts.
            (part,) = shard.parts
            self._shard_folder.place(shard, part, self._folder / file_name)
            flat_file = FlatFile(
                path=file_name,
                split=self._series,
                bytes=part.bytes,
                sha256=part.sha256,
                rows=shard.rows,
            )
            files.append(flat_file)
        return files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open after an error; the files are for the caller to remove."""
        if self._open is not None:
            self._open.__exit__()

    def _group_rows(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows of a batch that make a row group."""
        # Rows are taken to have the mean size of the batch.
        row_count = max(1, len(batch) * self._group_bytes // max(batch.nbytes, 1))
        if self._is_tight:
            # Rows may differ in size: halve until the group is small.
            most_bytes = 2 * self._group_bytes
            while row_count > 1 and batch.slice(0, row_count).nbytes > most_bytes:
                row_count //= 2
        return row_count

    def _room(self) -> int:
        """Return the number of rows up to the next edge.

        Files that have reached their edge are ended first.
        """
        if self._edges is None:
            return _NO_LIMIT
        # Several edges at one row make files without rows.
        edge_count = len(self._edges)
        while self._edge_index < edge_count:
            if self._edges[self._edge_index] > self.rows:
                break
            self._flush()
            self._end_at_edge()
        # A source that states its length and then brings more rows has no file for them.
        if self._edge_index == edge_count:
            raise _miscounted(self._edges[-1], f"more than {self._edges[-1]}")
        return self._edges[self._edge_index] - self.rows

    def _flush(self) -> None:
        """Write the rows that wait as one row group.

        A file that they would make larger than `max_bytes` ends first.
        """
        if not self._waiting:
            return
        batch = self._waiting[0]
        if len(self._waiting) > 1:
            batch = _ARROW.concat_batches(self._waiting)
        self._waiting = []
        self._waiting_bytes = 0
        # The file ends before this row group, which the next file begins with.
        is_full = False
        if self._max_bytes is not None and self._open is not None:
            is_full = self._open.is_full(self._max_bytes, batch)
        if is_full:
            self._end_file()
        self._opened().write(batch)
        self._record_growth()

    def _opened(self) -> OpenFile:
        """Return the open file; a new one if there is none."""
        if self._open is None:
            self._open = self._open_file()
            self._recorded_bytes = 0
        return self._open

    def _open_file(self, growing: Shard | None = None) -> OpenFile:
        """Open the next shard, or the one of an interrupted run that is continued."""
        path = self._shard_folder.path_of(self._series, len(self._shards))
        return OpenFile(
            path, self._form, self._schema, tight=self._is_tight, growing=growing
        )

    def _record_growth(self) -> None:
        """Record the state of a shard that has grown.

        An export of few large files can then be resumed inside them.
        """
        # Files that end by their size are small, and where they end depends on all
        # their row groups.
        if self._max_bytes is not None or not self._shard_folder.is_recorded:
            return
        open_file = self._opened()
        if open_file.bytes - self._recorded_bytes < GROWTH_BYTES:
            return
        # Formats that cannot be continued have no parts until their end.
        open_parts = tuple(open_file.so_far())
        if open_parts:
            shard = Shard(
                self._series,
                len(self._shards),
                open_file.rows,
                open_parts,
                is_complete=False,
            )
            self._shard_folder.add(shard)
        self._recorded_bytes = open_file.bytes

    def _end_at_edge(self) -> None:
        """End the open file at its edge."""
        self._end_file()
        self._edge_index += 1

    def _end_file(self) -> None:
        """End the open file and record it; the next one has the same edge."""
        # A shard is recorded only after its last byte: the record never states more than
        # was written.
        flat_file = self._opened().close()
        part = Part("", flat_file.bytes, flat_file.sha256)
        shard = Shard(self._series, len(self._shards), flat_file.rows, (part,))
        self._shard_folder.add(shard)
        self._shards.append(shard)
        self._open = None


def _miscounted(expected_rows: int, got: str) -> SourceError:
    return SourceError(
        f"the source reported {expected_rows} rows, but {got} came; nothing was written. Correct its length"
    )

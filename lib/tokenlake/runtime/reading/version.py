"""Rows of one split of a committed version, by row group.

Row groups are numbered over all shards of the split, in the order of the manifest. The
manifest states where they begin, so that an order can be computed before any file is
opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any, BinaryIO, Final, Self, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import (
    Bools,
    Int64,
    Ragged,
    lengths_between,
    offsets_of,
    values,
)
from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.runtime.reading.levels import Unfamiliar
from tokenlake.runtime.reading.packed import (
    LEARNED,
    LENGTHS,
    PackedGroup,
    PackedReader,
    check_segments,
)
from tokenlake.runtime.reading.pages import VALUE_BITS
from tokenlake.runtime.reading.ragged_rows import (
    Lengths,
    RaggedGroup,
    RaggedRows,
    list_lengths,
    list_values,
    narrowest,
)
from tokenlake.runtime.reading.shard_file import ColumnChunk, OpenShards, one_batch
from tokenlake.runtime.reading.stored_columns import (
    check_types,
    check_values,
    id_columns,
    id_limit,
    runs,
    stored_schema,
)
from tokenlake.runtime.reading.token_ids import SHORT_IDS, check_ids
from tokenlake.runtime.reading.unfolding import check_unfolded
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.damage import damaged_file
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.manifest import Manifest

_REMOTE_THREADS: Final = 16  # threads that wait for a remote store

# Bytes that a row and a document take in memory beside their ids, about.
_ROW_BYTES: Final = 16
_SEGMENT_BYTES: Final = 4

_T = TypeVar("_T")

DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)
"""Errors of Arrow for damaged Parquet: its own errors, OSError for pages, ValueError
for metadata.
"""


def open_rows(store: ReadStore, dataset: str, version: int, split: str) -> StoredRows:
    """Open a split of a committed version. Its manifest is read, its files are not.

    Args:
        store: Store of the dataset.
        dataset: Name of the dataset.
        version: Number of the version.
        split: Name of the split.

    Raises:
        NotFoundError: The version does not exist.
        ConfigError: The version has no such split.
        IntegrityError: The manifest is damaged.
    """
    return StoredRows(store, Catalog(store).manifest(dataset, version), split)


@final
class StoredRows:
    """Row groups of a split, 0 to G - 1. They may be used by several threads.

    Args:
        store: Store of the dataset.
        manifest: Manifest of the version.
        split: Name of the split.

    Attributes:
        manifest: Manifest of the version.
        split: Name of the split.
        group_rows: Number of rows of each row group, int64[G].

    Raises:
        ConfigError: The version has no such split.
    """

    def __init__(self, store: ReadStore, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            names = ", ".join(manifest.splits) or "none, for it has no rows"
            raise ConfigError(
                f"{manifest.dataset}@v{manifest.version} has no split {split!r}; expected one of {names}"
            )
        self.manifest = manifest
        self.split = split
        self._store = store
        self._shards = [shard for shard in manifest.files if shard.split == split]
        # Row groups are numbered over the shards, rows over the row groups.
        group_begins = [shard.row_groups for shard in self._shards]
        self._first_groups = offsets_of([len(begins) for begins in group_begins])
        self.group_rows = lengths_between(
            group_begins, [shard.rows for shard in self._shards]
        )
        self._first_rows = offsets_of(self.group_rows)
        # Open files, and the facts of the manifest that decoded rows are compared with.
        self._open = OpenShards(self._open_shard)
        self._schema = stored_schema(manifest)
        self._id_columns = id_columns(manifest)
        self._id_limit = id_limit(manifest)
        self._packed = PackedReader(self._open, manifest.width, self._id_limit)
        self._lengths: dict[str, Lengths] = {}
        self._lengths_lock = Lock()

    @property
    def name(self) -> str:
        """Name of dataset, version and split, for example ``code@v3/train``."""
        return f"{self.manifest.dataset}@v{self.manifest.version}/{self.split}"

    @property
    def rows(self) -> int:
        """Number of rows of all row groups."""
        return int(self._first_rows[-1])

    @property
    def ids(self) -> int:
        """Number of ids of all rows, padding included."""
        return (
            self.rows * self.manifest.width or self.manifest.splits[self.split].tokens
        )

    @property
    def decoded_bytes(self) -> int:
        """Bytes of memory of all row groups, decoded, about."""
        # Packed ids of a small vocabulary are decoded to 16 bits.
        id_bytes = 4
        if self.manifest.kind == "packed" and self._id_limit <= SHORT_IDS:
            id_bytes = 2
        if self.has_loss_mask:
            id_bytes += 1
        documents = self.manifest.splits[self.split].documents
        return self.ids * id_bytes + _ROW_BYTES * self.rows + _SEGMENT_BYTES * documents

    @property
    def has_loss_mask(self) -> bool:
        """True if a shard stores a loss mask."""
        return any("loss_mask" in shard.logical for shard in self._shards)

    def shard_of(self, group: int) -> tuple[ShardEntry, int]:
        """Return the shard of a row group, and the row group's index in it."""
        shard, index = self._place(group)
        return self._shards[shard], index

    def row_of(self, group: int) -> int:
        """Return a row group's first row, counted over the split."""
        self._place(group)
        return int(self._first_rows[group])

    def group_of(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return the row group of each row of the split, and its index in it.

        Both are int64[n].
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.rows):
            raise ConfigError(
                f"{self.name} has rows 0 to {self.rows - 1}, not {rows.min()} to {rows.max()}"
            )
        group = np.searchsorted(self._first_rows, rows, side="right") - 1
        return group, rows - self._first_rows[group]

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row group, first row in it, end in it) for rows ``start .. stop``.

        They are fewer if the split ends before.
        """
        # Row group by row group: the first range may begin, and the last end, inside one.
        end = min(stop, self.rows)
        while start < end:
            group = int(np.searchsorted(self._first_rows, start, side="right")) - 1
            group_begin = int(self._first_rows[group])
            group_end = int(self._first_rows[group + 1])
            yield group, start - group_begin, min(end, group_end) - group_begin
            start = group_end

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Decode a row group as stored. All checksums of pages are verified.

        Args:
            group: Row group, 0 to G - 1.
            columns: Names of the columns; None for all.

        Raises:
            IntegrityError: The file is missing or differs from the manifest; the error
                names file and row group.
        """
        shard, index = self._place(group)
        batch = self._checked(
            shard, f"row group {index}", lambda: self._decode(shard, index, columns)
        )
        # The row group must have the columns and rows of the manifest.
        expected_names = sorted(columns or self._shards[shard].logical)
        names = sorted(batch.schema.names)
        if names != expected_names or batch.num_rows != self.group_rows[group]:
            got = f"{batch.num_rows} rows of {', '.join(names)}"
            expected = f"{self.group_rows[group]} rows of {', '.join(expected_names)}"
            raise self._damaged(
                shard, f": row group {index} holds {got}; expected {expected}"
            )
        return batch

    def _decode(
        self, shard: int, index: int, columns: Sequence[str] | None
    ) -> pa.RecordBatch:
        # Arrow verifies checksums of pages. Types, numbers of values and ids are compared
        # with the manifest and the footer afterwards.
        source, footer = self._open.with_footer(shard)
        batch = one_batch(source.parquet().read_row_group(index, columns))
        check_types(batch.schema, self._schema)
        if columns is None:
            check_values(batch, footer.values[index])
        self._check_rows(batch)
        return batch

    def _check_rows(self, batch: pa.RecordBatch) -> None:
        """Raise ValueError if an id or the segments of a row are invalid.

        An id must be one of the tokenizer, and segments must fit their rows.
        """
        for name in self._id_columns:
            if name in batch.schema.names:
                check_ids(
                    values(cast("Any", batch.column(name)).flatten()), self._id_limit
                )
        if LENGTHS not in batch.schema.names or not self.manifest.width:
            return
        # Segments must fit their rows, and have as many documents.
        lengths, offsets = runs(batch, LENGTHS)
        segment_lengths = values(lengths.slice(offsets[0], offsets[-1] - offsets[0]))
        segments = Ragged(segment_lengths, offsets - offsets[0])
        check_segments(segments, batch.num_rows, self.manifest.width)
        if "documents" in batch.schema.names:
            documents: Any = batch.column("documents")
            if not np.array_equal(np.diff(offsets), values(documents.value_lengths())):
                raise ValueError(
                    f"{LENGTHS} and documents of a row are not of the same segments"
                )

    def packed(
        self, group: int, *, loss_mask: bool, segments: bool = True
    ) -> PackedGroup:
        """Decode the parts of a packed row group that a batch needs.

        All checksums are verified.

        Args:
            group: Row group, 0 to G - 1.
            loss_mask: True to read the stored ``loss_mask`` as well, if there is one.
            segments: True to read the lengths of the segments; a batch of ids alone
                needs none.

        Raises:
            ConfigError: The dataset is not packed, or the row group does not exist.
            IntegrityError: The row group is damaged; see :meth:`read`.
        """
        if self.manifest.kind != "packed":
            raise ConfigError(
                f"{self.name} is of kind {self.manifest.kind}; expected packed"
            )
        shard, index = self._place(group)
        has_loss_mask = loss_mask and LEARNED in self._shards[shard].logical
        rows = int(self.group_rows[group])
        return self._checked(
            shard,
            f"row group {index}",
            lambda: self._packed.read(
                shard, index, rows, loss_mask=has_loss_mask, segments=segments
            ),
        )

    def decoded(
        self, group: int, *, loss_mask: bool, segments: bool = True
    ) -> PackedGroup | RaggedGroup:
        """Decode the parts of a row group that a batch needs, for any kind of dataset.

        Args:
            group: Row group, 0 to G - 1.
            loss_mask: True to read the stored ``loss_mask`` as well, if there is one.
            segments: True to read the lengths of the segments of packed rows.

        Raises:
            ConfigError: The row group does not exist.
            IntegrityError: The row group is damaged; see :meth:`read`.
        """
        if self.manifest.kind == "packed":
            return self.packed(group, loss_mask=loss_mask, segments=segments)
        return self.ragged.read(group, loss_mask=loss_mask)

    @cached_property
    def ragged(self) -> RaggedRows:
        """Rows of a dataset that is not packed."""
        return RaggedRows(self, has_loss_mask=self.has_loss_mask)

    def list_lengths(self, column: str) -> Lengths:
        """Return the number of values of each row's list, of all rows.

        It is uint16[rows], or uint32 if one is longer.

        The column is read once, which takes some 3 us a row; two or four bytes a row
        are kept.

        Args:
            column: Name of a column of lists.

        Raises:
            IntegrityError: A row group is damaged; see :meth:`read`.
        """
        # The lock is held while the column is read: two threads that need it at once
        # must not both read it.
        with self._lengths_lock:
            if column not in self._lengths:
                threads = 1 if isinstance(self._store, LocalStore) else _REMOTE_THREADS
                groups = range(len(self.group_rows))
                lengths = in_order(
                    lambda group: self.list_lengths_of_group(group, column),
                    groups,
                    threads,
                )
                self._lengths[column] = narrowest(
                    np.concatenate([np.zeros(0, np.int64), *lengths])
                )
            return self._lengths[column]

    def list_lengths_of_group(self, group: int, column: str) -> Int64:
        """Return the lengths of the lists of a row group, int64[rows].

        Args:
            group: Row group, 0 to G - 1.
            column: Name of a column of lists.

        Raises:
            IntegrityError: The row group is damaged; see :meth:`read`.
        """
        # Only the levels of the pages are needed, without their values. Another layout
        # is read through Arrow.
        lengths = self._read_directly(
            group, column, lambda data, chunk: list_lengths(data, chunk.values)
        )
        if lengths is None:
            _, offsets = runs(self.read(group, [column]), column)
            lengths = np.diff(offsets)
        self._check_count(group, len(lengths), int(self.group_rows[group]), "rows")
        return lengths

    def list_values(self, group: int, column: str, values: int) -> npt.NDArray[Any]:
        """Return the values of a row group's lists, one list after the other.

        Args:
            group: Row group, 0 to G - 1.
            column: Name of a column of lists of int32 or of booleans.
            values: Number of values that the lists must have.

        Raises:
            IntegrityError: The row group is damaged; see :meth:`read`.
        """

        def decode(data: memoryview, chunk: ColumnChunk) -> npt.NDArray[Any] | None:
            if chunk.values != values:  # an empty list counts as a value
                return None
            check_unfolded(4 * values, chunk.size)
            limit = self._id_limit if column in self._id_columns else None
            return list_values(data, values, VALUE_BITS[chunk.kind], limit)

        column_values = self._read_directly(group, column, decode)
        if column_values is None:
            column_values = self._values_through_arrow(group, column)
        self._check_count(group, len(column_values), values, f"values of {column}")
        return column_values

    def _values_through_arrow(self, group: int, column: str) -> npt.NDArray[Any]:
        lists, offsets = runs(self.read(group, [column]), column)
        return values(lists.slice(offsets[0], offsets[-1] - offsets[0]))

    def _read_directly(
        self,
        group: int,
        column: str,
        decode: Callable[[memoryview, ColumnChunk], npt.NDArray[Any] | None],
    ) -> npt.NDArray[Any] | None:
        """Return the decoded pages of a list column; None for another layout than ours.

        Args:
            group: Row group, 0 to G - 1.
            column: Name of the column.
            decode: Function that decodes the bytes of the column chunk; None or
                Unfamiliar for another layout.
        """
        shard, index = self._place(group)

        def read() -> npt.NDArray[Any] | None:
            source, footer = self._open.with_footer(shard)
            chunk = footer.chunk(index, column)
            with suppress(Unfamiliar):
                if chunk.kind in VALUE_BITS:
                    return decode(
                        memoryview(source.read(chunk.begin, chunk.size)), chunk
                    )
            return None

        return self._checked(shard, f"row group {index}", read)

    def _check_count(self, group: int, count: int, expected: int, noun: str) -> None:
        """Raise IntegrityError unless a row group has the expected number of values.

        They are rows or values of lists.
        """
        if count != expected:
            shard, index = self._place(group)
            raise self._damaged(
                shard, f": row group {index} holds {count} {noun}; expected {expected}"
            )

    def flags(self, group: int, column: str) -> Bools:
        """Return a column of booleans of a row group, bool[rows].

        The errors are those of :meth:`read`.
        """
        return values(self.read(group, [column]).column(column)).astype(np.bool_)

    @property
    def through_arrow(self) -> tuple[str, ...]:
        """Paths of the shards with another layout than ours.

        :meth:`packed` reads them more slowly.
        """
        return tuple(
            self._shards[shard].path for shard in sorted(self._packed.through_arrow)
        )

    def bytes_of(self, group: int) -> int:
        """Return the number of (compressed) bytes of a row group in its file.

        The footer of the file is read once.
        """
        shard, index = self._place(group)
        sizes = self._checked(
            shard, "the footer", lambda: self._open.with_footer(shard)[1].sizes
        )
        if index >= len(sizes):
            raise self._damaged(
                shard, f": it has {len(sizes)} row groups; expected more than {index}"
            )
        return int(sizes[index])

    def close(self) -> None:
        """Close the files that stay open between reads; later reads open them again."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _place(self, group: int) -> tuple[int, int]:
        """Return the number of a row group's shard, and the row group's index in it."""
        if not 0 <= group < len(self.group_rows):
            raise ConfigError(
                f"{self.name} has row groups 0 to {len(self.group_rows) - 1}, not {group}"
            )
        shard = int(np.searchsorted(self._first_groups, group, side="right")) - 1
        return shard, group - int(self._first_groups[shard])

    def _key(self, shard: int) -> str:
        return Layout(self.manifest.dataset, self.manifest.version).key(
            self._shards[shard].path
        )

    def _open_shard(self, shard: int) -> BinaryIO:
        entry = self._shards[shard]
        # A file of another size is damaged; `tokenlake verify` compares its hash.
        stream = self._store.open(
            self._key(shard), size=entry.bytes, sha256=entry.sha256
        )
        size = stream.seek(0, 2)
        if size != entry.bytes:
            stream.close()
            raise self._damaged(shard, f"has {size} bytes; expected {entry.bytes}")
        return stream

    def _checked(self, shard: int, place: str, read: Callable[[], _T]) -> _T:
        """Return the result of reading, with errors of damage as IntegrityError.

        The store may keep a copy of a remote shard, which may be the damaged one: then
        it is discarded, and the shard is read once more.

        Args:
            shard: Number of the shard.
            place: Part of the shard that is read, for the message.
            read: Function that reads it.
        """
        # A second read only helps where the store had a copy to discard: then it fetches
        # the shard again.
        try:
            return self._read(shard, place, read)
        except IntegrityError:
            if not self._store.discard(self._key(shard)):
                raise
            return self._read(shard, place, read)

    def _read(self, shard: int, place: str, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except BaseException as error:
            # The open file may be a copy, or one that has no name any more.
            self._open.close(shard)
            if isinstance(error, NotFoundError):
                raise self._damaged(shard, "is missing") from error
            if isinstance(error, DAMAGE):
                raise self._damaged(shard, f"cannot be read: {error}", place) from error
            raise

    def _damaged(self, shard: int, problem: str, place: str = "") -> IntegrityError:
        layout = Layout(self.manifest.dataset, self.manifest.version)
        return damaged_file(layout, self._shards[shard].path, problem, place=place)

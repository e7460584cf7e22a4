"""The rows of one split of a committed version, by row group.

Row groups are numbered over all shards of the split, in the order of the manifest. Where they begin stands in the
manifest, so that an order can be computed before any file is opened.

Pages have checksums; their headers and the footer have none, and Arrow believes both. A flipped bit there makes other
types of the same bytes, or leaves the last values of a list out, and everything still looks like rows. So both are
compared with what is known from elsewhere: types with the manifest, numbers of values with each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any, BinaryIO, Final, Self, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int64, Ragged, lengths_between, offsets_of, values
from tokenlake.base.columns import columns_for
from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.runtime.reading.levels import Unfamiliar
from tokenlake.runtime.reading.packed import IDS, LEARNED, LENGTHS, PackedGroup, PackedReader, check_segments
from tokenlake.runtime.reading.pages import VALUE_BITS
from tokenlake.runtime.reading.ragged_rows import (
    RaggedGroup,
    RaggedRows,
    list_lengths,
    list_values,
    narrowest,
)
from tokenlake.runtime.reading.shard_file import ColumnChunk, OpenShards, one_batch
from tokenlake.runtime.reading.token_ids import MOST_IDS, check_ids
from tokenlake.runtime.reading.unfolding import check_unfolded
from tokenlake.runtime.schema import arrow_type, packed_schema, preference_schema, tokens_schema
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.manifest import Manifest

_REMOTE: Final = 16  # threads that wait for a remote store


def stored_schema(manifest: Manifest) -> pa.Schema:
    """Return the columns that shards of a version have; there may be others, of which nothing is known."""
    build = manifest.config.get("build", {})
    names = {name for shard in manifest.files for name in shard.logical}
    kept = tuple((name, arrow_type(kind)) for name, kind in build.get("kept", ()))
    if manifest.preference is not None:
        return preference_schema(*manifest.preference, kept)
    masked = "loss_mask" in names
    if manifest.width:
        pieces = "segment_ids" in names
        return packed_schema(manifest.width, store_segment_ids=pieces, loss_mask=masked)
    return tokens_schema(loss_mask=masked, attention_mask=bool(build.get("attention_mask")), kept=kept)


def id_columns(manifest: Manifest) -> tuple[str, ...]:
    """Return the columns that hold lists of ids."""
    if manifest.preference is None:
        return (IDS,)
    return tuple(column.name for column in columns_for(*manifest.preference) if column.holds == "ids")


def id_limit(manifest: Manifest) -> int:
    """Return one more than the largest id of the version's tokenizers; what 32 bits hold where one does not say."""
    sizes = [int(facts.get("vocab_size", 0)) for facts in manifest.tokenizer.values()]
    known = bool(sizes) and all(size > 0 for size in sizes)
    return min(max(sizes), MOST_IDS) if known else MOST_IDS


def runs(batch: pa.RecordBatch, name: str) -> tuple[Any, Int64]:
    """Return the values of a list column (an Arrow array) and where each row's begin, int64[rows + 1]."""
    column: Any = batch.column(name)
    return column.values, values(column.offsets).astype(np.int64)


def check_types(schema: pa.Schema, expected: pa.Schema) -> None:
    """Raise ValueError where a column has another type than the manifest says, or may hold nulls."""
    for name in expected.names:
        at = schema.get_field_index(name)
        if at < 0:
            continue
        got, wanted = schema.field(at), expected.field(name)
        if got.type != wanted.type or (got.nullable and not wanted.nullable):
            raise ValueError(f"{name} is {_shown(got)}; expected {_shown(wanted)}, by the manifest")


def check_values(batch: pa.RecordBatch, expected: npt.NDArray[np.int64]) -> None:
    """Raise ValueError unless the columns of a whole row group hold as many values as its footer says.

    Args:
        expected: for each leaf of the schema; an empty list, and a null, is one value.
    """
    columns: list[Any] = batch.columns
    found = [count for column in columns for count in _leaves(column, 0)]
    if found != expected.tolist():
        raise ValueError(f"columns of {found} values; expected {expected.tolist()}, as the footer says")


def _leaves(array: Any, above: int) -> list[int]:
    """Return how many values each leaf below an array has, `above` of them being empty lists or nulls above it."""
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        children = map(array.field, range(kind.num_fields))
        return [count for child in children for count in _leaves(child, above)]
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        empty = len(array) if not size else array.null_count
        return _leaves(array.flatten(), above + empty)
    if types.is_list(kind) or types.is_large_list(kind):
        empty = int(np.count_nonzero(np.diff(values(array.offsets)) == 0))
        return _leaves(array.flatten(), above + empty)
    return [len(array) + above]


def _shown(field: Any) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


_T = TypeVar("_T")

DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What Arrow raises for damaged Parquet: its own errors, OSError for pages, ValueError for metadata."""


def open_rows(store: ReadStore, dataset: str, version: int, split: str) -> StoredRows:
    """Open a split of a committed version; its manifest is read, its files are not.

    Raises:
        NotFoundError: there is no such version.
        ConfigError: it has no such split.
        IntegrityError: its manifest is damaged.
    """
    return StoredRows(store, Catalog(store).manifest(dataset, version), split)


@final
class StoredRows:
    """Row groups of a split, 0 to G - 1; may be used by several threads.

    Attributes:
        manifest: of the version.
        split: name of the split.
        group_rows: rows of each row group, int64[G].

    Raises:
        ConfigError: the version has no such split.
    """

    def __init__(self, store: ReadStore, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            names = ", ".join(manifest.splits) or "none, for it has no rows"
            raise ConfigError(
                f"{manifest.dataset}@v{manifest.version} has no split {split!r}; expected one of {names}"
            )
        self.manifest, self.split = manifest, split
        self._store = store
        self._shards = [shard for shard in manifest.files if shard.split == split]
        self._begins = offsets_of([len(shard.row_groups) for shard in self._shards])
        begins, ends = [shard.row_groups for shard in self._shards], [shard.rows for shard in self._shards]
        self.group_rows = lengths_between(begins, ends)
        self._first_rows = offsets_of(self.group_rows)
        self._open = OpenShards(self._opened)
        self._schema = stored_schema(manifest)
        self._id_columns = id_columns(manifest)
        self._id_limit = id_limit(manifest)
        self._packed = PackedReader(self._open, manifest.width, self._id_limit)
        self._lengths: dict[str, npt.NDArray[Any]] = {}
        self._lengths_lock = Lock()

    @property
    def name(self) -> str:
        """``code@v3/train``."""
        return f"{self.manifest.dataset}@v{self.manifest.version}/{self.split}"

    @property
    def rows(self) -> int:
        """Rows of all row groups."""
        return int(self._first_rows[-1])

    @property
    def ids(self) -> int:
        """Ids of all rows, padding included."""
        return self.rows * self.manifest.width or self.manifest.splits[self.split].tokens

    @property
    def has_loss_mask(self) -> bool:
        """Whether a shard says which tokens bear loss."""
        return any("loss_mask" in shard.logical for shard in self._shards)

    def shard_of(self, group: int) -> tuple[ShardEntry, int]:
        """Return the shard that holds a row group, and the row group's index in it."""
        shard, index = self._place(group)
        return self._shards[shard], index

    def row_of(self, group: int) -> int:
        """Return a row group's first row, counted over the split."""
        self._place(group)
        return int(self._first_rows[group])

    def group_of(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return the row group and the row in it of rows counted over the split, int64[n] both."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.rows):
            raise ConfigError(f"{self.name} has rows 0 to {self.rows - 1}, not {rows.min()} to {rows.max()}")
        group = np.searchsorted(self._first_rows, rows, side="right") - 1
        return group, rows - self._first_rows[group]

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row group, first row in it, last row + 1) for rows ``start .. stop``, fewer where the split ends."""
        end = min(stop, self.rows)
        while start < end:
            group = int(np.searchsorted(self._first_rows, start, side="right")) - 1
            begin, after = int(self._first_rows[group]), int(self._first_rows[group + 1])
            yield group, start - begin, min(end, after) - begin
            start = after

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Decode a row group as stored, every page against its checksum.

        Args:
            group: 0 to G - 1.
            columns: only these; None: all.

        Raises:
            IntegrityError: the file is missing or is not what the manifest says; names file and row group.
        """
        shard, index = self._place(group)
        batch = self._whole(shard, f"row group {index}", lambda: self._decoded(shard, index, columns))
        expected, got = sorted(columns or self._shards[shard].logical), sorted(batch.schema.names)
        if got != expected or batch.num_rows != self.group_rows[group]:
            found = f"{batch.num_rows} rows of {', '.join(got)}"
            stated = f"{self.group_rows[group]} rows of {', '.join(expected)}"
            raise self._damaged(shard, f": row group {index} holds {found}; expected {stated}")
        return batch

    def _decoded(self, shard: int, index: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        source, footer = self._open.with_footer(shard)
        batch = one_batch(source.parquet().read_row_group(index, columns))
        check_types(batch.schema, self._schema)
        if columns is None:
            check_values(batch, footer.values[index])
        self._check_rows(batch)
        return batch

    def _check_rows(self, batch: pa.RecordBatch) -> None:
        """Raise ValueError where an id is none of the tokenizer's, or segments are none of the rows that hold them."""
        for name in self._id_columns:
            if name in batch.schema.names:
                check_ids(values(cast("Any", batch.column(name)).flatten()), self._id_limit)
        if LENGTHS not in batch.schema.names or not self.manifest.width:
            return
        lengths, offsets = runs(batch, LENGTHS)
        taken = values(lengths.slice(offsets[0], offsets[-1] - offsets[0]))
        check_segments(Ragged(taken, offsets - offsets[0]), batch.num_rows, self.manifest.width)
        if "documents" in batch.schema.names:
            documents: Any = batch.column("documents")
            if not np.array_equal(np.diff(offsets), values(documents.value_lengths())):
                raise ValueError(f"{LENGTHS} and documents of a row are not of the same segments")

    def packed(self, group: int, *, loss_mask: bool, segments: bool = True) -> PackedGroup:
        """Decode what a batch needs of a row group of a packed dataset, every page read against its checksum.

        Args:
            group: 0 to G - 1.
            loss_mask: whether the stored ``loss_mask`` is read as well, where there is one.
            segments: whether the lengths of the segments are; a batch of ids alone needs none.

        Raises:
            ConfigError: the dataset is not packed, or there is no such row group.
            IntegrityError: as :meth:`read`.
        """
        if self.manifest.kind != "packed":
            raise ConfigError(f"{self.name} is of kind {self.manifest.kind}; expected packed")
        shard, index = self._place(group)
        stored, rows = loss_mask and LEARNED in self._shards[shard].logical, int(self.group_rows[group])
        return self._whole(
            shard,
            f"row group {index}",
            lambda: self._packed.read(shard, index, rows, loss_mask=stored, segments=segments),
        )

    def decoded(self, group: int, *, loss_mask: bool, segments: bool = True) -> PackedGroup | RaggedGroup:
        """Decode what a batch needs of a row group, of any kind of dataset; errors as of :meth:`packed`."""
        if self.manifest.kind == "packed":
            return self.packed(group, loss_mask=loss_mask, segments=segments)
        return self.ragged.read(group, loss_mask=loss_mask)

    @cached_property
    def ragged(self) -> RaggedRows:
        """The rows of a dataset that is not packed."""
        return RaggedRows(self, has_loss_mask=self.has_loss_mask)

    def list_lengths(self, column: str) -> npt.NDArray[Any]:
        """Return how many values the lists of a column have, of all rows: uint16[rows], or uint32 where one is longer.

        Read once, some 3 us a row and the bytes of the column; kept, two or four bytes a row.

        Raises:
            IntegrityError: as :meth:`read`.
        """
        with self._lengths_lock:
            if column not in self._lengths:

                def lengths(group: int) -> Int64:
                    rows = int(self.group_rows[group])
                    return self._of_lists(
                        group, column, lambda data, chunk: list_lengths(data, chunk.values), 1, rows
                    )

                threads = 1 if isinstance(self._store, LocalStore) else _REMOTE
                found = list(in_order(lengths, range(len(self.group_rows)), threads))
                self._lengths[column] = narrowest(np.concatenate([np.zeros(0, np.int64), *found]))
            return self._lengths[column]

    def list_values(self, group: int, column: str, values: int) -> npt.NDArray[Any]:
        """Return the values of the lists of a column in a row group, one list after the other.

        Args:
            group: 0 to G - 1.
            column: of lists of int32 or of booleans.
            values: how many there must be.

        Raises:
            IntegrityError: as :meth:`read`.
        """

        def direct(data: memoryview, chunk: ColumnChunk) -> npt.NDArray[Any] | None:
            if chunk.values != values:  # an empty list is a value, too
                return None
            check_unfolded(4 * values, chunk.size)
            limit = self._id_limit if column in self._id_columns else None
            return list_values(data, values, VALUE_BITS[chunk.kind], limit)

        return self._of_lists(group, column, direct, 0, values)

    def flags(self, group: int, column: str) -> Bools:
        """Return a column of booleans of a row group, bool[rows]; errors as of :meth:`read`."""
        return values(self.read(group, [column]).column(column)).astype(np.bool_)

    def _of_lists(
        self,
        group: int,
        column: str,
        direct: Callable[[memoryview, ColumnChunk], npt.NDArray[Any] | None],
        which: int,
        expected: int,
    ) -> npt.NDArray[Any]:
        """Return the values (0) or the lengths (1) of a column's lists: read directly, or through Arrow.

        Args:
            direct: None, or Unfamiliar, where pages are laid out as others write them.
            which: of the two.
            expected: how many there must be.
        """
        shard, index = self._place(group)

        def read() -> npt.NDArray[Any] | None:
            source, footer = self._open.with_footer(shard)
            chunk = footer.chunk(index, column)
            with suppress(Unfamiliar):
                if chunk.kind in VALUE_BITS:
                    return direct(memoryview(source.read(chunk.begin, chunk.size)), chunk)
            return None

        found = self._whole(shard, f"row group {index}", read)
        if found is None:
            lists, offsets = runs(self.read(group, [column]), column)
            taken = lists.slice(offsets[0], offsets[-1] - offsets[0])
            found = np.diff(offsets) if which else values(taken)
        if len(found) != expected:
            what = "rows" if which else f"values of {column}"
            raise self._damaged(shard, f": row group {index} holds {len(found)} {what}; expected {expected}")
        return found

    @property
    def through_arrow(self) -> tuple[str, ...]:
        """Paths of the shards that :meth:`packed` found to be laid out as others write them, and reads more slowly."""
        return tuple(self._shards[shard].path for shard in sorted(self._packed.through_arrow))

    def bytes_of(self, group: int) -> int:
        """Return the bytes of a row group in its file (compressed); the footer of its file is read once."""
        shard, index = self._place(group)
        sizes = self._whole(shard, "the footer", lambda: self._open.with_footer(shard)[1].sizes)
        if index >= len(sizes):
            raise self._damaged(shard, f": it has {len(sizes)} row groups; expected more than {index}")
        return int(sizes[index])

    def close(self) -> None:
        """Close the files that stay open between reads; what is read later opens them again."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _place(self, group: int) -> tuple[int, int]:
        if not 0 <= group < len(self.group_rows):
            raise ConfigError(f"{self.name} has row groups 0 to {len(self.group_rows) - 1}, not {group}")
        shard = int(np.searchsorted(self._begins, group, side="right")) - 1
        return shard, group - int(self._begins[shard])

    def _key(self, shard: int) -> str:
        return Layout(self.manifest.dataset, self.manifest.version).key(self._shards[shard].path)

    def _opened(self, shard: int) -> BinaryIO:
        entry = self._shards[shard]
        stream = self._store.open(self._key(shard), size=entry.bytes, sha256=entry.sha256)
        size = stream.seek(0, 2)
        if size != entry.bytes:
            stream.close()
            raise self._damaged(shard, f" has {size} bytes; expected {entry.bytes}")
        return stream

    def _whole(self, shard: int, what: str, read: Callable[[], _T]) -> _T:
        """Read, and once more where the damage may be that of a copy which the store keeps of a remote shard."""
        try:
            return self._read(shard, what, read)
        except IntegrityError:
            if not self._store.discard(self._key(shard)):
                raise
            return self._read(shard, what, read)

    def _read(self, shard: int, what: str, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except BaseException as error:
            self._open.close(shard)  # what is open may be a copy, or a file, that has no name any more
            if isinstance(error, NotFoundError):
                raise self._damaged(shard, " is missing") from error
            if isinstance(error, DAMAGE):
                raise self._damaged(shard, f": {what} cannot be read: {error}") from error
            raise

    def _damaged(self, shard: int, problem: str) -> IntegrityError:
        version, path = f"{self.manifest.dataset}@v{self.manifest.version}", self._shards[shard].path
        hint = f"Run `tokenlake verify {version}` to see all that is damaged"
        return IntegrityError(f"{version}: {path}{problem}. {hint}.", file=path)


REMEDY: Final = (
    "Run `tokenlake verify` for the whole picture, restore the file from a copy or build it again."
)


def verified_bytes(store: ReadStore, layout: Layout, path: str, expected: str) -> bytes:
    """Read one small file of a version; IntegrityError if its sha256 is not ``expected``."""
    key = layout.key(path)
    data = store.read(key)
    require_same(key, expected, hashlib.sha256(data).hexdigest())
    return data


def require_same(key: str, expected: str, got: str) -> None:
    """Raise IntegrityError if a file's sha256 (hex) is not the one that was committed."""
    if expected != got:
        raise IntegrityError(
            f"{key}: the file was changed after it was committed: sha256 is {got}, the manifest says {expected}. "
            f"{REMEDY}",
            file=key,
            expected=expected,
            got=got,
        )

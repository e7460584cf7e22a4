"""The rows of one split of a committed version, by row group.

Row groups are numbered over all shards of the split, in the order of the manifest. Where they begin stands in the
manifest, so that an order can be computed before any file is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, Final, Self, TypeVar, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.catalog import Catalog
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.manifest import Manifest, ShardEntry
from tokenlake.ragged import offsets_of
from tokenlake.reading.files import OpenFiles
from tokenlake.reading.packedgroup import LEARNED, PackedGroup
from tokenlake.reading.packedreader import PackedReader
from tokenlake.reading.ranges import Ranges
from tokenlake.reading.runs import one_batch
from tokenlake.reading.storedrows import check_types, check_values, stored_schema
from tokenlake.storage import Layout, ReadStore

Int64 = npt.NDArray[np.int64]
_T = TypeVar("_T")

# What Arrow raises for damaged Parquet: its own errors, OSError for pages, ValueError for metadata.
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)


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
        sizes = [np.diff([*shard.row_groups, shard.rows]) for shard in self._shards]
        self.group_rows: Int64 = np.concatenate([np.zeros(0, np.int64), *sizes])
        self._first_rows = offsets_of(self.group_rows)
        self._files = OpenFiles(self._open)
        self._ranges = Ranges(self._files)
        self._schema = stored_schema(manifest)
        self._packed = PackedReader(self._files, self._ranges, manifest.seq_length or 0)

    @property
    def name(self) -> str:
        """``code@v3/train``."""
        return f"{self.manifest.dataset}@v{self.manifest.version}/{self.split}"

    @property
    def rows(self) -> int:
        """Rows of all row groups."""
        return int(self._first_rows[-1])

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

    def read(self, group: int) -> pa.RecordBatch:
        """Decode a row group, all columns as stored, every page against its checksum.

        Raises:
            IntegrityError: the file is missing or is not what the manifest says; names file and row group.
        """
        shard, index = self._place(group)

        def read() -> pa.RecordBatch:
            with self._reading(shard, f"row group {index}"):
                return self._decoded(shard, index)

        batch = self._whole(shard, read)
        expected, got = sorted(self._shards[shard].logical), sorted(batch.schema.names)
        if got != expected or batch.num_rows != self.group_rows[group]:
            found = f"{batch.num_rows} rows of {', '.join(got)}"
            stated = f"{self.group_rows[group]} rows of {', '.join(expected)}"
            raise self._damaged(shard, f": row group {index} holds {found}; expected {stated}")
        return batch

    def _decoded(self, shard: int, index: int) -> pa.RecordBatch:
        footer = self._ranges.of(shard)[1]
        with self._files.borrow(shard) as file:
            batch = one_batch(file.read_row_group(index, use_threads=False))
        check_types(batch.schema, self._schema)
        check_values(batch, footer.values[index])
        return batch

    def packed(self, group: int, *, loss_mask: bool) -> PackedGroup:
        """Decode what a batch needs of a row group of a packed dataset, every page read against its checksum.

        Args:
            group: 0 to G - 1.
            loss_mask: whether the stored ``loss_mask`` is read as well, where there is one.

        Raises:
            ConfigError: the dataset is not packed, or there is no such row group.
            IntegrityError: as :meth:`read`.
        """
        if self.manifest.kind != "packed":
            raise ConfigError(f"{self.name} is of kind {self.manifest.kind}; expected packed")
        shard, index = self._place(group)
        stored = loss_mask and LEARNED in self._shards[shard].logical

        def read() -> PackedGroup:
            with self._reading(shard, f"row group {index}"):
                return self._packed.read(shard, index, int(self.group_rows[group]), loss_mask=stored)

        return self._whole(shard, read)

    @property
    def through_arrow(self) -> tuple[str, ...]:
        """Paths of the shards that :meth:`packed` found to be laid out as others write them, and reads more slowly."""
        return tuple(self._shards[shard].path for shard in sorted(self._packed.through_arrow))

    def bytes_of(self, group: int) -> int:
        """Return the bytes of a row group in its file (compressed); the footer of its file is read once."""
        shard, index = self._place(group)
        with self._reading(shard, "the footer"):
            sizes = self._ranges.of(shard)[1].sizes
            if index >= len(sizes):
                raise ValueError(f"it has {len(sizes)} row groups; expected more than {index}")
            return int(sizes[index])

    def close(self) -> None:
        """Close the files that stay open between reads; what is read later opens them again."""
        self._ranges.close()
        self._files.close()

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

    def _open(self, shard: int) -> BinaryIO:
        entry = self._shards[shard]
        stream = self._store.open(self._key(shard), size=entry.bytes, sha256=entry.sha256)
        size = stream.seek(0, 2)
        if size != entry.bytes:
            stream.close()
            raise self._damaged(shard, f" has {size} bytes; expected {entry.bytes}")
        return stream

    def _whole(self, shard: int, read: Callable[[], _T]) -> _T:
        """Read, and once more where the damage may be that of a copy which the store keeps of a remote shard."""
        try:
            return read()
        except IntegrityError:
            if not self._store.discard(self._key(shard)):
                raise
            self.close()  # what is open may be the copy, which has no name any more
            return read()

    @contextlib.contextmanager
    def _reading(self, shard: int, what: str) -> Generator[None]:
        try:
            yield
        except NotFoundError as error:
            raise self._damaged(shard, " is missing") from error
        except _DAMAGE as error:
            raise self._damaged(shard, f": {what} cannot be read: {error}") from error

    def _damaged(self, shard: int, problem: str) -> IntegrityError:
        version, path = f"{self.manifest.dataset}@v{self.manifest.version}", self._shards[shard].path
        mend = f"Run `tokenlake verify {version}` to see all that is damaged"
        return IntegrityError(f"{version}: {path}{problem}. {mend}.", file=path)

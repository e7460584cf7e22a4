"""Rows into a flat directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self, final

import pyarrow as pa

from tokenlake.build.produced import produced_by
from tokenlake.config.sizes import MIB
from tokenlake.errors import ConfigError
from tokenlake.flat.directory import Workplace, check_target, local_target, placed, write_manifest
from tokenlake.flat.form import Form
from tokenlake.flat.lines import LINES, lines_of
from tokenlake.flat.manifest import NO_ORIGIN, FlatManifest, Origin
from tokenlake.flat.rowtypes import Row, RowsToArrow
from tokenlake.flat.shards import Limits, ShardFiles, check_naming, edges_of
from tokenlake.flat.spool import Spool
from tokenlake.flat.stats import WriteStats
from tokenlake.sources.sharded.base import ShardedDataSource

DEFAULT_SHARD_SIZE: Final = 500 * MIB
DEFAULT_NAMING: Final = "{split}-{index:05d}-of-{count:05d}"

_BATCH_ROWS: Final = 1000
_BATCH_SIZE: Final = 1 << 20  # characters and items of a batch
_FIRST_SIZE: Final = 16 << 20  # of the first one, which decides on the types of the columns
_SPLIT: Final = "train"

Rows = ShardedDataSource | Iterable[Row]


@final
class DatasetWriter:
    """Writes one flat directory; :func:`create_writer` makes it.

    Everything at once, or some rows at a time::

        stats = create_writer("out", "jsonl").write(source)

        with create_writer("out", "parquet") as writer:
            writer.add({"text": "one row"})
            writer.extend(more_rows)
        writer.stats

    The directory appears when all is written. An exception inside the block leaves nothing.
    """

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        form: Form,
        *,
        max_bytes: int | None,
        num_shards: int | None,
        overwrite: bool,
        schema: pa.Schema | None,
        naming: str,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        check_naming(naming, [_SPLIT], form)
        self._target = local_target(output_path)
        check_target(self._target, overwrite=overwrite)
        self._form, self._overwrite, self._naming, self._origin = form, overwrite, naming, origin
        self._max_bytes, self._num_shards = max_bytes, num_shards
        self._converter = RowsToArrow(schema)
        # Any row is a line of JSON; columns need one type each.
        self._lines = form.format == "jsonl" and schema is None
        self._stack = ExitStack()
        self._place: Workplace | None = None
        self._files: ShardFiles | Spool | None = None
        self._edges: tuple[int, ...] | None = None
        self._waiting: list[Row] = []
        self._rows = self._waiting_size = 0
        self._stats: WriteStats | None = None

    @property
    def stats(self) -> WriteStats:
        """What was written; ConfigError before that."""
        if self._stats is None:
            raise ConfigError(
                "stats: nothing is written yet; they are there when the writer is closed without an error"
            )
        return self._stats

    def write(self, source: Rows) -> WriteStats:
        """Write all rows of a source or iterable, in order.

        Raises:
            BadRecordError: a row does not fit the columns that the first rows decided.
            ConfigError, StoreError: as :func:`tokenlake.flat.directory.placed`. Whatever is raised, also by the source,
                leaves the target as it was.
        """
        if self._num_shards is not None and (rows := _known_rows(source)) is not None:
            self._edges = edges_of(rows, self._num_shards)
        with self:
            self.extend(iter(source))
        return self.stats

    def __enter__(self) -> Self:
        if self._place is not None:
            raise ConfigError("this writer was used already; create another one")
        self._place = self._stack.enter_context(placed(self._target, overwrite=self._overwrite))
        return self

    def add(self, row: Row) -> None:
        """Add one row; ConfigError outside of a ``with`` block."""
        if self._place is None or self._stats is not None:
            raise ConfigError("rows are added inside of `with create_writer(...) as writer:`")
        self._waiting.append(row)
        self._waiting_size += _size(row)
        if len(self._waiting) >= _BATCH_ROWS or self._waiting_size >= self._most:
            self._flush()

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        for row in rows:
            self.add(row)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._discard()
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            try:
                manifest = self._finish()
            except BaseException:
                self._discard()
                raise
        self._stats = WriteStats.of(manifest, self._target)

    @property
    def _most(self) -> int:
        return _BATCH_SIZE if self._rows or self._lines else _FIRST_SIZE

    def _flush(self) -> None:
        rows, self._waiting, self._waiting_size = self._waiting, [], 0
        batch = lines_of(rows, self._rows) if self._lines else self._converter.batch(rows)
        self._rows += len(rows)
        self._opened(batch.schema).add(batch)

    def _opened(self, schema: pa.Schema) -> ShardFiles | Spool:
        if self._files is None:
            assert self._place is not None
            if self._num_shards is not None and self._edges is None:
                self._files = Spool(self._place.new, schema)
            else:
                self._files = self._shards(schema, self._edges)
        return self._files

    def _shards(self, schema: pa.Schema, edges: tuple[int, ...] | None) -> ShardFiles:
        assert self._place is not None
        limits = Limits(max_bytes=self._max_bytes, edges=edges)
        return ShardFiles(self._place.new, _SPLIT, self._form, schema, limits)

    def _finish(self) -> FlatManifest:
        assert self._place is not None
        if self._waiting:
            self._flush()
        schema = pa.schema([]) if self._lines else self._converter.schema or pa.schema([])
        manifest = FlatManifest(
            kind=self._origin.kind,
            format=self._form.format,
            compression=self._form.compression,
            columns={name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)},
            files=tuple(self._poured(LINES if self._lines else schema).finish(self._naming)),
            made_of=dict(self._origin.made_of),
            produced_by=produced_by(),
        )
        write_manifest(self._place.new, manifest)
        return manifest

    def _poured(self, schema: pa.Schema) -> ShardFiles:
        files = self._opened(schema)
        if isinstance(files, Spool):
            assert self._num_shards is not None
            self._files = shards = self._shards(files.schema, edges_of(files.rows, self._num_shards))
            files.pour(shards)
            return shards
        return files

    def _discard(self) -> None:
        if self._files is not None:
            self._files.discard()


def _known_rows(source: Rows) -> int | None:
    """Return how many rows a source has, where it says so."""
    if isinstance(source, ShardedDataSource | Sequence):
        try:
            return len(source)
        except TypeError:
            return None
    return None


def _size(row: object) -> int:
    """Return about how large a row is, in characters and items, without looking into what is nested."""
    values = row.values() if isinstance(row, dict) else ()
    return sum(len(value) for value in values if hasattr(value, "__len__"))

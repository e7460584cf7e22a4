"""Rows of tokens that are kept on disk while they are drawn for the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import orjson
import pyarrow.parquet as pq

from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from tokenlake.flat.manifest import FlatManifest
from tokenlake.flat.save import create_writer
from tokenlake.flat.writer import DatasetWriter
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource, without_numbers
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.info import ShardInfo, check_row, index_of

_TOKENS: Final = {"input_ids": np.int32, "attention_mask": np.int32, "loss_mask": np.bool_}
_NUMBER, _REST = "number", "rest"


@final
class CachedShardedSource(ShardedDataSource):
    """Another source's shards, each kept in a folder once it was read from its first row to its last.

    The first reading passes rows on as they come and writes them beside that; it is kept when it came to its end, and
    left no trace otherwise. Later ones read the folder, at any row. Rows and their numbers are the same either way.
    Where the folder cannot be written, or another process writes it, rows come all the same.

    Rows hold arrays of tokens, and other fields that JSON has.
    """

    def __init__(self, source: ShardedDataSource, folder: Callable[[], Path]) -> None:
        """Keep the rows of `source`.

        Args:
            folder: asked whenever a shard is opened. It is for these rows alone: its name says all that decides them.
        """
        self._source, self._folder = source, folder

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def every_row(self) -> bool:
        return self._source.every_row

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return self._source.versions

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._rows(shard_name, self._folder() / f"{index_of(shard_name, self.shard_names):05}", row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._source.get_shard_info(shard_name)

    def _rows(self, name: str, folder: Path, row: int) -> Numbered:
        if (files := _kept(folder)) is not None:
            found = False
            for number, kept in _read(files, row):
                found = True
                yield number, kept
            if found or not row:
                return
        # A row beyond the end is the source's to judge.
        rows = self._source.open_shard_numbered(name, row)
        yield from rows if row else _keeping(rows, folder)

    def __repr__(self) -> str:
        return f"CachedShardedSource({self._source!r})"


def _kept(folder: Path) -> list[Path] | None:
    """Return the files of a folder that was written to its end, None where there is none."""
    try:
        return [folder / file.path for file in FlatManifest.of(folder).files if file.rows]
    except (NotFoundError, IntegrityError):
        return None


def _read(files: Sequence[Path], row: int) -> Numbered:
    for path in files:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=512):
                for kept in batch.to_pylist():
                    if kept[_NUMBER] >= row:
                        yield kept[_NUMBER], _restored(kept)


def _restored(kept: dict[str, Any]) -> Row:
    rest: Row = orjson.loads(kept[_REST])
    return rest | {name: np.array(kept[name], kind) for name, kind in _TOKENS.items() if name in kept}


def _keeping(rows: Numbered, folder: Path) -> Numbered:
    """Yield rows, and write them beside that."""
    writer = _started(folder)
    try:
        for number, row in rows:
            if writer is not None and not _added(writer, number, row):
                writer = None
            yield number, row
    except BaseException as error:
        if writer is not None:
            writer.__exit__(type(error), error, error.__traceback__)
        raise
    if writer is not None:
        _finished(writer)


def _started(folder: Path) -> DatasetWriter | None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return create_writer(folder, "parquet", overwrite=True).__enter__()
    except (OSError, StoreError, ConfigError):
        return None


def _added(writer: DatasetWriter, number: int, row: Row) -> bool:
    """Add a row; where that fails, give the writer up and return False."""
    tokens = {name: row[name] for name in _TOKENS if name in row}
    rest = {name: value for name, value in row.items() if name not in _TOKENS}
    try:
        writer.add({_NUMBER: number, _REST: _json(rest), **tokens})
    except ConfigError:
        raise
    except Exception as error:
        writer.__exit__(type(error), error, error.__traceback__)
        return False
    return True


def _json(rest: Row) -> str:
    try:
        text = orjson.dumps(rest)
    except TypeError as error:
        raise ConfigError(
            f"tokenize.cache_tokenized: a kept field holds what JSON does not have ({error}), so it would come back as "
            "something else; do not keep it, or leave cache_tokenized out"
        ) from error
    return text.decode()


def _finished(writer: DatasetWriter) -> None:
    try:
        writer.__exit__(None, None, None)
    except (OSError, StoreError):
        return  # rows were passed on; the next reading makes them again

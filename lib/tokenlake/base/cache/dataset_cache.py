"""A cache of whole datasets, in chunks of rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast, final

import pyarrow as pa

from tokenlake.base.cache.disk import CacheMetadata, Compression, DiskCache
from tokenlake.base.cache.manager import TreeCacheManager
from tokenlake.errors import ConfigError, MissingExtraError

_CHUNK_BYTES: Final = 4 << 20
"""Bytes of a chunk: small enough to be read for a few rows."""
_ARROW: Final[Any] = pa


@final
class DatasetCache:
    """A cache of whole datasets.

    An entry holds some of the rows, and one more says how many entries there are.

    Args:
        cache_dir: Folder, or the cache that keeps the entries, with its own bounds.
        compression, expiry_seconds, max_bytes: Options of the :class:`DiskCache` in a
            folder.
    """

    def __init__(
        self,
        cache_dir: str | Path | DiskCache | TreeCacheManager,
        compression: Compression = "none",
        expiry_seconds: float | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        if not isinstance(cache_dir, DiskCache | TreeCacheManager):
            cache_dir = DiskCache(
                cache_dir, compression, expiry_seconds, max_bytes=max_bytes
            )
        self._layer = cache_dir

    def put(
        self, key: str, dataset: Any, metadata: CacheMetadata | None = None
    ) -> None:
        """Keep a dataset.

        Args:
            key: Key of the dataset.
            dataset: Arrow table, list of rows (dicts), Dataset of Hugging Face, or
                DatasetDict.
            metadata: Metadata of the dataset.

        Raises:
            ConfigError: It has another type, or its rows have types that Arrow lacks.
        """
        # A dataset of several splits is one dataset for each, and an entry with their
        # names.
        if isinstance(dataset, Mapping):
            splits = cast("Mapping[str, Any]", dataset)
            for split_name, split_dataset in splits.items():
                self.put(f"{key}/{split_name}", split_dataset)
            self._layer.put(key, {"kind": "splits", "splits": [*splits]}, metadata)
            return
        table, kind = _table_of(dataset)
        # The entry with the index comes last: a dataset is there as a whole or not at
        # all.
        writer = self.writer(key)
        chunk_rows = max(1, _CHUNK_BYTES * len(table) // max(table.nbytes, 1))
        for first_row in range(0, max(len(table), 1), chunk_rows):
            writer.add(first_row, table.slice(first_row, chunk_rows))
        writer.finish(metadata, kind=kind)

    def get(self, key: str) -> Any:
        """Return a dataset as it was put, None if it or a part of it is missing.

        Raises:
            MissingExtraError: It is a Dataset of Hugging Face, and `datasets` is not
                installed.
        """
        index = self.index(key)
        if index is None:
            return None
        if index["kind"] == "splits":
            splits: dict[str, Any] = {}
            for split_name in index["splits"]:
                splits[split_name] = self.get(f"{key}/{split_name}")
            if None in splits.values():
                return None
            return _hugging_face().DatasetDict(splits)
        # A cache may have removed some chunks alone: the others are of no use then.
        chunks = [self.chunk(key, number) for number in range(len(index["firsts"]))]
        if None in chunks:
            self.invalidate(key)
            return None
        table = _ARROW.concat_tables(chunks)
        if index["kind"] == "dataset":
            return _hugging_face().Dataset(table)
        if index["kind"] == "rows":
            return table.to_pylist()
        return table

    def contains(self, key: str) -> bool:
        """Return whether the cache has a dataset with all of its rows."""
        index = self.index(key)
        if index is None:
            return False
        if index["kind"] == "splits":
            return all(self.contains(f"{key}/{split}") for split in index["splits"])
        chunk_numbers = range(len(index["firsts"]))
        chunk_keys = [_chunk_key(key, number) for number in chunk_numbers]
        return all(map(self._layer.contains, chunk_keys))

    def invalidate(self, key: str | None = None) -> None:
        """Remove one dataset, or all of them."""
        if key is None:
            self._layer.invalidate(None)
            return
        index = self.index(key) or {}
        self._layer.invalidate(key)
        for split_name in index.get("splits", ()):
            self.invalidate(f"{key}/{split_name}")
        for number in range(len(index.get("firsts", ()))):
            self._layer.invalidate(_chunk_key(key, number))

    def writer(self, key: str) -> ChunkWriter:
        """Return a writer of a dataset, which takes it chunk by chunk."""
        return ChunkWriter(self._layer, key)

    def index(self, key: str) -> dict[str, Any] | None:
        """Return the kind of a dataset and the first row of each chunk; None for a miss."""
        value_and_metadata = self._layer.get(key)
        if value_and_metadata is None:
            return None
        return value_and_metadata[0]

    def chunk(self, key: str, number: int) -> pa.Table | None:
        """Return a chunk of rows, None for a miss."""
        value_and_metadata = self._layer.get(_chunk_key(key, number))
        if value_and_metadata is None:
            return None
        return value_and_metadata[0]

    def chunks(
        self, key: str, row: int = 0
    ) -> Iterator[tuple[int, pa.Table | None]] | None:
        """Return an iterator over the chunks of a dataset, from the one with a row on.

        None if the dataset is missing.

        Args:
            key: Key of the dataset.
            row: Number of a row in the first chunk.

        Returns:
            Number of the first row and rows of each chunk. A missing chunk is None, and
            the last one.
        """
        index = self.index(key)
        if index is None:
            return None
        firsts: list[int] = index["firsts"]

        def read_chunks() -> Iterator[tuple[int, pa.Table | None]]:
            # The last chunk that begins at `row` or before it.
            first_chunk = max(bisect_right(firsts, row) - 1, 0)
            for number in range(first_chunk, len(firsts)):
                chunk_table = self.chunk(key, number)
                # A dataset with a gap is of no use: it goes as a whole.
                if chunk_table is None:
                    self.invalidate(key)
                yield firsts[number], chunk_table
                if chunk_table is None:
                    return

        return read_chunks()


@final
class ChunkWriter:
    """Writer of a dataset, chunk by chunk; the cache has it once it is finished."""

    def __init__(self, layer: DiskCache | TreeCacheManager, key: str) -> None:
        self._layer = layer
        self._key = key
        self._firsts: list[int] = []  # number of the first row of each chunk

    def add(self, first: int, table: pa.Table) -> None:
        """Keep rows; `first` is the number of the first of them, larger than before."""
        self._layer.put(_chunk_key(self._key, len(self._firsts)), table)
        self._firsts.append(first)

    def finish(
        self, metadata: CacheMetadata | None = None, *, kind: str = "table"
    ) -> None:
        """Make the added rows a dataset of a kind."""
        self._layer.put(self._key, {"kind": kind, "firsts": self._firsts}, metadata)


def _table_of(dataset: Any) -> tuple[Any, str]:
    """Return a dataset as an Arrow table, and the kind that is made of it again.

    Raises:
        ConfigError: It has another type, or its rows have types that Arrow lacks.
    """
    try:
        if isinstance(dataset, list):
            return _ARROW.Table.from_pylist(dataset), "rows"
        if hasattr(dataset, "with_format") and hasattr(dataset, "features"):
            # The features may declare other types than the table of the dataset has.
            table = dataset.with_format("arrow")[:]
            return table.cast(dataset.features.arrow_schema), "dataset"
    except (TypeError, AttributeError, pa.ArrowException) as error:
        raise ConfigError(
            f"DatasetCache: the rows have types that Arrow does not support: {error}"
        ) from error
    if isinstance(dataset, pa.Table):
        return dataset, "table"
    raise ConfigError(
        f"DatasetCache: got a {type(dataset).__name__}; expected an Arrow table, a list of rows, or a "
        "Dataset or DatasetDict of Hugging Face"
    )


def _chunk_key(key: str, number: int) -> str:
    return f"{key}/#{number}"


def _hugging_face() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            "this is a dataset of Hugging Face, which needs the package datasets: pip install datasets"
        ) from error
    return datasets

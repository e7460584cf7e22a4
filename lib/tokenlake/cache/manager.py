"""Caches in memory, which let go of what was used longest ago, memory before disk, and rows of datasets in either."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, Literal, TypeVar, cast, final

import pyarrow as pa

from tokenlake.cache.disk import CacheMetadata, Compression, DiskCache, Entry
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.fingerprint import fingerprint

K = TypeVar("K")
MEMORY_BYTES: Final = 1 << 30


def value_bytes(value: object) -> int:
    """Return about how many bytes of memory a value takes: those of its buffers, else those of its objects."""
    if isinstance(size := getattr(value, "nbytes", None), int):
        return size
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return sys.getsizeof(value) + sum(value_bytes(key) + value_bytes(each) for key, each in pairs)
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(value_bytes, cast("Iterable[object]", value)))
    return sys.getsizeof(value)


@final
class MemoryCache(Generic[K]):
    """A bounded cache in memory; may be used by several threads.

    A value is the very object that was put, not a copy: whoever gets it must not change it.

    Args:
        max_size: entries at most; None for any number.
        max_bytes: of all values together; a value that alone has more is not kept.
        expiry_seconds: after which an entry is a miss; None for never.
        clock: seconds since 1970.
        size_of: bytes of a value.
        first_out: which key goes where there is no room, of all in the order of use; None: the one used longest ago.
        stay: so many of the last entries stay, however large they are.
        lock: that everything is done under, `first_out` included; None: one of its own.

    Raises:
        ConfigError: a bound is negative.
    """

    def __init__(
        self,
        max_size: int | None = 1000,
        max_bytes: int = MEMORY_BYTES,
        expiry_seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
        size_of: Callable[[Any], int] = value_bytes,
        first_out: Callable[[Iterable[K]], K] | None = None,
        stay: int = 0,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if max_bytes < 0 or (max_size is not None and max_size < 0):
            raise ConfigError(
                f"a cache of {max_size} entries and {max_bytes} bytes; expected 0 or more of each"
            )
        self.max_size, self.max_bytes, self._expiry, self._clock = max_size, max_bytes, expiry_seconds, clock
        self._size_of, self._first_out, self._stay = size_of, first_out, stay
        self._lock: Final = Lock() if lock is None else lock
        self._kept: dict[K, tuple[Entry, int]] = {}
        self._under_way: dict[K, Future[Entry]] = {}
        self._held = self._hits = self._misses = 0

    @property
    def held(self) -> int:
        """Bytes of the values that are here."""
        return self._held

    @property
    def kept(self) -> Mapping[K, tuple[Entry, int]]:
        """What is here, each with its bytes, the least recently used first; to be looked at under the lock."""
        return self._kept

    @property
    def under_way(self) -> Mapping[K, object]:
        """What is being computed, to be looked at under the lock."""
        return self._under_way

    @property
    def stats(self) -> dict[str, Any]:
        """Entries and bytes with their bounds, hits, misses, and the share of hits in [0, 1]."""
        with self._lock:
            asked = self._hits + self._misses
            return {
                "size": len(self._kept),
                "max_size": self.max_size,
                "bytes": self._held,
                "max_bytes": self.max_bytes,
                "hits": self._hits,
                "misses": self._misses,
                "hit_rate": self._hits / asked if asked else 0.0,
            }

    def get(self, key: K) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss."""
        found = self.entry(key)
        return None if found is None else found[:2]

    def entry(self, key: K) -> Entry | None:
        """Return what is here of a key, with the time at which it expires; None for a miss."""
        with self._lock:
            return self._find(key)

    def put(
        self, key: K, value: Any, metadata: CacheMetadata | None = None, *, expires: float | None = None
    ) -> None:
        """Keep a value, and let others go where there is no room.

        Args:
            expires: when, in seconds since 1970; None: after `expiry_seconds`.
        """
        with self._lock:
            self._add(key, Entry(value, metadata, expires))

    def compute(self, key: K, make: Callable[[], Entry]) -> Entry:
        """Return the entry of a key, or make and keep it: once, when several threads ask at a time.

        Raises:
            BaseException: whatever `make` raises; nothing is kept then.
        """
        while True:
            with self._lock:
                if (there := self._find(key)) is not None:
                    return there
                if (other := self._under_way.get(key)) is None:
                    own = self._under_way[key] = Future[Entry]()
                    break
            if other.exception() is None:  # else it is tried again here
                with self._lock:
                    self._misses, self._hits = self._misses - 1, self._hits + 1
                return other.result()
        try:
            found = make()
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            own.set_exception(error)
            raise
        with self._lock:
            self._add(key, found)
            del self._under_way[key]
        own.set_result(found)
        return found

    def contains(self, key: K) -> bool:
        """Say whether an entry is here and holds still; that is no use of it."""
        with self._lock:
            return (there := self._kept.get(key)) is not None and self._fresh(there[0])

    def invalidate(self, key: K | None = None) -> None:
        """Let one entry go, or all of them."""
        with self._lock:
            for each in [*self._kept] if key is None else [key]:
                self._forget(each)

    def _find(self, key: K) -> Entry | None:
        there = self._kept.pop(key, None)
        if there is not None and self._fresh(there[0]):
            self._kept[key] = there  # used last
            self._hits += 1
            return there[0]
        self._held -= 0 if there is None else there[1]
        self._misses += 1
        return None

    def _fresh(self, entry: Entry) -> bool:
        return entry.expires is None or self._clock() < entry.expires

    def _add(self, key: K, entry: Entry) -> None:
        self._forget(key)
        size = self._size_of(entry.value)
        if not self._stay and (size > self.max_bytes or self.max_size == 0):
            return
        if entry.expires is None and self._expiry is not None:
            entry = entry._replace(expires=self._clock() + self._expiry)
        self._kept[key] = entry, size
        self._held += size
        most = sys.maxsize if self.max_size is None else self.max_size
        while (self._held > self.max_bytes or len(self._kept) > most) and len(self._kept) > self._stay:
            self._forget(next(iter(self._kept)) if self._first_out is None else self._first_out(self._kept))

    def _forget(self, key: K) -> None:
        if (there := self._kept.pop(key, None)) is not None:
            self._held -= there[1]


CacheType = Literal["memory", "disk", "hierarchical"]
_DIGITS = 32  # of a sha256 in keys: no two different things have the same


@final
class TreeCacheManager:
    """A cache in memory over one on disk; what the disk has is taken up into memory when it is asked for.

    Args:
        cache_dir: folder of the disk's entries.
        memory_size: entries at most in memory.
        disk_expiry: seconds after which an entry is a miss, in both layers; None for never.
        compression: of entries on disk: ``none``, ``gzip``, ``lz4`` or ``zstd``.
        max_bytes: of entries on disk; None for any number.
        cache_type: ``memory`` and ``disk`` for one layer alone.
        clock: seconds since 1970.

    Raises:
        ConfigError: as of :class:`MemoryCache` and :class:`DiskCache`.
    """

    def __init__(
        self,
        cache_dir: str | Path,
        memory_size: int = 100,
        disk_expiry: float | None = 86400,
        compression: Compression = "none",
        *,
        max_bytes: int | None = None,
        cache_type: CacheType = "hierarchical",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cache_dir = Path(cache_dir)
        size = 0 if cache_type == "disk" else memory_size
        self._memory: MemoryCache[str] = MemoryCache(size, expiry_seconds=disk_expiry, clock=clock)
        disk = DiskCache(cache_dir, compression, disk_expiry, max_bytes=max_bytes, clock=clock)
        self._disk = None if cache_type == "memory" else disk

    @property
    def stats(self) -> dict[str, Any]:
        """What each layer says of itself, by its name."""
        layers: dict[str, Any] = {"memory": self._memory.stats}
        return layers if self._disk is None else layers | {"disk": self._disk.stats}

    def get(self, key: str) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss; a value in memory is the very object that others get, too."""
        found = self._memory.entry(key)
        if found is None and (found := self._on_disk(key)) is not None:
            self._memory.put(key, *found[:2], expires=found.expires)
        return None if found is None else found[:2]

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Keep a value in all layers; ConfigError where it is not what a cache keeps."""
        if self._disk is not None:
            self._disk.put(key, value, metadata)
        self._memory.put(key, value, metadata)

    def contains(self, key: str) -> bool:
        """Say whether a layer has an entry that holds still."""
        return self._memory.contains(key) or self._on_disk(key) is not None

    def invalidate(self, key: str | None = None) -> None:
        """Remove one entry from all layers, or all of them."""
        self._memory.invalidate(key)
        if self._disk is not None:
            self._disk.invalidate(key)

    def get_or_compute(
        self,
        key: str,
        compute_fn: Callable[[], Any],
        metadata: CacheMetadata | None = None,
        validate_fn: Callable[[CacheMetadata], bool] | None = None,
    ) -> Any:
        """Return the value of a key, computed and kept where there is none: once, when several threads ask at a time.

        Args:
            metadata: to keep with a new value.
            validate_fn: says of the metadata of an entry whether it still holds; if not, it is made anew. An entry
                without metadata does not hold.

        Raises:
            ConfigError: the computed value is not what a cache keeps.
            BaseException: whatever `compute_fn` raises; nothing is kept then.
        """
        there = None if validate_fn is None else self.get(key)
        if validate_fn and there and (there[1] is None or not validate_fn(there[1])):
            self.invalidate(key)

        def make() -> Entry:
            if (there := self._on_disk(key)) is not None:
                return there
            value = compute_fn()
            if self._disk is not None:
                self._disk.put(key, value, metadata)
            return Entry(value, metadata)

        return self._memory.compute(key, make).value

    @staticmethod
    def compute_key(
        config: dict[str, Any],
        prefix: str = "",
        include_content_hash: bool = False,
        content: str | bytes | None = None,
    ) -> str:
        """Return a key for everything in `config`: equal configurations have equal keys, in whatever order.

        Args:
            prefix: that the key begins with.
            include_content_hash: have `content` in the key, too.

        Raises:
            ConfigError: `config` holds what JSON does not have, or content is asked for and there is none.
        """
        parts = [prefix] if prefix else []
        parts.append(fingerprint(config)[:_DIGITS])
        if include_content_hash:
            if content is None:
                told = "compute_key: include_content_hash=True needs `content`, a text or bytes; got None"
                raise ConfigError(told)
            data = content.encode() if isinstance(content, str) else content
            parts.append(sha256(data).hexdigest()[:_DIGITS])
        return "_".join(parts)

    def _on_disk(self, key: str) -> Entry | None:
        return None if self._disk is None else self._disk.entry(key)


_CHUNK_BYTES: Final = 4 << 20
_ARROW: Final[Any] = pa


@final
class DatasetCache:
    """A cache of whole datasets; an entry holds some of the rows, and one more says how many entries there are.

    Args:
        cache_dir: a folder, or the cache that entries are kept in, whose own bounds hold then.
        compression, expiry_seconds, max_bytes: as of :class:`DiskCache`.
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
            cache_dir = DiskCache(cache_dir, compression, expiry_seconds, max_bytes=max_bytes)
        self._layer = cache_dir

    def put(self, key: str, dataset: Any, metadata: CacheMetadata | None = None) -> None:
        """Keep a dataset.

        Args:
            dataset: an Arrow table, a list of rows (dicts), a Dataset of Hugging Face, or a DatasetDict.

        Raises:
            ConfigError: it is something else, or its rows have no types that Arrow has.
        """
        if isinstance(dataset, Mapping):
            splits = cast("Mapping[str, Any]", dataset)
            for name, each in splits.items():
                self.put(f"{key}/{name}", each)
            self._layer.put(key, {"kind": "splits", "splits": [*splits]}, metadata)
            return
        kind = "table"
        try:
            if isinstance(dataset, list):
                kind, table = "rows", _ARROW.Table.from_pylist(dataset)
            elif hasattr(dataset, "with_format") and hasattr(dataset, "features"):
                kind = "dataset"
                table = dataset.with_format("arrow")[:].cast(dataset.features.arrow_schema)
            elif isinstance(dataset, pa.Table):
                table = dataset
            else:
                raise ConfigError(
                    f"DatasetCache: got a {type(dataset).__name__}; expected an Arrow table, a list of rows, or a "
                    "Dataset or DatasetDict of Hugging Face"
                )
        except (TypeError, AttributeError, pa.ArrowException) as error:
            raise ConfigError(f"DatasetCache: the rows have no types that Arrow has: {error}") from error
        writer = self.writer(key)
        rows = max(1, _CHUNK_BYTES * len(table) // max(table.nbytes, 1))
        for first in range(0, max(len(table), 1), rows):
            writer.add(first, table.slice(first, rows))
        writer.finish(metadata, kind=kind)

    def get(self, key: str) -> Any:
        """Return a dataset as it was put, None where it, or a part of it, is missing.

        Raises:
            MissingExtraError: it is a Dataset of Hugging Face, and `datasets` is not installed.
        """
        index = self.index(key)
        if index is None:
            return None
        if index["kind"] == "splits":
            splits = {name: self.get(f"{key}/{name}") for name in index["splits"]}
            return None if None in splits.values() else _hugging_face().DatasetDict(splits)
        chunks = [self.chunk(key, number) for number in range(len(index["firsts"]))]
        if None in chunks:
            self.invalidate(key)
            return None
        table = _ARROW.concat_tables(chunks)
        if index["kind"] == "dataset":
            return _hugging_face().Dataset(table)
        return table.to_pylist() if index["kind"] == "rows" else table

    def contains(self, key: str) -> bool:
        """Say whether a dataset is there with all of its rows."""
        index = self.index(key)
        if index is None or index["kind"] == "splits":
            return index is not None and all(self.contains(f"{key}/{name}") for name in index["splits"])
        return all(self._layer.contains(_chunk_key(key, number)) for number in range(len(index["firsts"])))

    def invalidate(self, key: str | None = None) -> None:
        """Remove one dataset, or all of them."""
        index = None if key is None else self.index(key)
        self._layer.invalidate(key)
        for name in (index or {}).get("splits", ()):
            self.invalidate(f"{key}/{name}")
        for number in range(len((index or {}).get("firsts", ()))):
            self._layer.invalidate(_chunk_key(str(key), number))

    def writer(self, key: str) -> ChunkWriter:
        """Return what writes a dataset chunk by chunk."""
        return ChunkWriter(self._layer, key)

    def index(self, key: str) -> dict[str, Any] | None:
        """Return the kind of a dataset and the number of the first row of each chunk; None for a miss."""
        found = self._layer.get(key)
        return None if found is None else found[0]

    def chunk(self, key: str, number: int) -> pa.Table | None:
        """Return a chunk of rows, None for a miss."""
        found = self._layer.get(_chunk_key(key, number))
        return None if found is None else found[0]

    def chunks(self, key: str, row: int = 0) -> Iterator[tuple[int, pa.Table | None]] | None:
        """Return (number of the first row, rows) of each chunk from the one that holds number `row` on.

        A chunk that is missing is None, and the last one. None as a whole if the dataset is missing.
        """
        if (index := self.index(key)) is None:
            return None
        firsts: list[int] = index["firsts"]

        def some() -> Iterator[tuple[int, pa.Table | None]]:
            for number in range(max(bisect_right(firsts, row) - 1, 0), len(firsts)):
                if (found := self.chunk(key, number)) is None:
                    self.invalidate(key)
                yield firsts[number], found
                if found is None:
                    return

        return some()


@final
class ChunkWriter:
    """Writes a dataset chunk by chunk; it is there once it is finished."""

    def __init__(self, layer: DiskCache | TreeCacheManager, key: str) -> None:
        self._layer, self._key, self._firsts = layer, key, list[int]()

    def add(self, first: int, table: pa.Table) -> None:
        """Keep rows, of which the first has this number; numbers grow."""
        self._layer.put(_chunk_key(self._key, len(self._firsts)), table)
        self._firsts.append(first)

    def finish(self, metadata: CacheMetadata | None = None, *, kind: str = "table") -> None:
        """Make what was added a dataset."""
        self._layer.put(self._key, {"kind": kind, "firsts": self._firsts}, metadata)


def _chunk_key(key: str, number: int) -> str:
    return f"{key}/#{number}"


def _hugging_face() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("this dataset is one of Hugging Face: pip install datasets") from error
    return datasets

""":class:`TreeCacheManager`: a cache in memory over one on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, final

from tokenlake.base.cache.disk import CacheMetadata, Compression, DiskCache, Entry
from tokenlake.base.cache.memory import MemoryCache
from tokenlake.base.fingerprint import fingerprint
from tokenlake.errors import ConfigError

CacheType = Literal["memory", "disk", "hierarchical"]
_DIGITS = 32
"""Digits of a sha256 in keys: no two different configurations have the same."""


@final
class TreeCacheManager:
    """A cache in memory over one on disk.

    An entry of the disk is copied into memory when it is read.

    Args:
        cache_dir: Folder of the disk's entries.
        memory_size: Largest number of entries in memory.
        disk_expiry: Seconds after which an entry is a miss, in both layers; None for
            never.
        compression: Compression of entries on disk: ``none``, ``gzip``, ``lz4`` or
            ``zstd``.
        max_bytes: Largest number of bytes on disk; None for any number.
        cache_type: Layers: ``memory`` and ``disk`` for one alone.
        clock: Function that returns the seconds since 1970.

    Raises:
        ConfigError: A bound is negative, or the compression does not exist.
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
        # A layer that is switched off keeps nothing.
        max_entries = 0 if cache_type == "disk" else memory_size
        self._memory: MemoryCache[str] = MemoryCache(
            max_entries, expiry_seconds=disk_expiry, clock=clock
        )
        disk_cache = DiskCache(
            cache_dir, compression, disk_expiry, max_bytes=max_bytes, clock=clock
        )
        self._disk = None if cache_type == "memory" else disk_cache

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics of each layer, by its name."""
        layers: dict[str, Any] = {"memory": self._memory.stats}
        if self._disk is not None:
            layers["disk"] = self._disk.stats
        return layers

    def get(self, key: str) -> tuple[Any, CacheMetadata | None] | None:
        """Return (value, metadata), None for a miss.

        All callers get the same object of a value in memory.
        """
        entry = self._memory.entry(key)
        if entry is None:
            entry = self._on_disk(key)
            if entry is None:
                return None
            # The entry must not live longer in memory than on the disk.
            self._memory.put(key, entry.value, entry.metadata, expires=entry.expires)
        return entry.value, entry.metadata

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Keep a value in all layers.

        Raises:
            ConfigError: The value has a type that a cache does not keep.
        """
        if self._disk is not None:
            self._disk.put(key, value, metadata)
        self._memory.put(key, value, metadata)

    def contains(self, key: str) -> bool:
        """Return whether a layer has an entry that has not expired."""
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
        """Return the value of a key, computed and kept on a miss.

        It is computed once if several threads ask at the same time.

        Args:
            key: Key of the value.
            compute_fn: Function that computes the value.
            metadata: Metadata to keep with a computed value.
            validate_fn: Function that returns whether the metadata of an entry is still
                valid. An invalid entry, and one without metadata, is computed again.
                None accepts every entry.

        Raises:
            ConfigError: The computed value has a type that a cache does not keep.
            BaseException: The error of `compute_fn`; nothing is kept then.
        """
        # 1. An entry that is not valid any more goes.
        if validate_fn is not None:
            entry = self.get(key)
            if entry is not None:
                _, kept_metadata = entry
                if kept_metadata is None or not validate_fn(kept_metadata):
                    self.invalidate(key)

        # 2. The memory lets one thread make the entry, from the disk or anew.
        def make() -> Entry:
            on_disk = self._on_disk(key)
            if on_disk is not None:
                return on_disk
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
        """Return a key for a configuration.

        Equal configurations have equal keys, in any order of their options.

        Args:
            config: Configuration of JSON values.
            prefix: Beginning of the key.
            include_content_hash: True to make the key depend on `content`.
            content: Text or bytes that the value is computed from.

        Raises:
            ConfigError: `config` holds a value that JSON does not have, or `content` is
                missing.
        """
        parts = [prefix] if prefix else []
        parts.append(fingerprint(config)[:_DIGITS])
        if include_content_hash:
            if content is None:
                raise ConfigError(
                    "compute_key: include_content_hash=True needs `content`, a text or bytes; got None"
                )
            if isinstance(content, str):
                content = content.encode()
            parts.append(sha256(content).hexdigest()[:_DIGITS])
        return "_".join(parts)

    def _on_disk(self, key: str) -> Entry | None:
        if self._disk is None:
            return None
        return self._disk.entry(key)

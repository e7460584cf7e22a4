"""The cache of the row-wise API. A build needs none: its store says what is done already."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Count, Path, Switch


class CacheStageConfig(Section):
    """Section `cache`; not used by a build, which resumes and reuses from its store."""

    enabled: Switch = True
    """Cache the results of the row-wise API; a build refuses another value."""

    cache_type: Literal["memory", "disk", "hierarchical"] = "hierarchical"
    """Where: in memory, on disk, or both; a build refuses another value."""

    cache_dir: Path | None = None
    """Directory of the disk cache; null: the user's cache directory; a build refuses another value."""

    memory_cache_size: Count = 100
    """Most entries kept in memory; a build refuses another value."""

    disk_cache_expiry: Count = 86400
    """Seconds after which an entry on disk is stale; a build refuses another value."""

    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"
    """Compression of entries on disk; a build refuses another value."""

    hash_fn: Literal["content", "path", "combined"] = "combined"
    """What an entry's key is made of; a build refuses another value."""

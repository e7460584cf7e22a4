"""The cache of the row-wise API. A build needs none: its store says what is done already."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Count, Path, Switch


class CacheStageConfig(Section):
    """Section `cache`; not used by a build, which resumes and reuses from its store."""

    enabled: Switch = True
    """Cache the results of the row-wise API; not used by a build."""

    cache_type: Literal["memory", "disk", "hierarchical"] = "hierarchical"
    """Where: in memory, on disk, or both; not used by a build."""

    cache_dir: Path | None = None
    """Directory of the disk cache; null: the user's cache directory; not used by a build."""

    memory_cache_size: Count = 100
    """Most entries kept in memory; not used by a build."""

    disk_cache_expiry: Count = 86400
    """Seconds after which an entry on disk is stale; not used by a build."""

    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"
    """Compression of entries on disk; not used by a build."""

    hash_fn: Literal["content", "path", "combined"] = "combined"
    """What an entry's key is made of; not used by a build."""

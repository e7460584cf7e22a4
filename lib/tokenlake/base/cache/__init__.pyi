"""What others may import from this package, and where each name is defined."""

from tokenlake.base.cache.dataset_cache import DatasetCache as DatasetCache
from tokenlake.base.cache.disk import CacheMetadata as CacheMetadata
from tokenlake.base.cache.disk import DiskCache as DiskCache
from tokenlake.base.cache.disk import Entry as Entry
from tokenlake.base.cache.manager import TreeCacheManager as TreeCacheManager
from tokenlake.base.cache.memory import MemoryCache as MemoryCache

"""Values that can be made again: kept in memory, on disk, or in both.

A :class:`MemoryCache` is bounded by entries and bytes, a :class:`DiskCache` by bytes
and time, and a :class:`TreeCacheManager` asks the first before the second. A
:class:`DatasetCache` keeps the rows of a dataset, a chunk an entry. All of them have
``put``, ``get``, ``contains`` and ``invalidate``; ``get`` returns ``(value,
metadata)``, or None for a miss.

An entry is never wrong, only missing: its key names everything that decides its value,
and an entry that is damaged, truncated or too old is a miss. Values are data (bytes,
JSON, arrays, Arrow tables), and nothing that is read can run.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

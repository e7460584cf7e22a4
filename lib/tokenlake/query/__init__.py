"""DuckDB over a store, on verified bytes, read-only.

::

    tl.sql("artifacts", 'select source, sum(length) from "demo/documents" group by all')

A query can read (:func:`relations` lists it): a view for each dataset (``demo``: its
newest version) and version (``"demo@v1"``), with the columns of the shards and ``split,
shard, row``; ``"demo/documents"``, the provenance with a row for each piece of a
document; ``"demo/quarantine"``, bad records; and the tables ``datasets``, ``splits``,
``shards``, ``inputs``, ``accounts`` (a row per unit and source), ``mixture`` (a row per
source of a mixture) and ``documents`` (all datasets). ``decode(input_ids, 'demo')``
gives text.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

"""Raw input, from a pattern in a configuration to columns of text.

1. :func:`list_inputs` lists the files of a source. Each has its size and a hash of its
   bytes, or the version token of its storage.
2. :func:`split_file` cuts a file into ranges that can be read independently.
3. :func:`read_range` reads the texts of a range in Arrow batches. Each text has its
   position in the file. Bad records are set aside with the reason.

The modules by subject:

===================  ==================================================================
listing              ``listing``, ``patterns`` (this machine), ``remote``, ``hub``
subsets and splits   ``split_choice``, ``split_names``, ``card_layout``, ``saved_layout``
bytes of a file      ``opening``, ``input_bytes``, ``byte_stream``, ``ranged_bytes``
ranges               ``splits``, ``record_limit``
reading a range      ``records`` (limit, predicate, policy), ``parsed`` (its contract)
formats              ``json``, ``csv``, ``plain_text``, ``parquet``, ``arrow``, ids
predicates           ``where``, ``where_groups``, ``sql``, ``column_ranges``
===================  ==================================================================
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

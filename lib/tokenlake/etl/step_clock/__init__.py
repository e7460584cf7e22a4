"""Begin, end and busy time of each step of a unit.

Steps interleave: a unit is read, tokenized and packed block by block, and row groups
are written in between. So a step has a first begin, a last end, and the time between
them that it was busy. For example, a unit that reads for 2 s, packs for 5 s (of which
it saves a row group for 4 s), and does all of this twice, with a pause of 10 s, has
these steps::

    load    0 .. 19 s, busy 4 s
    pack    2 .. 24 s, busy 2 s
    save    3 .. 24 s, busy 8 s

The clock decides no byte.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

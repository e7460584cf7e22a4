"""Rows of a stored version by row group, as a trainer and a mixture read them.

::

    rows = open_rows(open_store("artifacts"), "code", 3, "train")
    batch = rows.read(17)                                   # a row group as stored
    packed = rows.packed(17, loss_mask=True)                # only what a batch is made of, and faster: a PackedGroup
    read = lambda place: place[0].read(place[1])            # or a cache of them
    batch = take_packed([rows, others], source, group, row, read=read)    # any rows of several, in any order
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

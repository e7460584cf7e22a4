"""Rows of a stored version by row group, as a trainer and a mixture read them.

::

    rows = open_rows(open_store("artifacts"), "code", 3, "train")
    batch = GroupCache(1 << 30).read(rows, group=17)        # decoded once, as long as it stays in the cache
    packed = rows.packed(17, loss_mask=True)                # only what a batch is made of, and faster: a PackedGroup
    batch = take_packed([rows, others], source, group, row, cache=cache)    # any rows of several, in any order
"""

"""The row groups of a version that its report reads.

All of them are read as long as that takes a few seconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.schemes import is_local

EXACT_GROUPS: Final = 8192
"""Row groups up to which all are read, of a store on this machine: some 2 billion
tokens, in about 3 seconds.
"""

EXACT_DOCUMENTS: Final = 5_000_000
"""Rows and documents up to which all are read: each piece of a document takes some
100 bytes of memory.
"""

SAMPLED_GROUPS: Final = 64
"""Row groups that are read of a larger version, or of one in a bucket."""


def most_groups_of(store: ReadStore, manifest: Manifest) -> int:
    """Return the number of row groups to read: all of them, or those of a sample."""
    group_count = sum(len(shard.row_groups) for shard in manifest.files)
    pieces = manifest.totals.documents + manifest.totals.rows
    is_small = group_count <= EXACT_GROUPS and pieces <= EXACT_DOCUMENTS
    # In a bucket each row group takes a request.
    if not is_small or not is_local(store.url):
        return SAMPLED_GROUPS
    # Each split gets an equal share of the limit, and one of them may have all of the
    # row groups.
    return max(1, group_count * len(manifest.splits))


def spread(number: int, most: int) -> list[int]:
    """Return at most `most` of the numbers 0 to ``number - 1``, evenly spaced.

    >>> spread(3, 5), spread(100, 3)
    ([0, 1, 2], [0, 50, 99])
    """
    evenly_spaced = np.linspace(0, number - 1, min(number, most))
    return np.unique(evenly_spaced.round().astype(np.int64)).tolist()

"""The packing strategies by name: from documents' lengths to their places in rows.

A strategy looks at no token and loses none: every token of every document is in exactly
one segment of one row.

- :mod:`~tokenlake.etl.packing.greedy`: documents end to end, cut at the ends of rows.
- :mod:`~tokenlake.etl.packing.pool`: several open rows; each document goes to the one
  that it fills best.
- :mod:`~tokenlake.etl.packing.first_fit`: each document goes to the first row with
  enough room.
- :mod:`~tokenlake.etl.packing.best_fit`: as few rows as possible without cutting a
  document that fits a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tokenlake.base.arrays import Int64
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.best_fit import best_fit_segments
from tokenlake.etl.packing.first_fit import first_fit_segments
from tokenlake.etl.packing.greedy import greedy_segments
from tokenlake.etl.packing.pool import pool_segments
from tokenlake.etl.packing.segments import Segments

STRATEGIES: Final[Mapping[str, Callable[[Int64, ResolvedPack], Segments]]] = {
    "greedy": lambda lengths, pack: greedy_segments(
        lengths, pack.width, pack.max_segments
    ),
    "pool": lambda lengths, pack: pool_segments(
        lengths, pack.width, pack.num_packers, pack.max_segments
    ),
    "first_fit": lambda lengths, pack: first_fit_segments(
        lengths, pack.width, pack.max_segments
    ),
    "best_fit": lambda lengths, pack: best_fit_segments(
        lengths, pack.width, pack.max_segments
    ),
}
"""Functions from the lengths of documents (int64[n], each at least 1) to the places of
their pieces.

A new strategy is a function, a line here, and its name in
:class:`tokenlake.config.stages.PackStageConfig`.
"""


def plan_segments(lengths: Int64, pack: ResolvedPack) -> Segments:
    """Place documents in rows.

    Args:
        lengths: Tokens of each document, at least 1, int64[n].
        pack: Width of rows, strategy and its options.
    """
    return STRATEGIES[pack.strategy](lengths, pack)

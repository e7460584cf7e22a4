"""How many rows a unit of a mixture has, where the configuration leaves that open.

A unit takes some neighbouring rows of each source from each lane. They begin inside a row group and end inside one:
together about one row group more than they need is decoded for each lane and source. So for a unit that takes twelve
times the bytes of a row group of every source from each lane, 13 / 12 = 1.08 of what it takes are decoded. A unit that
is a whole stream is cut at the ends of its lanes only: half of that is enough, which is what
:func:`tokenlake.mixing.lanes.choose_lanes` sees to.

    unit rows   12 x lanes x (sum over sources of a row group's bytes) / (bytes of a row), in whole batches; what is
                left at the end, if it is less than two thirds of that, goes to the last unit.

Nothing here depends on how many workers there are. Another schedule may get other units; who wants to make a mixture
longer without beginning anew writes them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from tokenlake.mixing.lanes import SourceSize, group_rows

_GROUPS_PER_UNIT: Final = 12


def choose_unit_rows(
    sizes: Mapping[str, SourceSize], weights: Iterable[Mapping[str, float]], *, lanes: int, batch_size: int
) -> int:
    """Return the rows of a unit; arguments as of :func:`tokenlake.mixing.lanes.choose_lanes`."""
    rows = lanes * _GROUPS_PER_UNIT * group_rows(sizes, weights)
    return math.ceil(rows / batch_size) * batch_size

"""Mixing: several sources as one stream, with exact weights that may change along the way.

``schedule`` says which weights hold at a step, ``counts`` how many rows of each source come before a position,
``mixture`` which row is at a position, and ``stream`` where that row is stored. All are functions: nothing is drawn,
stored or replayed.
"""

from tokenlake.mixing.arguments import STOPS, Stop
from tokenlake.mixing.counts import Counts
from tokenlake.mixing.mixture import MIXTURE_ORDER, Draws, Mixture
from tokenlake.mixing.schedule import INTERPOLATIONS, WeightScheduler, constant
from tokenlake.mixing.stream import MixtureStream, source_order
from tokenlake.mixing.weights import row_weights

__all__ = [
    "INTERPOLATIONS",
    "MIXTURE_ORDER",
    "STOPS",
    "Counts",
    "Draws",
    "Mixture",
    "MixtureStream",
    "Stop",
    "WeightScheduler",
    "constant",
    "row_weights",
    "source_order",
]

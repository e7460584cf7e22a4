"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.mixing.caps import SourceCaps as SourceCaps
from tokenlake.runtime.mixing.caps import shortened as shortened
from tokenlake.runtime.mixing.counts import counts_of as counts_of
from tokenlake.runtime.mixing.deal import Deal as Deal
from tokenlake.runtime.mixing.lane_count import choose_lanes as choose_lanes
from tokenlake.runtime.mixing.lanes import LaneLayout as LaneLayout
from tokenlake.runtime.mixing.lanes import lane_bounds as lane_bounds
from tokenlake.runtime.mixing.mixture import MIXTURE_ORDER as MIXTURE_ORDER
from tokenlake.runtime.mixing.mixture import STOPS as STOPS
from tokenlake.runtime.mixing.mixture import SourceMixture as SourceMixture
from tokenlake.runtime.mixing.order import EpochOrder as EpochOrder
from tokenlake.runtime.mixing.random import Int64 as Int64
from tokenlake.runtime.mixing.random import Permutation as Permutation
from tokenlake.runtime.mixing.random import extended as extended
from tokenlake.runtime.mixing.random import key_of as key_of
from tokenlake.runtime.mixing.random import shuffled as shuffled
from tokenlake.runtime.mixing.random import splitmix64 as splitmix64
from tokenlake.runtime.mixing.schedule import constant as constant
from tokenlake.runtime.mixing.streams import EpochStream as EpochStream
from tokenlake.runtime.mixing.streams import MixtureStream as MixtureStream
from tokenlake.runtime.mixing.streams import source_order as source_order
from tokenlake.runtime.mixing.weights import row_weights as row_weights

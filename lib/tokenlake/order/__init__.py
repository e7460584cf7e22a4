"""The order of rows, as functions of a seed and a place: chance, permutations, epochs and lanes."""

from tokenlake.order.epochs import ORDER_VERSION, EpochOrder
from tokenlake.order.feistel import Permutation
from tokenlake.order.lanes import LaneLayout, lane_bounds
from tokenlake.order.random import key_of, shuffled, splitmix64

__all__ = [
    "ORDER_VERSION",
    "EpochOrder",
    "LaneLayout",
    "Permutation",
    "key_of",
    "lane_bounds",
    "shuffled",
    "splitmix64",
]

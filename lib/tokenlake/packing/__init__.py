"""From documents to sequences of one length, with no token lost.

A strategy is a function from the lengths of documents to the places of their pieces (:func:`plan_segments`); no token
is copied before the plan is known. A packer (:func:`open_packer`) runs it over a stream, in bounded memory.
"""

from tokenlake.packing.greedy import GreedyPacker, segments_of
from tokenlake.packing.joining import join_documents
from tokenlake.packing.legacy import pack_constant_length, pack_pre_tokenized
from tokenlake.packing.packed import Packed
from tokenlake.packing.packer import WINDOW_TOKENS, Packer, open_packer
from tokenlake.packing.plan import STRATEGIES, Strategy, plan_segments
from tokenlake.packing.rows import PackedRows
from tokenlake.packing.segments import Segments
from tokenlake.packing.window import WindowPacker

__all__ = [
    "STRATEGIES",
    "WINDOW_TOKENS",
    "GreedyPacker",
    "Packed",
    "PackedRows",
    "Packer",
    "Segments",
    "Strategy",
    "WindowPacker",
    "join_documents",
    "open_packer",
    "pack_constant_length",
    "pack_pre_tokenized",
    "plan_segments",
    "segments_of",
]

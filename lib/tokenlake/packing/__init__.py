"""From documents to sequences of one length, with no token lost."""

from tokenlake.packing.greedy import GreedyPacker, Packed, Segments, join_documents, segments_of

__all__ = ["GreedyPacker", "Packed", "Segments", "join_documents", "segments_of"]

"""From documents to sequences of one length, with no token lost.

A strategy is a function from the lengths of documents to the places of their pieces
(:func:`plan_segments`); no token is copied before the plan is known. A packer
(:func:`open_packer`) runs it over a stream, in bounded memory.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

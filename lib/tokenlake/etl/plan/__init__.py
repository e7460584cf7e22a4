"""From a configuration to a plan: inputs, units, tokenizers and the expected size.

Nothing is written.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

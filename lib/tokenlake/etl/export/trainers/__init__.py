"""Files of other trainers.

They are Megatron-Core, nanoGPT, OLMo-core, MosaicML Streaming, litdata, and Grain.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

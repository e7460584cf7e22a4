"""Text: steps on rows between reading and tokenizing.

A transform is a function of a row that also works on many rows at once. A renderer
makes the text that is tokenized, with the spans that count toward the loss.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

"""What people and monitors see of work that goes on: messages, progress in the form
that was asked for, metrics.

``tally`` adds up, ``display`` shows a tally in one of four forms, ``build`` brings both
to a build and to a pipeline. All of it follows section ``observability`` of a
configuration.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

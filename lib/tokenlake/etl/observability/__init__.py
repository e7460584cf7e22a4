"""Messages, progress and metrics of running work, for people and monitors.

``tally`` adds up, ``displays`` shows a tally in one of four forms, ``build`` brings
both to a build, and ``batch_progress`` to a pipeline. All of it follows section
``observability`` of a configuration.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

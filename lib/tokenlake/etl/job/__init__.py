"""Jobs of worker processes, their answers, and how both travel: one line of JSON each.

A job names its stores and gives everything else by value. The same job therefore writes
the same bytes in a worker process of this machine and in one of another machine.

A function of the user that never returns, or a regular expression of a tokenizer that
never ends, cannot be stopped from inside. So a worker reports each activity before it
begins it (:func:`begin`). The pool ends a worker that has been silent for too long, and
its error names the last activity.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

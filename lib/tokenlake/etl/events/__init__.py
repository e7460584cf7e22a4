"""Events of a build, for the watcher that its caller passes.

A watcher is a plain callable, ``on_event(event)``. It is called from several threads
and must return quickly. An exception that it raises is not caught.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

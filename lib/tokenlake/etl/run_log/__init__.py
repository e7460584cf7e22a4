"""Records of a run in ``runs/``, which are never part of identity.

``runs/<run id>.json`` has clocks, hosts and timings. ``runs/<run id>-asked.json``,
written when the run begins, is its configuration, so that everything that it built can
be built again. A manifest describes the inputs of a version in a form without paths of
the machine. But to build a unit again, for example because its shard is damaged, the
inputs must be found. So the configuration is kept as it was given, with the folder that
its relative paths refer to. Secrets are kept as references or not at all.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

"""The configuration of a pipeline: YAML or Python, checked by models.

A configuration is resolved into the record of a build.

A configuration has three forms. A user writes a mapping (:func:`load_config`). Python
code holds a frozen model (:class:`PipelineConfig`). A build consumes a flat record
without pydantic (:func:`tokenlake.config.resolve.resolve` ->
:class:`tokenlake.config.resolved.ResolvedBuild`);
:func:`tokenlake.config.resolve.identity` is the part of it that decides bytes.

Names load on first use: a worker that imports ``tokenlake.config.resolved`` never
imports pydantic.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

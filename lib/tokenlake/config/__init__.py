"""The configuration of a pipeline: YAML or Python in, checked models, and what a build consumes out.

Think of three forms of one thing. What a person writes is a mapping (:func:`load_config`); what Python
code holds is a frozen model (:class:`PipelineConfig`); what a build consumes is a flat record without
pydantic (:func:`tokenlake.config.resolve.resolve` -> :class:`tokenlake.config.resolved.ResolvedBuild`), of which
:func:`tokenlake.config.resolve.identity` is the part that decides bytes.

Names load on first use: a worker that imports ``tokenlake.config.resolved`` never imports pydantic.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]

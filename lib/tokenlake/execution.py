"""Pipelines, loaders and writers, under the path of the seed documents."""

from tokenlake.base.lazy_names import public_name as __getattr__  # noqa: F401

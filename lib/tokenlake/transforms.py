"""Transforms, packers and mixtures, under the path of the seed documents."""

from tokenlake.base.lazy_names import naming_extra
from tokenlake.base.lazy_names import public_name as __getattr__  # noqa: F401

with naming_extra("tokenlake.transforms", "etl"):
    from tokenlake.etl.text.transform import Example as Example

"""The sections of a configuration, under the path that the seed documents import
them from.
"""

from tokenlake.base.lazy_names import public_name as __getattr__  # noqa: F401

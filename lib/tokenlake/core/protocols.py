"""Interfaces of extensions (sources, stages), under the path of the seed documents.

They include data by index.
"""

from tokenlake.base.lazy_names import public_name as __getattr__  # noqa: F401

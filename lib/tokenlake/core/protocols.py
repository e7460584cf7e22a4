"""What extensions build on (sources, stages, data by index), under the path that the
seed documents import it from.
"""

from tokenlake.base.lazy_names import public_name as __getattr__  # noqa: F401

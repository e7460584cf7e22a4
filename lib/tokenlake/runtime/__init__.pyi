"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.column_types import arrow_type as arrow_type
from tokenlake.runtime.column_types import column_type as column_type
from tokenlake.runtime.column_types import fits as fits
from tokenlake.runtime.column_types import joined as joined
from tokenlake.runtime.column_types import settled as settled
from tokenlake.runtime.logical_hash import LogicalHasher as LogicalHasher
from tokenlake.runtime.schema import described as described
from tokenlake.runtime.schema import open_writer as open_writer
from tokenlake.runtime.schema import packed_schema as packed_schema
from tokenlake.runtime.schema import tokens_schema as tokens_schema

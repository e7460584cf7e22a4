"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.logical_hash import LogicalHasher as LogicalHasher
from tokenlake.runtime.schema import described as described
from tokenlake.runtime.schema import open_writer as open_writer
from tokenlake.runtime.schema import packed_schema as packed_schema
from tokenlake.runtime.schema import tokens_schema as tokens_schema

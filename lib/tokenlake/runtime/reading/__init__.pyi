"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.reading.group_cache import Decoded as Decoded
from tokenlake.runtime.reading.group_cache import batch_cache as batch_cache
from tokenlake.runtime.reading.pages import Blocks as Blocks
from tokenlake.runtime.reading.pages import Unfamiliar as Unfamiliar
from tokenlake.runtime.reading.version import StoredRows as StoredRows

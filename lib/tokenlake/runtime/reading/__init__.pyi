"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.reading.blocks import Blocks as Blocks
from tokenlake.runtime.reading.columns import fixed_numbers as fixed_numbers
from tokenlake.runtime.reading.columns import list_numbers as list_numbers
from tokenlake.runtime.reading.documents import take_documents as take_documents
from tokenlake.runtime.reading.group_cache import Decoded as Decoded
from tokenlake.runtime.reading.group_cache import GroupCache as GroupCache
from tokenlake.runtime.reading.group_cache import batch_cache as batch_cache
from tokenlake.runtime.reading.levels import SeenLevels as SeenLevels
from tokenlake.runtime.reading.levels import Unfamiliar as Unfamiliar
from tokenlake.runtime.reading.packed import PackedGroup as PackedGroup
from tokenlake.runtime.reading.packed_batches import take_packed as take_packed
from tokenlake.runtime.reading.shard_file import Footer as Footer
from tokenlake.runtime.reading.shard_file import OpenShards as OpenShards
from tokenlake.runtime.reading.version import StoredRows as StoredRows
from tokenlake.runtime.reading.version import open_rows as open_rows

"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.store_executor.joined_worker import WorkDone as WorkDone
from tokenlake.etl.store_executor.joined_worker import join_build as join_build
from tokenlake.etl.store_executor.named_builds import named_build as named_build
from tokenlake.etl.store_executor.named_builds import parse_share as parse_share
from tokenlake.etl.store_executor.waiting_run import Awaited as Awaited
from tokenlake.etl.store_executor.waiting_run import StorePool as StorePool

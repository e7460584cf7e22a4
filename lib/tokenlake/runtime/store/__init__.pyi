"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.store.account import Account as Account
from tokenlake.runtime.store.address import StoreAddress as StoreAddress
from tokenlake.runtime.store.address import open_read_store as open_read_store
from tokenlake.runtime.store.address import open_store as open_store
from tokenlake.runtime.store.base import Leftover as Leftover
from tokenlake.runtime.store.base import Link as Link
from tokenlake.runtime.store.base import ReadStore as ReadStore
from tokenlake.runtime.store.base import Store as Store
from tokenlake.runtime.store.claims import Claim as Claim
from tokenlake.runtime.store.claims import VersionInfo as VersionInfo
from tokenlake.runtime.store.file_locks import new_temp_name as new_temp_name
from tokenlake.runtime.store.gc import collect as collect
from tokenlake.runtime.store.layout import Layout as Layout
from tokenlake.runtime.store.layout import shard_path as shard_path
from tokenlake.runtime.store.ledger import MIXED as MIXED
from tokenlake.runtime.store.ledger import FileEntry as FileEntry
from tokenlake.runtime.store.ledger import InputFileEntry as InputFileEntry
from tokenlake.runtime.store.ledger import Parent as Parent
from tokenlake.runtime.store.ledger import ShardEntry as ShardEntry
from tokenlake.runtime.store.ledger import UnitRecord as UnitRecord
from tokenlake.runtime.store.local import LocalStore as LocalStore
from tokenlake.runtime.store.mixture import MixtureOrder as MixtureOrder
from tokenlake.runtime.store.mixture import WeightPoint as WeightPoint
from tokenlake.runtime.store.remote import close_filesystems as close_filesystems
from tokenlake.runtime.store.sealed import seal as seal
from tokenlake.runtime.store.writes import HashingFile as HashingFile

"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.export.directory import FolderTarget as FolderTarget
from tokenlake.etl.export.directory import Target as Target
from tokenlake.etl.export.directory import require_apart as require_apart
from tokenlake.etl.export.exported_inputs import export_at as export_at
from tokenlake.etl.export.exported_inputs import require_as_exported as require_as_exported
from tokenlake.etl.export.exported_inputs import require_whole as require_whole
from tokenlake.etl.export.exported_inputs import splits_of as splits_of
from tokenlake.etl.export.flat_manifest import FlatFile as FlatFile
from tokenlake.etl.export.flat_manifest import FlatManifest as FlatManifest
from tokenlake.etl.export.flat_manifest import Origin as Origin
from tokenlake.etl.export.flat_manifest import WriteStats as WriteStats
from tokenlake.etl.export.plan import exports_of as exports_of
from tokenlake.etl.export.plan import hub_token as hub_token
from tokenlake.etl.export.plan import make_exports as make_exports
from tokenlake.etl.export.push import push_directories as push_directories
from tokenlake.etl.export.row_batches import text_of as text_of
from tokenlake.etl.export.shard_folder import ExportProgress as ExportProgress
from tokenlake.etl.export.version import export_version as export_version

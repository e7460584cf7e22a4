"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.export.flat_manifest import FlatManifest as FlatManifest

"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.reading.version import StoredRows as StoredRows

"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.commit.commit_point import commit_version as commit_version
from tokenlake.etl.commit.commit_point import committed_manifest as committed_manifest
from tokenlake.etl.commit.commit_point import publish_manifest as publish_manifest
from tokenlake.etl.commit.commit_point import publish_preamble as publish_preamble
from tokenlake.etl.commit.commit_point import require_held as require_held
from tokenlake.etl.commit.finished_units import adopted_records as adopted_records
from tokenlake.etl.commit.finished_units import finished_records as finished_records
from tokenlake.etl.commit.finished_units import remove_record as remove_record
from tokenlake.etl.commit.finished_units import renamed_record as renamed_record

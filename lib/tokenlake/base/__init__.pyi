"""What others may import from this package, and where each name is defined."""

from tokenlake.base.fingerprint import canonical_json as canonical_json
from tokenlake.base.fingerprint import file_id as file_id
from tokenlake.base.secrets import provide_blocks as provide_blocks
from tokenlake.base.secrets import remember as remember
from tokenlake.base.secrets import resolve_options as resolve_options
from tokenlake.base.secrets import scrub as scrub
from tokenlake.base.yaml_file import parse_yaml as parse_yaml

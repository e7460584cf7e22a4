"""What tests may import from this package, and where each name is defined."""

from tokenlake.base.arrays import Ragged as Ragged
from tokenlake.base.arrays import offsets_of as offsets_of
from tokenlake.base.compact import CompactTuple as CompactTuple
from tokenlake.base.fingerprint import canonical_json as canonical_json
from tokenlake.base.fingerprint import file_id as file_id
from tokenlake.base.key_places import SYNONYMS as SYNONYMS
from tokenlake.base.markup import grid as grid
from tokenlake.base.markup import named_facts as named_facts
from tokenlake.base.result import attempt as attempt
from tokenlake.base.secrets import provide_blocks as provide_blocks
from tokenlake.base.secrets import remember as remember
from tokenlake.base.secrets import resolve_options as resolve_options
from tokenlake.base.secrets import scrub as scrub
from tokenlake.base.section import literal_secrets as literal_secrets
from tokenlake.base.sizes import parse_duration as parse_duration
from tokenlake.base.sizes import parse_size as parse_size
from tokenlake.base.threads import in_order as in_order
from tokenlake.base.yaml_file import parse_yaml as parse_yaml

"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.plan.estimates import Estimate as Estimate
from tokenlake.etl.plan.estimates import estimate as estimate
from tokenlake.etl.plan.estimates import total as total
from tokenlake.etl.plan.kept_types import type_of as type_of
from tokenlake.etl.plan.mix_units import choose_unit_rows as choose_unit_rows
from tokenlake.etl.plan.mix_units import unit_identity as unit_identity
from tokenlake.etl.plan.parents import FoundParent as FoundParent
from tokenlake.etl.plan.plan import MixUnit as MixUnit
from tokenlake.etl.plan.plan import Plan as Plan
from tokenlake.etl.plan.plan import RepackUnit as RepackUnit
from tokenlake.etl.plan.plan import TextUnit as TextUnit
from tokenlake.etl.plan.sample_texts import PART_BYTES as PART_BYTES
from tokenlake.etl.plan.sample_texts import sample_of as sample_of
from tokenlake.etl.plan.sampling import totals_of_places as totals_of_places
from tokenlake.etl.plan.unit_ranges import cut_into_files as cut_into_files
from tokenlake.etl.plan.unit_ranges import files_of_sources as files_of_sources
from tokenlake.etl.plan.unit_ranges import group_ranges as group_ranges
from tokenlake.etl.plan.unit_size import choose_unit_size as choose_unit_size

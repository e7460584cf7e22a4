"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.planner.changed_inputs import input_changes as input_changes
from tokenlake.etl.planner.configurations import Configuration as Configuration
from tokenlake.etl.planner.configurations import make_plan as make_plan
from tokenlake.etl.planner.configurations import plan as plan
from tokenlake.etl.planner.most_records import most_in_range as most_in_range
from tokenlake.etl.planner.source_files import Groups as Groups
from tokenlake.etl.planner.source_files import check_predicates as check_predicates
from tokenlake.etl.planner.source_files import read_listing as read_listing
from tokenlake.etl.planner.source_files import require_use as require_use
from tokenlake.etl.planner.source_files import with_code as with_code

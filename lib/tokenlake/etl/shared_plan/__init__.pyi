"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.shared_plan.leases import Leases as Leases
from tokenlake.etl.shared_plan.leases import lease_seconds as lease_seconds
from tokenlake.etl.shared_plan.leases import leased_units as leased_units
from tokenlake.etl.shared_plan.leases import present_workers as present_workers
from tokenlake.etl.shared_plan.notes import PLAN as PLAN
from tokenlake.etl.shared_plan.notes import WORK as WORK
from tokenlake.etl.shared_plan.open_jobs import check_open as check_open
from tokenlake.etl.shared_plan.published import SharedPlan as SharedPlan
from tokenlake.etl.shared_plan.published import publish_plan as publish_plan
from tokenlake.etl.shared_plan.published import read_plan as read_plan
from tokenlake.etl.shared_plan.published import remove_plan as remove_plan

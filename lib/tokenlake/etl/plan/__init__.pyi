"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.plan.estimate import total as total
from tokenlake.etl.plan.plan import Plan as Plan

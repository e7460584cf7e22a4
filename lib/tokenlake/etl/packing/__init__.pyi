"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.packing.segments import learned as learned
from tokenlake.etl.packing.segments import marked as marked
from tokenlake.etl.packing.segments import plain as plain
from tokenlake.etl.packing.strategies import STRATEGIES as STRATEGIES

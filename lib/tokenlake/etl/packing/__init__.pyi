"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.packing.strategies import STRATEGIES as STRATEGIES

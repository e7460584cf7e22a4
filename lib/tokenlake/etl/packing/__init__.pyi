"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.packing.best_fit_decreasing import assign_best_fit_decreasing as assign_best_fit_decreasing
from tokenlake.etl.packing.exact_fit import assign_exact_fit as assign_exact_fit
from tokenlake.etl.packing.first_fit import assign_first_fit as assign_first_fit
from tokenlake.etl.packing.loss_marks import LOSS as LOSS
from tokenlake.etl.packing.loss_marks import learned as learned
from tokenlake.etl.packing.loss_marks import marked as marked
from tokenlake.etl.packing.loss_marks import plain as plain
from tokenlake.etl.packing.packed import Packed as Packed
from tokenlake.etl.packing.packer import Packer as Packer
from tokenlake.etl.packing.packer import open_packer as open_packer
from tokenlake.etl.packing.rows import PackedRows as PackedRows
from tokenlake.etl.packing.segments import Segments as Segments
from tokenlake.etl.packing.strategies import STRATEGIES as STRATEGIES
from tokenlake.etl.packing.strategies import plan_segments as plan_segments

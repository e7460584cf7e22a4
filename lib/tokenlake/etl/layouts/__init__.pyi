"""What others may import from this package: its modules, one for each layout."""

from tokenlake.etl.layouts import array_record as array_record
from tokenlake.etl.layouts import joined_rows as joined_rows
from tokenlake.etl.layouts import litdata as litdata
from tokenlake.etl.layouts import mds as mds
from tokenlake.etl.layouts import megatron as megatron
from tokenlake.etl.layouts import numpy_flat as numpy_flat
from tokenlake.etl.layouts import record_offsets as record_offsets

"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.observability.batch_progress import observed_batches as observed_batches
from tokenlake.etl.observability.build import RunProgress as RunProgress
from tokenlake.etl.observability.build import observed as observed
from tokenlake.etl.observability.displays import DisplayOptions as DisplayOptions
from tokenlake.etl.observability.metrics import measured as measured
from tokenlake.etl.observability.step_tables import time_tables as time_tables
from tokenlake.etl.observability.tally import RunTallies as RunTallies
from tokenlake.etl.observability.tally import RunTally as RunTally
from tokenlake.etl.observability.tally import source_name as source_name
from tokenlake.etl.observability.tally import step_name as step_name

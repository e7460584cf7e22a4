"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.events.of_builds import BuildPlanned as BuildPlanned
from tokenlake.etl.events.of_builds import BuildStep as BuildStep
from tokenlake.etl.events.of_units import UnitFinished as UnitFinished
from tokenlake.etl.events.of_units import UnitProgress as UnitProgress
from tokenlake.etl.events.of_units import UnitRetried as UnitRetried
from tokenlake.etl.events.of_units import UnitStarted as UnitStarted
from tokenlake.etl.events.watcher import Event as Event
from tokenlake.etl.executors import open_pool as open_pool
from tokenlake.etl.in_process_pool import InProcessPool as InProcessPool
from tokenlake.etl.job.messages import Job as Job
from tokenlake.etl.job.messages import UnitJob as UnitJob
from tokenlake.etl.job.mixture_stream import open_stream as open_stream
from tokenlake.etl.planner.configurations import make_plan as make_plan
from tokenlake.etl.pool import WorkerPool as WorkerPool
from tokenlake.etl.runner import build_dataset as build_dataset
from tokenlake.etl.runner import finished_build as finished_build
from tokenlake.etl.runner import run_pending as run_pending
from tokenlake.etl.schedule import Schedule as Schedule
from tokenlake.etl.session import BuildSession as BuildSession
from tokenlake.etl.token_import import import_configuration as import_configuration
from tokenlake.etl.token_import import import_tokens as import_tokens
from tokenlake.etl.workbench import Workbench as Workbench

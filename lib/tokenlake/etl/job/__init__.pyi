"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.job.activity import Progress as Progress
from tokenlake.etl.job.activity import begin as begin
from tokenlake.etl.job.lines import job_of as job_of
from tokenlake.etl.job.lines import to_line as to_line
from tokenlake.etl.job.messages import NO_BACKEND as NO_BACKEND
from tokenlake.etl.job.messages import REFERENCE as REFERENCE
from tokenlake.etl.job.messages import BackendJob as BackendJob
from tokenlake.etl.job.messages import Job as Job
from tokenlake.etl.job.messages import MixJob as MixJob
from tokenlake.etl.job.messages import ParentVersion as ParentVersion
from tokenlake.etl.job.messages import RepackJob as RepackJob
from tokenlake.etl.job.messages import RowsOut as RowsOut
from tokenlake.etl.job.messages import SignJob as SignJob
from tokenlake.etl.job.messages import UnitJob as UnitJob
from tokenlake.etl.job.messages import WarmJob as WarmJob
from tokenlake.etl.job.messages import WorkJob as WorkJob
from tokenlake.etl.job.mixture_stream import open_stream as open_stream
from tokenlake.etl.job.versions import produced_by as produced_by

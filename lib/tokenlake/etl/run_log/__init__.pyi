"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.run_log.asked_configuration import Asked as Asked
from tokenlake.etl.run_log.asked_configuration import asked_before as asked_before
from tokenlake.etl.run_log.asked_configuration import newest_asked as newest_asked
from tokenlake.etl.run_log.log import RunLog as RunLog
from tokenlake.etl.run_log.recorded_configuration import check_record as check_record
from tokenlake.etl.run_log.recorded_configuration import recorded as recorded

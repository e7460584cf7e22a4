"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.integrity.findings import FILE_PROBLEMS as FILE_PROBLEMS
from tokenlake.etl.integrity.findings import RepairedFile as RepairedFile
from tokenlake.etl.integrity.findings import RepairProgress as RepairProgress
from tokenlake.etl.integrity.findings import RepairReport as RepairReport
from tokenlake.etl.integrity.findings import VerifyReport as VerifyReport
from tokenlake.etl.integrity.rebuild import other_rows as other_rows
from tokenlake.etl.integrity.row_check import RowCheck as RowCheck
from tokenlake.etl.integrity.row_check import RowRules as RowRules
from tokenlake.etl.integrity.verify import named_version as named_version
from tokenlake.etl.integrity.verify_config import config_problems as config_problems
from tokenlake.runtime.store.file_check import Problem as Problem
from tokenlake.runtime.store.file_check import VerifyProgress as VerifyProgress

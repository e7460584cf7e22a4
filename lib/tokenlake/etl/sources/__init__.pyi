"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.sources.hub_client import HubClient as HubClient
from tokenlake.etl.sources.inputs import FileRange as FileRange
from tokenlake.etl.sources.inputs import InputFile as InputFile
from tokenlake.etl.sources.listing import list_inputs as list_inputs
from tokenlake.etl.sources.opening import opened as opened
from tokenlake.etl.sources.parsed import Parsed as Parsed
from tokenlake.etl.sources.parsed import RowBatch as RowBatch
from tokenlake.etl.sources.parsed import Want as Want
from tokenlake.etl.sources.records import read_range as read_range
from tokenlake.etl.sources.records import read_rows as read_rows
from tokenlake.etl.sources.rows import Row as Row
from tokenlake.etl.sources.rows import Rows as Rows
from tokenlake.etl.sources.splits import RecordLimit as RecordLimit
from tokenlake.etl.sources.splits import split_file as split_file

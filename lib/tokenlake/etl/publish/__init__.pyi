"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.publish.detector import Detector as Detector
from tokenlake.etl.publish.files import PublishedFile as PublishedFile
from tokenlake.etl.publish.files import differing as differing
from tokenlake.etl.publish.files import is_published as is_published
from tokenlake.etl.publish.push import SCANNED_ROWS as SCANNED_ROWS
from tokenlake.etl.publish.push import push_to_hub as push_to_hub
from tokenlake.etl.publish.push_report import PushProgress as PushProgress
from tokenlake.etl.publish.push_report import PushReport as PushReport
from tokenlake.etl.publish.repository import HubRepository as HubRepository
from tokenlake.etl.publish.secret_scan import require_none as require_none
from tokenlake.etl.publish.secret_scan import scan_texts as scan_texts
from tokenlake.etl.publish.upload import commit_all as commit_all
from tokenlake.etl.publish.upload import groups_of as groups_of

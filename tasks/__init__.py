"""The tasks of the flows, for flows of one's own; they are in :mod:`tokenlake.prefect.tasks`, and so in the wheel."""

from tokenlake.prefect.maintenance import push_version as push_version
from tokenlake.prefect.maintenance import verify_version as verify_version
from tokenlake.prefect.tasks import build_all as build_all
from tokenlake.prefect.tasks import commit_version as commit_version
from tokenlake.prefect.tasks import plan_build as plan_build
from tokenlake.prefect.tasks import publish_table as publish_table

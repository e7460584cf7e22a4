"""The tasks of the flows, for flows of one's own; they are in :mod:`tokenlake.prefect.tasks`, and so in the wheel."""

from tokenlake.prefect.tasks.commit import commit_version as commit_version
from tokenlake.prefect.tasks.planning import plan_build as plan_build
from tokenlake.prefect.tasks.publishing import push_version as push_version
from tokenlake.prefect.tasks.reporting import publish_table as publish_table
from tokenlake.prefect.tasks.shards import build_all as build_all
from tokenlake.prefect.tasks.verifying import verify_version as verify_version

"""Entry point of the flow `push`."""

from tokenlake.prefect.maintenance_flows import push as push

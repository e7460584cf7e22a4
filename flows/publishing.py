"""Entry point of the flow `push`."""

from tokenlake.prefect.maintenance import push as push

"""Entry point of the flow `push`."""

from tokenlake.prefect.flows.publishing import push as push

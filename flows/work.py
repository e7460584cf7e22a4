"""Entry point of the flow `work`."""

from tokenlake.prefect.flows import work as work

"""Entry point of the flow `verify`."""

from tokenlake.prefect.maintenance_flows import verify as verify

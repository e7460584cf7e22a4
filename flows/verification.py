"""Entry point of the flow `verify`."""

from tokenlake.prefect.maintenance import verify as verify

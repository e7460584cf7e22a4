"""Entry point of the flow `verify`."""

from tokenlake.prefect.flows.verification import verify as verify

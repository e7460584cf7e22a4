"""Entry point of the flow `clean`."""

from tokenlake.prefect.maintenance import clean as clean

"""Entry point of the flow `clean`."""

from tokenlake.prefect.cleaning import clean as clean

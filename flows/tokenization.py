"""Entry point of the flow `tokenize`."""

from tokenlake.prefect.flows import tokenize as tokenize

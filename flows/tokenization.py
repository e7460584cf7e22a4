"""Entry point of the flow `tokenize`."""

from tokenlake.prefect.flows.tokenization import tokenize as tokenize

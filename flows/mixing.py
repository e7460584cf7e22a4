"""Entry point of the flow `mix`."""

from tokenlake.prefect.flows import mix as mix

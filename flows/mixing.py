"""Entry point of the flow `mix`."""

from tokenlake.prefect.flows.mixing import mix as mix

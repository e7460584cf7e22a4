"""Entry points of deployments; the flows themselves are in :mod:`tokenlake.prefect.flows`, and so in the wheel."""

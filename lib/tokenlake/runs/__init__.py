"""One run of a build, for flows that start and orchestrate it.

It has the request of a run, its bounds, and its groups of units.

Nothing here knows of Prefect; the flows and their tasks are the packages
``tokenlake_flows`` and ``tokenlake_tasks``.
"""

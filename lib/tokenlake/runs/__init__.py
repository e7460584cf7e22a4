"""One run of a build, for flows that start and orchestrate it: its request, its bounds,
its groups of units.

Nothing here knows of Prefect; the flows and their tasks are the packages
``tokenlake_flows`` and ``tokenlake_tasks``.
"""

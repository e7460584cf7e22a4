"""One run of a build, as whoever starts and orchestrates it sees it: its request, its limits, its groups of units.

Nothing here knows of Prefect; the flows and their tasks are the packages ``tokenlake_flows`` and ``tokenlake_tasks``.
"""

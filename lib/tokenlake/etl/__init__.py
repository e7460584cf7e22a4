"""Building a dataset version: plan, units, workers, session, commit.

Nothing is imported here: a worker process should not pay for what only its parent needs.
"""

"""Flows: the graph of a job and nothing else. Logic lives in ``tasks`` and in the library.

Nothing is imported here: ``flows.launch`` must be importable, and a server on its way up, before Prefect is.
"""

"""Builds as Prefect flows: ``flows`` holds the graphs, ``tasks`` the steps, ``server`` starts them from a command.

The only part of the package that imports Prefect, and only ``tokenlake.cli`` imports it.
"""

"""Builds as Prefect flows: ``flows`` holds the graphs and what starts them, ``tasks`` the steps.

The only part of the package that imports Prefect, and only ``tokenlake.cli`` imports it.
"""

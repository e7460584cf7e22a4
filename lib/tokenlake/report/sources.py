"""What a version was made of, source by source: of text, or of stored versions that were mixed."""

from __future__ import annotations

from tokenlake.manifest import Manifest
from tokenlake.report.account import sources_table
from tokenlake.report.mixture import mixture_table, order_table
from tokenlake.report.table import Table


def about_sources(manifest: Manifest) -> list[Table]:
    """The table of the sources; of a mixture what was asked and achieved, and its order."""
    if manifest.mixture is None:
        return [sources_table(manifest.accounts)]
    return [mixture_table(manifest.mixture), order_table(manifest.mixture)]

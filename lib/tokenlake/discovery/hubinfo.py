"""What a dataset's repository on the Hub says of its subsets and splits."""

from __future__ import annotations

from tokenlake.config.resolved import ResolvedSource
from tokenlake.discovery.inspection import Split


def hub_configs(source: ResolvedSource) -> tuple[str, ...]:
    """Return the subsets of the datasets, in the order of their cards."""
    return ()


def hub_splits(source: ResolvedSource) -> tuple[Split, ...]:
    """Return the splits of the subset that is read."""
    return ()

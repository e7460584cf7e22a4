"""Running on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from pydantic import Strict

from tokenlake.config.section import Section
from tokenlake.config.values import Count, Switch, Text


class RayConfig(Section):
    """Section `ray`."""

    enabled: Switch = False
    """Run the units of a build on Ray."""

    num_workers: Count = 4
    """Workers on the cluster; acts with `enabled`."""

    resources_per_worker: dict[Text, Annotated[float, Strict(), Ge(0.0)]] | None = None
    """What each worker reserves, such as {CPU: 2}; acts with `enabled`."""

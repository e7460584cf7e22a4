"""The bounds of the current run.

The run of a deployment is bounded by its worker's environment.
"""

from __future__ import annotations

import os

from prefect.runtime import deployment

from tokenlake.runs.policy import UNBOUNDED, Bounds


def bounds_of_run() -> Bounds:
    """Return the bounds of the current flow run.

    A run that a command started has none.
    """
    # Who starts a command could read everything without it, too.
    if deployment.id is None:
        return UNBOUNDED
    return Bounds(os.environ)

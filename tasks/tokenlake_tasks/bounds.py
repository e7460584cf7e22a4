"""What the current run may reach: the run of a deployment is bounded by its worker's
environment.
"""

from __future__ import annotations

import os

from prefect.runtime import deployment

from tokenlake.runs.policy import UNBOUNDED, Bounds


def bounds_of_run() -> Bounds:
    """Return the bounds of the current flow run; a run that a command started has
    none.
    """
    return UNBOUNDED if deployment.id is None else Bounds(os.environ)

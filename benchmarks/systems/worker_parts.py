"""What one worker process spends on each part of a build: ``CONFIG REQUEST``, printed
as JSON.

REQUEST is ``gate``: choose the engine, then build some units; or ``warm``: load what
the units are likely to need. Times are CPU seconds of this process, which does one
thing at a time.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tokenlake.etl.session import BuildSession
from tokenlake.etl.workbench import Workbench

IMPORTED: Final = time.process_time()
_UNITS: Final = 12


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds that something takes, and its result."""
    began = time.process_time()
    result = act()
    return time.process_time() - began, result


def main(config: dict[str, Any], request: str) -> dict[str, Any]:
    """Plan the build and do what a worker does."""
    shutil.rmtree(config["save"]["output_dir"], ignore_errors=True)
    parts: dict[str, Any] = {"import": IMPORTED}
    parts["plan"], session = timed(lambda: BuildSession.open(config))
    plan, layout = session.plan, session._layout
    workbench = Workbench()
    if request == "warm":
        parts["warm"], _ = timed(
            lambda: workbench.warm(plan.warm_job(plan.units[0], layout))
        )
        return parts
    parts["gate"], verdict = timed(
        lambda: workbench.run(plan.backend_job(plan.units[0], layout), _ignore)
    )
    units: list[tuple[int, float]] = []
    for unit in plan.units[:_UNITS]:
        job = plan.job(unit, plan.store, layout, verdict["engine"])
        seconds, _ = timed(lambda job=job: workbench.run(job, _ignore))
        units.append((unit.bytes, seconds))
    return parts | {"engine": verdict["engine"], "units": units}


def _ignore(fields: dict[str, Any]) -> None:
    """Take no note of progress."""


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_bytes()), sys.argv[2])))

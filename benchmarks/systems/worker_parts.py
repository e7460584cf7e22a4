"""Times of the parts of a build in one worker process: ``CONFIG REQUEST``.

REQUEST is ``gate``, which chooses the tokenizer backend and builds some units, or
``warm``, which loads the tokenizer for the units. The CPU seconds of this process are
printed as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tokenlake.etl.session import BuildSession
from tokenlake.etl.workbench import Workbench

IMPORTED: Final = time.process_time()
"""CPU seconds until the imports above were done."""

_UNITS: Final = 12
"""Number of units to build."""


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    start_time = time.process_time()
    result = action()
    return time.process_time() - start_time, result


def main(config: dict[str, Any], request: str) -> dict[str, Any]:
    """Plan a build, and do the work of a worker.

    Args:
        config: Configuration of the build. Its store is emptied.
        request: "gate" or "warm".

    Returns:
        CPU seconds of each part, and (bytes, CPU seconds) of each unit.
    """
    shutil.rmtree(config["save"]["output_dir"], ignore_errors=True)
    plan_seconds, session = timed(partial(BuildSession.open, config))
    parts: dict[str, Any] = {"import": IMPORTED, "plan": plan_seconds}
    plan = session.plan
    layout = session._layout
    workbench = Workbench()
    # 1. A worker that does not pass the gate only loads the tokenizer.
    if request == "warm":
        # The job is made in the timed call, as in a build.
        parts["warm"], _ = timed(
            lambda: workbench.warm(plan.warm_job(plan.units[0], layout))
        )
        return parts
    # 2. The gate, which chooses the backend.
    parts["gate"], verdict = timed(
        lambda: workbench.run(plan.backend_job(plan.units[0], layout), _ignore)
    )
    # 3. The units.
    units: list[tuple[int, float]] = []
    for unit in plan.units[:_UNITS]:
        job = plan.job(unit, plan.store, layout, verdict["engine"])
        seconds, _ = timed(partial(workbench.run, job, _ignore))
        units.append((unit.bytes, seconds))
    return parts | {"engine": verdict["engine"], "units": units}


def _ignore(fields: dict[str, Any]) -> None:
    """Ignore a progress message."""


if __name__ == "__main__":
    config = json.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps(main(config, sys.argv[2])))

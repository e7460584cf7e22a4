"""Records of runs in a version.

They give the state of a build that is not committed, and the flow run that committed a
version.

Nothing here is proof: a clock may be wrong, and a run that was killed left no record.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final

from tokenlake.errors import IntegrityError, StoreError
from tokenlake.runtime.store.base import ObjectInfo, ReadStore, Store
from tokenlake.runtime.store.layout import LEDGER, RUNS, Layout, ledger_unit

BuildState: TypeAlias = Literal["running", "idle", "failed", "cancelled"]

FAILED: Final = "-failed"
"""End of the name of the record that a failing run leaves in ``runs/``."""
CANCELLED: Final = "-cancelled"
"""End of the name of the record that a cancelled run leaves there."""

_FINISHED: Final = re.compile(r".*/[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\.json")
# Seconds within which a running build begins or finishes some file.
_QUIET: Final = 600.0
_STAMP: Final = len("20260101T000000Z")  # the start of a run, in the name of its record


@final
@dataclass(frozen=True, slots=True)
class Unfinished:
    """A build without a manifest.

    Attributes:
        state: ``failed`` or ``cancelled`` if the last run recorded that; else
            ``running`` if something changed in the last ten minutes, or ``idle``.
        units: Number of finished units.
        seconds: Seconds since the last change, by the storage's clock; None if the
            storage does not say.
        error: Error of the last run, if it failed.
    """

    state: BuildState
    units: int
    seconds: float | None
    error: str | None


def unfinished(store: ReadStore, layout: Layout) -> Unfinished:
    """Return the state of a version that is not committed.

    Files that are being written count as changes.
    """
    # The objects are listed once, for the last change, the finished units and the runs.
    objects = list(store.list(layout.prefix))

    # The last change of anything in the version.
    changes = [info.modified for info in objects]
    if isinstance(store, Store):
        changes += [leftover.modified for leftover in store.leftovers(layout.prefix)]
    known_changes = [change for change in changes if change is not None]
    seconds: float | None = None
    if known_changes:
        seconds = max(0.0, time.time() - max(known_changes))

    # Finished units, and records of runs.
    unit_count = 0
    run_records: list[ObjectInfo] = []
    for info in objects:
        path = layout.path(info.key)
        if path.startswith(f"{LEDGER}/") and ledger_unit(path) is not None:
            unit_count += 1
        elif path.startswith(f"{RUNS}/"):
            run_records.append(info)
    last_run = _last(run_records)

    # A recorded end of the last run says more than the clock.
    error: str | None = None
    if last_run is not None and _is_failure(last_run):
        recorded_error = _recorded(store, last_run, "error")
        error = None if recorded_error is None else str(recorded_error)
    state: BuildState = "idle"
    if error:
        state = "failed"
    elif last_run is not None and _is_cancellation(last_run):
        state = "cancelled"
    elif seconds is not None and seconds < _QUIET:
        state = "running"
    return Unfinished(state, unit_count, seconds, error)


def committing_run(store: ReadStore, layout: Layout) -> Mapping[str, str]:
    """Return id, name and deployment of the flow run that committed a version.

    The result is empty if no record names one.
    """
    # Records of runs that ended otherwise have a suffix.
    finished = [
        info for info in store.list(layout.key(RUNS)) if _FINISHED.fullmatch(info.key)
    ]
    last_run = _last(finished)
    if last_run is None:
        return {}
    flow_run = _recorded(store, last_run, "flow_run")
    if not isinstance(flow_run, dict):
        return {}
    return {str(key): str(value) for key, value in flow_run.items()}


def _last(runs: Iterable[ObjectInfo]) -> ObjectInfo | None:
    """Return the newest record of a run.

    Records are compared by the start of the run, then by the time of writing.
    """

    def sort_key(info: ObjectInfo) -> tuple[str, float, bool]:
        # Of two records of one run, the one about its end counts.
        is_ending = _is_failure(info) or _is_cancellation(info)
        run_start = info.key.rpartition("/")[2][:_STAMP]
        return run_start, info.modified or 0.0, is_ending

    return max(runs, key=sort_key, default=None)


def _recorded(store: ReadStore, run: ObjectInfo, key: str) -> Any:
    """Return a member of the record of a run; None if it cannot be read."""
    # Records help people, and decide nothing: a damaged one is as good as none.
    try:
        return json.loads(store.read(run.key))[key]
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        StoreError,
        IntegrityError,
    ):
        return None


def _is_failure(info: ObjectInfo) -> bool:
    """Return whether a record is that of a failed run."""
    return info.key.endswith(f"{FAILED}.json")


def _is_cancellation(info: ObjectInfo) -> bool:
    """Return whether a record is that of a cancelled run."""
    return info.key.endswith(f"{CANCELLED}.json")

"""How a build fares that is not committed: what it has finished, when it changed something last, why it failed.

Nothing here is proof: a clock may be wrong, and a run that was killed left no word.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from tokenlake.errors import IntegrityError, StoreError
from tokenlake.store.base import ObjectInfo, ReadStore, Store
from tokenlake.store.layout import LEDGER, RUNS, Layout, ledger_unit

State: TypeAlias = Literal["running", "idle", "failed"]

FAILED: Final = "-failed"
"""Ends the name of the record that a failing run leaves in ``runs/``."""

_QUIET: Final = 600.0  # seconds in which a build that runs has begun or finished some file
_STAMP: Final = len("20260101T000000Z")


@final
@dataclass(frozen=True, slots=True)
class Unfinished:
    """A build without a manifest.

    Attributes:
        state: failed, if the last run left word of it; else running, if something changed in the last ten minutes.
        units: finished ones.
        seconds: since something changed, by the storage's clock; None where it does not say.
        error: of the last run, if it failed.
    """

    state: State
    units: int
    seconds: float | None
    error: str | None


def unfinished(store: ReadStore, layout: Layout) -> Unfinished:
    """Look at a version that is not committed; files that are being written count as changes."""
    objects = list(store.list(layout.prefix))
    begun = store.leftovers(layout.prefix) if isinstance(store, Store) else []
    changes = [each.modified for each in (*objects, *begun) if each.modified is not None]
    seconds = max(0.0, time.time() - max(changes)) if changes else None
    paths = [layout.path(info.key) for info in objects]
    units = sum(path.startswith(f"{LEDGER}/") and ledger_unit(path) is not None for path in paths)
    error = _error(store, (info for info in objects if layout.path(info.key).startswith(f"{RUNS}/")))
    running = seconds is not None and seconds < _QUIET
    return Unfinished("failed" if error else "running" if running else "idle", units, seconds, error)


def _error(store: ReadStore, runs: Iterable[ObjectInfo]) -> str | None:
    """Return why the last run failed; None if it did not, or that cannot be read."""
    last = max(runs, key=_when, default=None)
    if last is None or not _is_failure(last):
        return None
    try:
        return str(json.loads(store.read(last.key))["error"])
    except (ValueError, KeyError, TypeError, StoreError, IntegrityError):
        return None


def _when(info: ObjectInfo) -> tuple[str, float, bool]:
    """Order the records of runs: by the start of the run, then by when they were written."""
    return info.key.rpartition("/")[2][:_STAMP], info.modified or 0.0, _is_failure(info)


def _is_failure(info: ObjectInfo) -> bool:
    return info.key.endswith(f"{FAILED}.json")

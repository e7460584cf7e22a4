"""Facts about one run, published while it works and when it ends."""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, final

from tokenlake.base.secrets import hide
from tokenlake.errors import TokenlakeError
from tokenlake.etl.job.versions import produced_by
from tokenlake.etl.run_log.asked_configuration import SUFFIX, Asked
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.runs import CANCELLED, FAILED


@final
class RunLog:
    """Log of one run; thread-safe.

    Args:
        store: Store of the version.
        layout: Layout of the version.

    Attributes:
        run_id: Name of the run, which sorts by time.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._began = datetime.now(UTC)
        self._began_seconds = time.monotonic()
        # Runs of the same second still have different names.
        self.run_id = f"{self._began:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
        # Wall seconds of each unit, and of each step of all units. The lock guards
        # both.
        self._lock = threading.Lock()
        self._seconds_of_units: dict[int, float] = {}
        self._seconds_of_steps: Counter[str] = Counter()

    def asked(self, asked: Asked) -> None:
        """Publish the configuration at once.

        A run that never ends has built units too.
        """
        self._store.put_new(
            self._layout.run(f"{self.run_id}{SUFFIX}"), asked.to_bytes()
        )

    def resumed(self) -> None:
        """Publish at once that a claim is worked on again."""
        # gc looks at the time of the newest change under a version.
        begin = self._began.isoformat(timespec="seconds")
        self._put(f"{self.run_id}-resumed", {"begin": begin})

    def failed(self, error: Exception) -> None:
        """Publish at once the error that ends the run."""
        # The message may quote a secret, and the store may be read by others.
        fields = {"error": hide(str(error)), "type": type(error).__name__}
        self._put(f"{self.run_id}{FAILED}", fields)

    def cancelled(self) -> None:
        """Publish at once that the run was cancelled, so that nobody waits for it."""
        self._put(f"{self.run_id}{CANCELLED}", {"cancelled": True})

    def finished(
        self, unit: int, seconds: float, step_seconds: Mapping[str, float]
    ) -> None:
        """Note the wall time of a unit.

        Args:
            unit: Index of the unit.
            seconds: Wall time of the unit.
            step_seconds: Seconds of each step.
        """
        with self._lock:
            self._seconds_of_units[unit] = round(seconds, 3)
            self._seconds_of_steps.update(step_seconds)

    def condemned(self, engine: str, error: TokenlakeError) -> None:
        """Publish at once that a tokenizer backend differed from the reference.

        The error has the text on which it did.
        """
        fields = {
            "engine": engine,
            "error": str(error),
            "details": error.details,
            "produced_by": produced_by(engine),
        }
        self._put(f"{self.run_id}-condemned-{engine}", fields)

    def finish(
        self,
        how: Mapping[int, str],
        commits: Mapping[str, Mapping[str, str]],
        run: Mapping[str, str],
    ) -> None:
        """Publish the facts about the run.

        Args:
            how: Origin of each unit: built, resumed or reused.
            commits: Commit that was read of each dataset of the Hub, by source.
            run: Facts about the driver of the run; empty for a program.
        """
        with self._lock:
            seconds_of_units = dict(sorted(self._seconds_of_units.items()))
            seconds_of_steps: dict[str, float] = {}
            for step_name, seconds in sorted(self._seconds_of_steps.items()):
                seconds_of_steps[step_name] = round(seconds, 3)
        # Nothing of this is part of a version's identity: clocks, the machine and
        # packages.
        fields: dict[str, Any] = {
            "begin": self._began.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._began_seconds, 3),
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "produced_by": produced_by(),
            "units": dict(sorted(Counter(how.values()).items())),
            "unit_seconds": seconds_of_units,
            "stage_seconds": seconds_of_steps,
            "hub_commits": commits,
        }
        if run:
            fields["flow_run"] = run
        self._put(self.run_id, fields)

    def _put(self, file_name: str, fields: dict[str, Any]) -> None:
        """Create a file of the run. It is never replaced."""
        content = json.dumps(fields, indent=2, default=str).encode() + b"\n"
        self._store.put_new(self._layout.run(file_name), content)

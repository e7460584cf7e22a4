"""``runs/<run id>.json``: clocks, hosts and timings of one run; never part of identity.

``runs/<run id>-asked.json``, written when the run begins, is its configuration; see :mod:`tokenlake.etl.run_config`.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, final

from tokenlake.config.references import hide
from tokenlake.errors import TokenlakeError
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.run_config import SUFFIX, Asked
from tokenlake.store.base import Store
from tokenlake.store.layout import Layout
from tokenlake.store.unfinished import FAILED


@final
class RunLog:
    """Collects what one run did and publishes it when the run ends; thread-safe."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._lock = threading.Lock()
        self._begin = datetime.now(UTC)
        self._clock = time.monotonic()
        self._seconds: dict[int, float] = {}
        self.run_id = f"{self._begin:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"

    def asked(self, asked: Asked) -> None:
        """Keep how the run was asked, at once: a run that never ends has built units, too."""
        self._store.put_new(self._layout.run(f"{self.run_id}{SUFFIX}"), asked.to_bytes())

    def resumed(self) -> None:
        """Note, at once, that a claim is worked on again."""
        self._put(f"{self.run_id}-resumed", {"begin": self._begin.isoformat(timespec="seconds")})

    def failed(self, error: Exception) -> None:
        """Note, at once, why the run ends."""
        self._put(f"{self.run_id}{FAILED}", {"error": hide(str(error)), "type": type(error).__name__})

    def finished(self, unit: int, seconds: float) -> None:
        """Note the wall time of a unit."""
        with self._lock:
            self._seconds[unit] = round(seconds, 3)

    def condemned(self, engine: str, error: TokenlakeError) -> None:
        """Keep the text on which an engine failed, at once."""
        facts = {
            "engine": engine,
            "error": str(error),
            "details": error.details,
            "produced_by": produced_by(engine),
        }
        self._put(f"{self.run_id}-condemned-{engine}", facts)

    def finish(self, how: Mapping[int, str], commits: Mapping[str, Mapping[str, str]]) -> None:
        """Publish the run's facts.

        Args:
            how: unit to what became of it.
            commits: source to dataset of the Hub to the commit that was read.
        """
        with self._lock:
            seconds = dict(sorted(self._seconds.items()))
        self._put(
            self.run_id,
            {
                "begin": self._begin.isoformat(timespec="seconds"),
                "seconds": round(time.monotonic() - self._clock, 3),
                "host": socket.gethostname(),
                "platform": platform.platform(),
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "produced_by": produced_by(),
                "units": {
                    word: sum(value == word for value in how.values()) for word in sorted(set(how.values()))
                },
                "unit_seconds": seconds,
                "hub_commits": commits,
            },
        )

    def _put(self, name: str, facts: dict[str, Any]) -> None:
        self._store.put_new(self._layout.run(name), json.dumps(facts, indent=2, default=str).encode() + b"\n")

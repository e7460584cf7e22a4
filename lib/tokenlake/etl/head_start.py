"""Worker processes that start while their build is being planned.

A worker takes about half a second to start. The first one starts when the configuration
is resolved and allowed, the others when the tokenizers have passed their checks and the
listing says how many bytes there are: from then on a plan is likely to need them. A
worker that has started opens nothing until it gets a job, which only a finished plan
gives.

No more workers start than the plan will have units, as far as the listing can tell.
Those that turn out to be too many are ended when the plan is there. Where it is
refused, interrupted or has nothing to do, all end with the pool. A build whose newest
version came from an equal configuration starts none: it is likely to have nothing to
do.

Example: a listing of three JSON Lines files with 300 MB together, and units of 128 MiB,
promises two units at least. So two workers start.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.errors import NotFoundError, TokenlakeError
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.events import Event, Planning, Watcher
from tokenlake.etl.plan.unit_size import choose_unit_size
from tokenlake.etl.pool import EarlyPool
from tokenlake.etl.run_log import asked_before
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog

_SPLITTABLE: Final = (".jsonl", ".ndjson", ".parquet", ".arrow")
"""Ends of names of files that several workers can read at a time."""


@final
@dataclass(frozen=True, slots=True)
class _Listing:
    """Result of the listing of one source.

    Attributes:
        files: Number of files.
        bytes: Size of all files.
    """

    files: int
    bytes: int


@final
class HeadStart:
    """Watcher of a build's planning that starts workers, and passes all events on.

    Args:
        pool: Pool whose workers are started.
        config: Configuration that is planned.
        on_event: Watcher that gets the events.
    """

    def __init__(
        self, pool: EarlyPool, config: PipelineConfig, on_event: Watcher
    ) -> None:
        self._pool = pool
        self._on_event = on_event
        self._lock = threading.Lock()
        # The listing of each source so far.
        self._listings: dict[str, _Listing] = {}
        self._splittable: dict[str, bool] = {}
        self._unit_size: int | None = None
        self._is_new = False
        # Planning reports an error of the configuration; nothing starts then.
        with suppress(TokenlakeError):
            self._begin(config)

    def __call__(self, event: Event) -> None:
        if self._is_new and isinstance(event, Planning) and event.all_bytes:
            # Sources are listed by several threads.
            with self._lock:
                listing = _Listing(event.all_files, event.all_bytes)
                self._listings[event.source] = listing
                units = self._least_units()
            self._pool.prepare(units)
        self._on_event(event)

    def _begin(self, config: PipelineConfig) -> None:
        """Start the first worker, unless there is hardly anything to do."""
        build = resolve(config)
        try:
            Catalog(open_store(address_of_build(build))).latest(build.name)
        except NotFoundError:
            self._is_new = True
        # The newest version came from an equal configuration: most likely the build
        # finds it again.
        if not self._is_new and asked_before(config):
            return
        self._unit_size = build.unit_size
        for source in build.sources:
            # A limit of rows is read in one unit.
            reads_all = source.num_rows is None
            can_split = reads_all and _can_split(source.data_files)
            self._splittable[source.name] = can_split
        # Of a dataset that has versions, most units are probably reused. One worker
        # chooses the backend meanwhile.
        self._pool.prepare(1)

    def _least_units(self) -> int:
        """Return the number of units that the plan will have at least, most likely."""
        total_bytes = sum(listing.bytes for listing in self._listings.values())
        unit_size = self._unit_size or choose_unit_size(total_bytes)
        unit_count = 0
        for source, listing in self._listings.items():
            units = max(1, listing.bytes // unit_size)
            # A file that cannot be split is one unit at most.
            if not self._splittable.get(source, False):
                units = min(units, listing.files)
            unit_count += units
        return unit_count


def _can_split(entries: Sequence[str]) -> bool:
    """Whether all files of a source can be split, by the names in its configuration."""
    return all(entry.lower().endswith(_SPLITTABLE) for entry in entries)

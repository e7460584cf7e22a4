"""Metrics of builds and pipelines, as a section `observability` asks for them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenlake.base.metrics import MetricsExport, Read
from tokenlake.etl.events.watcher import Event, Watcher
from tokenlake.etl.observability.tally import RunTallies
from tokenlake.runtime.store.outputs import require_outside_stores

if TYPE_CHECKING:
    from tokenlake.config.stages import ObservabilityConfig


@contextmanager
def measured(section: ObservabilityConfig, on_event: Watcher) -> Generator[Watcher]:
    """Yield a watcher that counts the events of a build for its metrics, and passes
    them on.

    Args:
        section: Section of the configuration, which says whether metrics are exported.
        on_event: Function that gets the events.
    """
    tallies = RunTallies()
    export = metrics_export(section, tallies.metrics)
    if export is None:
        yield on_event
        return

    def watch(event: Event) -> None:
        tallies.add(event)
        on_event(event)

    with export:
        yield watch


def metrics_export(section: ObservabilityConfig, read: Read) -> MetricsExport | None:
    """Return the export of metrics that a section asks for; None where it asks for
    none.

    Args:
        section: Section of the configuration.
        read: Function that returns the current metrics.
    """
    if not section.metrics_enabled or not (
        section.metrics_file or section.opentelemetry
    ):
        return None
    if section.metrics_file:
        require_outside_stores(section.metrics_file, "observability.metrics_file")
    return MetricsExport(
        read, file=section.metrics_file, opentelemetry=section.opentelemetry
    )

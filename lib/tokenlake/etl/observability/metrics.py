"""Export of the metrics of builds and pipelines, by section `observability`."""

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
    """Yield a watcher that counts the events of a build, and passes them on.

    Args:
        section: Section of the configuration, which says whether metrics are exported.
        on_event: Function that gets the events.
    """
    tallies = RunTallies()
    # Without an export nothing is counted: the events go straight to their function.
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
    """Return the export of metrics of a section; None if it configures none.

    Args:
        section: Section of the configuration.
        read: Function that returns the current metrics.
    """
    has_target = bool(section.metrics_file or section.opentelemetry)
    if not section.metrics_enabled or not has_target:
        return None
    # Inside of a store the file would be one that no manifest lists.
    if section.metrics_file:
        require_outside_stores(section.metrics_file, "observability.metrics_file")
    return MetricsExport(
        read, file=section.metrics_file, opentelemetry=section.opentelemetry
    )

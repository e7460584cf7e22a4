"""Progress of a pipeline that delivers batches or rows."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from tokenlake.etl.observability.displays import DisplayOptions, display_of
from tokenlake.etl.observability.metrics import metrics_export
from tokenlake.etl.observability.tally import BatchTally
from tokenlake.etl.reports.terminal import stderr

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig


def observed_batches(
    items: Iterable[Any], config: PipelineConfig, *, batched: bool
) -> Iterator[Any]:
    """Return an iterator of the same items, which shows progress.

    It shows progress if the configuration has a section `observability`.

    Args:
        items: Batches or rows.
        config: Configuration of the pipeline.
        batched: True if items are batches, dicts of columns; False if each is a row.
    """
    if "observability" not in config.model_fields_set:
        return iter(items)
    return _observed(items, config, batched)


def _observed(
    items: Iterable[Any], config: PipelineConfig, batched: bool
) -> Generator[Any]:
    """Yield the items, and show and export how many there were."""
    # Metrics and display end in the reverse order, also if the consumer stops early.
    section = config.observability
    tally = BatchTally()
    options = DisplayOptions.of(section)
    with ExitStack() as stack:
        export = metrics_export(section, tally.metrics)
        if export is not None:
            stack.enter_context(export)
        display = display_of(
            options, stderr(), tally.render, "waiting for the first batch"
        )
        display.begin()
        stack.callback(display.end)

        # Only the time inside of `next` is waiting; the rest of it is the consumer's
        # work.
        iterator = iter(items)
        end_marker = cast("Any", object())
        while True:
            began = time.monotonic()
            item = next(iterator, end_marker)
            tally.waited += time.monotonic() - began
            if item is end_marker:
                break
            tally.batches += 1
            # A batch has as many rows as any of its columns; one without columns has
            # none.
            rows = 1
            if batched:
                rows = len(next(iter(item.values()), ()))
            tally.rows += rows
            display.show(tally, 1)
            yield item
        if options.tells("INFO"):
            display.say("INFO", tally.line())

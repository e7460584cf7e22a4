"""What a pipeline gives out, watched: progress on standard error, figures as metrics."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from tokenlake.observability.build import metrics_export
from tokenlake.observability.display import Display, DisplayOptions, display_of
from tokenlake.observability.tally import BatchTally
from tokenlake.reports.terminal import stderr

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig


def observed_batches(items: Iterable[Any], config: PipelineConfig, *, batched: bool) -> Iterator[Any]:
    """Return an iterator of the same items, which is watched if the configuration has a section `observability`.

    Args:
        batched: items are batches, dicts of columns; else each is a row.
    """
    if "observability" not in config.model_fields_set:
        return iter(items)
    return _watched(items, config, batched)


def _watched(items: Iterable[Any], config: PipelineConfig, batched: bool) -> Generator[Any]:
    section, tally = config.observability, BatchTally()
    options = DisplayOptions.of(section)
    with ExitStack() as stack:
        if (export := metrics_export(section, tally)) is not None:
            stack.enter_context(export)
        display: Display = display_of(options, stderr(), tally.render, "waiting for the first batch")
        display.begin()
        stack.callback(display.end)
        iterator, end = iter(items), cast("Any", object())
        while True:
            asked = time.monotonic()
            item = next(iterator, end)
            tally.waited += time.monotonic() - asked
            if item is end:
                break
            tally.batches += 1
            tally.rows += len(next(iter(item.values()), ())) if batched else 1
            display.show(tally, 1)
            yield item
        if options.tells("INFO"):
            display.say("INFO", tally.line())

"""The task `export`."""

from __future__ import annotations

from tokenlake.runs.engine import LocalEngine
from tokenlake_tasks.retries import retried
from tokenlake_tasks.run_log import log_of
from tokenlake_tasks.summary import Summary, summarize


@retried("export", "export")
def export(engine: LocalEngine) -> Summary:
    """Make the exports of the committed version, and summarize the run again."""
    # A copy that was complete already is not written again.
    result = engine.export()
    for export_path in result.exports:
        log_of(engine)(f"exported to {export_path}")
    return summarize(result)

"""How a run reports about itself. Nothing here changes a result."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Count, Switch


class ObservabilityConfig(Section):
    """Section `observability`; a build refuses all but the defaults until they act."""

    progress_enabled: Switch = True
    """Show progress; a build refuses another value: its caller chooses how to report."""

    progress_type: Literal["rich", "tqdm", "json", "none"] = "rich"
    """Form of the progress; a build refuses another value."""

    metrics_enabled: Switch = True
    """Collect throughput figures; a build refuses another value."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe message that is logged; a build refuses another value."""

    log_interval: Count = 100
    """Rows or batches between two progress messages of the row-wise API; a build refuses another value."""

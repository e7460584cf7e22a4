"""How a run reports about itself. Nothing here changes a result."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.values import Count, Switch


class ObservabilityConfig(Section):
    """Section `observability`; defaults for the options of a run, not used by the build itself."""

    progress_enabled: Switch = True
    """Show progress; not used by a build, whose caller chooses how to report."""

    progress_type: Literal["rich", "tqdm", "json", "none"] = "rich"
    """Form of the progress; not used by a build."""

    metrics_enabled: Switch = True
    """Collect throughput figures; not used by a build."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe message that is logged; not used by a build."""

    log_interval: Count = 100
    """Rows or batches between two progress messages of the row-wise API; not used by a build."""

"""How a trainer reads: batches and prefetching. Nothing here changes what a build writes."""

from __future__ import annotations

from tokenlake.config.section import Section
from tokenlake.config.values import Count, Switch


class LoadStageConfig(Section):
    """Section `load`; it configures the reading side and is not used by a build."""

    batch_size: Count = 8
    """Rows of a batch; not used by a build."""

    prefetch_enabled: Switch = True
    """Prepare batches ahead; not used by a build."""

    prefetch_workers: Count = 2
    """Threads that prepare batches; not used by a build."""

    prefetch_buffer_size: Count = 4
    """Batches kept ready; not used by a build."""

    shuffle_buffer_size: Count | None = None
    """Rows of a shuffle buffer; null: no shuffle; not used by a build."""

    drop_last: Switch = True
    """Leave out a last batch that is not full; not used by a build."""

    prefetch_to_device: Switch = False
    """Move prefetched batches to the devices; not used by a build."""

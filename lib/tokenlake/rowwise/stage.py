"""What a stage of a pipeline is, which may come after which, and which options no pipeline acts on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from tokenlake.cache.disk import default_folder
from tokenlake.cache.manager import TreeCacheManager
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.refusals import raise_problems, refused
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.rowwise.save import SavedShardedSource
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.tokenizers.manager import LoadedTokenizer

STAGES: Final = ("source", "tokenize", "mix", "pack", "save", "load")

_AFTER: Final = {
    "tokenize": ("mix", "pack", "load"),
    "mix": ("pack", "load"),
    "pack": ("load",),
    "save": ("load",),
}
"""A stage to those that may not come before it; rows can be saved at any place."""

_CHECKED_FIRST: Final = ("datasets", "source", "cache", "observability", "ray")
"""Sections of which no stage is called, so that they are checked before the first one."""


@final
class PipelineContext:
    """What the stages of one pipeline know of it and of each other.

    Attributes:
        config: the configuration, with the sections that stages were called with in place of the pipeline's own.
        opened: name of a dataset to its rows, as :meth:`Pipeline.source` opened it.
        tokenizers: name of a source to its tokenizer, once :meth:`Pipeline.tokenize` was called.
        packed: whether rows are packed by a stage that was called.
        saved: what is to be written when the pipeline is built.
        stepped: tells the mixture how many rows a training step takes; None: nothing hangs on it.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.opened: dict[str, ShardedDataSource] = {}
        self.tokenizers: dict[str, LoadedTokenizer] = {}
        self.packed = False
        self.saved: list[SavedShardedSource] = []
        self.stepped: Callable[[int], None] | None = None
        self._caches: dict[Path, TreeCacheManager] = {}

    @property
    def cache_manager(self) -> TreeCacheManager:
        """The cache that the section `cache` describes, of which the stages of a pipeline may make use; it is empty for
        ever where ``cache.enabled`` is false."""
        return self.cache_at(None)

    def cache_at(self, folder: str | Path | None) -> TreeCacheManager:
        """Return the cache in a folder, as the section `cache` describes it; None: in ``cache.cache_dir``."""
        section = self.config.cache
        where = Path(folder or section.cache_dir or default_folder() / "tokens")
        if where not in self._caches:
            self._caches[where] = TreeCacheManager(
                where,
                section.memory_cache_size if section.enabled else 0,
                section.disk_cache_expiry,
                section.compression,
                max_bytes=section.disk_cache_bytes,
                cache_type=section.cache_type if section.enabled else "memory",
            )
        return self._caches[where]

    @property
    def seed(self) -> int | None:
        """The pipeline's seed, None where none is set."""
        return self.config.seed

    @property
    def packing(self) -> bool:
        """Whether rows are packed, or ``pack.enabled`` says that they will be.

        A stage before packing asks when rows are drawn, because :meth:`Pipeline.pack` may be called after it.
        """
        return self.packed or self.config.pack.enabled

    def config_with_packing(self, packing: bool) -> PipelineConfig:
        """Return the configuration of a pipeline that packs, or of one that does not."""
        pack = self.config.pack.model_copy(update={"enabled": packing})
        return self.config.model_copy(update={"pack": pack})

    def dataset(self, name: str) -> DatasetConfig | None:
        """Return the configuration of a dataset; None for a source that a stage made, such as ``mixed``."""
        return self.config.get_dataset_by_name(name)


class BaseStage(ABC):
    """A step from sources to sources, by the names of their datasets.

    A stage of your own defines `name` and `process`, and is given to :meth:`Pipeline.stage`. It should be lazy: make
    sources that wrap those it got, and read no rows.

    Attributes:
        config: whatever the stage was made with.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @property
    @abstractmethod
    def name(self) -> str:
        """What :meth:`Pipeline.get_stages` calls the stage."""

    @abstractmethod
    def process(self, data: dict[str, ShardedDataSource], context: PipelineContext) -> Mapping[str, Any]:
        """Return the new sources by name.

        Args:
            data: name to source.
            context: configuration and seed, and what earlier stages left for this one.
        """


def check_order(stage: str, applied: Sequence[str]) -> None:
    """Raise RuntimeError unless `stage` may follow the stages `applied`.

    Args:
        stage: one of :data:`STAGES`, ``build``, or the name of a stage of the user's own.
        applied: names of the stages so far, in order.
    """
    if stage == "source":
        if "source" in applied:
            raise RuntimeError("source() has already been called")
        return
    if "source" not in applied:
        raise RuntimeError("Call source() before other pipeline stages")
    if stage == "build":
        return
    if stage in STAGES and stage in applied:
        raise RuntimeError(f"{stage}() has already been called")
    before = next((name for name in _AFTER.get(stage, ("load",)) if name in applied), None)
    if before is not None:
        order = f"stages go {', '.join(STAGES)}, and save also earlier"
        raise RuntimeError(f"{stage}() cannot come after {before}(); {order}")


def check_config(config: PipelineConfig, stage: str) -> None:
    """Check a configuration, and what a pipeline refuses in the section of a stage; first in those without one.

    Raises:
        ConfigError: it contradicts itself; the message lists everything.
        NotAvailableError: an option that a pipeline does not act on is set.
    """
    raise_problems(ConfigError, config.validate())
    sections = _CHECKED_FIRST if stage == "source" else (stage,)
    raise_problems(NotAvailableError, refused(config, "rows", sections))

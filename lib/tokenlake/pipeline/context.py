"""What the stages of a pipeline know of it and of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.tokenizer import TokenizerConfig
    from tokenlake.pipeline.saved import SavedShardedSource
    from tokenlake.sources.sharded.base import ShardedDataSource
    from tokenlake.tokenizers.manager import LoadedTokenizer


@final
@dataclass(frozen=True, slots=True)
class ChosenTokenizer:
    """The tokenizer of a source, and how it is used."""

    loaded: LoadedTokenizer
    options: TokenizerConfig


@final
class PipelineContext:
    """Shared by the stages of one pipeline.

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
        self.tokenizers: dict[str, ChosenTokenizer] = {}
        self.packed = False
        self.saved: list[SavedShardedSource] = []
        self.stepped: Callable[[int], None] | None = None

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

    def dataset(self, name: str) -> DatasetConfig | None:
        """Return the configuration of a dataset; None for a source that a stage made, such as ``mixed``."""
        return self.config.get_dataset_by_name(name)

"""What a stage of a pipeline is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from tokenlake.pipeline.context import PipelineContext
from tokenlake.sources.sharded.base import ShardedDataSource


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
        """Return what becomes of the sources.

        Args:
            data: name to source.
            context: configuration and seed, and what earlier stages left for this one.
        """

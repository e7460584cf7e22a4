"""The stage `mix`: several sources to one weighted stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from tokenlake.errors import NotAvailableError
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource

MIXED: Final = "mixed"


@final
class MixStage(BaseStage):
    @property
    def name(self) -> str:
        return "mix"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        check_stage(context.config, "mix")
        if len(data) == 1 and not context.config.mix.model_fields_set:
            return dict(data)
        raise NotAvailableError("mix")

"""The stage `pack`: rows of tokens to rows of one length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from tokenlake.config.lengths import contradictions
from tokenlake.config.outputs import output_problems
from tokenlake.errors import ConfigError
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.packed import PackedShardedSource


@final
class PackStage(BaseStage):
    """Wraps every source in a :class:`PackedShardedSource`."""

    @property
    def name(self) -> str:
        return "pack"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the sources packed, each by itself; where ``enabled: false`` is written out, as they are.

        Raises:
            ConfigError: no EOS is known, or a dataset pads its documents or keeps fields beside them.
        """
        pack = context.config.pack
        if "enabled" in pack.model_fields_set and not pack.enabled:
            return dict(data)
        check_stage(context.config, "pack")
        _require_packable(context)
        made = {name: self._packed(name, source, context) for name, source in data.items()}
        context.packed = True
        return made

    def _packed(self, name: str, source: ShardedDataSource, context: PipelineContext) -> PackedShardedSource:
        chosen = context.tokenizers.get(name)
        loaded = None if chosen is None else chosen.loaded
        return PackedShardedSource(source, context.config.pack, tokenizer=loaded, seed=context.seed)


def _require_packable(context: PipelineContext) -> None:
    config = context.config.model_copy(
        update={"pack": context.config.pack.model_copy(update={"enabled": True})}
    )
    problems = [
        line
        for dataset in config.datasets
        if dataset.name in context.tokenizers
        for line in output_problems(config, dataset, context.tokenizers[dataset.name].options)
    ]
    problems += contradictions(config)
    if problems:
        raise ConfigError("\n".join(problems), problems=problems)

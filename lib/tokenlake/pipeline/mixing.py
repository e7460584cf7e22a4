"""The stage `mix`: several sources to one weighted stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.errors import ConfigError
from tokenlake.mixing import WeightScheduler
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.stage import BaseStage
from tokenlake.pipeline.tokenlimit import TokenLimitedSource
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.limited import LimitedShardedSource
from tokenlake.sources.sharded.mixed import MixedShardedSource

if TYPE_CHECKING:
    from tokenlake.config.mix_stage import MixStageConfig

MIXED: Final = "mixed"
"""Name of the mixture among the sources."""


@final
class MixStage(BaseStage):
    """Makes one :class:`MixedShardedSource` of all sources."""

    @property
    def name(self) -> str:
        return "mix"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return ``{"mixed": mixture}``; a single source stays as it is where the section says nothing but defaults.

        Raises:
            ConfigError: weights are of other names than the sources, or sources have different tokenizers.
            NotAvailableError: an option that a pipeline does not act on is set.
        """
        check_stage(context.config, "mix")
        mix = context.config.mix
        if len(data) == 1 and not context.config.mixes:
            return data
        _share_tokenizer(data, context)
        mixed = MixedShardedSource(
            data,
            weights=None if mix.weight_schedule else mix.weights,
            block_size=mix.block_size,
            seed=context.seed if mix.seed is None else mix.seed,
            stop_strategy=mix.stop_strategy,
            weight_scheduler=_schedule(mix, mix.batch_size),
        )
        if mix.weight_schedule and mix.step_rows is None:
            context.stepped = lambda rows: mixed.reschedule(_schedule(mix, rows))
        return {MIXED: _ended(mixed, mix)}


def _schedule(mix: MixStageConfig, batch_size: int) -> WeightScheduler | None:
    """Return the weights along the rows of the mixture; a step is `step_rows` of them, else a batch."""
    rows = mix.step_rows or batch_size
    points = [{"step": point.step * rows, "weights": point.weights} for point in mix.weight_schedule or ()]
    return WeightScheduler(points, mix.weight_schedule_type) if points else None


def _ended(mixed: MixedShardedSource, mix: MixStageConfig) -> ShardedDataSource:
    if mix.total_rows is not None:
        return LimitedShardedSource(mixed, mix.total_rows)
    return mixed if mix.total_tokens is None else TokenLimitedSource(mixed, mix.total_tokens)


def _share_tokenizer(data: Mapping[str, Any], context: PipelineContext) -> None:
    """Let the mixture have the tokenizer of its sources: in one stream of ids an id must mean one thing."""
    chosen = {name: context.tokenizers[name] for name in data if name in context.tokenizers}
    if not chosen:
        return
    first, *others = chosen
    for other in others:
        if chosen[first].loaded.files.json_bytes != chosen[other].loaded.files.json_bytes:
            raise ConfigError(
                f"mix: {other!r} is tokenized by {chosen[other].options.name_or_path!r} and {first!r} by "
                f"{chosen[first].options.name_or_path!r}, which is another tokenizer; in one stream an id must mean "
                "one thing. Use one tokenizer for all, or do not mix them",
                source=other,
            )
    context.tokenizers[MIXED] = chosen[first]

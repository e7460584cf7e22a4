"""The stage `load`: rows to batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from tokenlake.errors import ConfigError
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.loader import AsyncDataLoader
from tokenlake.pipeline.stage import BaseStage


@final
class LoadStage(BaseStage):
    """Puts an :class:`AsyncDataLoader` before every source."""

    @property
    def name(self) -> str:
        return "load"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> dict[str, AsyncDataLoader]:
        """Return a loader of each source.

        Rows of different lengths, which there are where nothing is packed or padded, are filled up with the padding
        token of their tokenizer (else its EOS) to the longest of each batch.

        Steps of a schedule of weights are training steps, of as many rows as a batch, unless ``mix.step_rows`` is set.

        Raises:
            ConfigError: rows are packed after they are mixed, and nobody says how many of them a step takes.
            NotAvailableError: an option that a pipeline does not act on is set.
            MissingExtraError: batches on devices are asked for, and jax is not installed.
        """
        check_stage(context.config, "load")
        load = context.config.load
        if context.stepped is not None:
            _require_rows(context)
            context.stepped(load.batch_size)
        return {
            name: AsyncDataLoader(
                source,
                batch_size=load.batch_size,
                prefetch_enabled=load.prefetch_enabled,
                prefetch_workers=load.prefetch_workers,
                prefetch_buffer_size=load.prefetch_buffer_size,
                shuffle_buffer_size=load.shuffle_buffer_size,
                drop_last=load.drop_last,
                seed=context.seed,
                prefetch_to_device=load.prefetch_to_device,
                **_padding(name, context),
            )
            for name, source in data.items()
        }


def _require_rows(context: PipelineContext) -> None:
    if context.packed:
        raise ConfigError(
            "mix.step_rows: missing. Documents are packed after they are mixed, so that a training step takes no fixed "
            "number of them; say how many a step of mix.weight_schedule has, as step_rows: 256"
        )


def _padding(name: str, context: PipelineContext) -> dict[str, Any]:
    chosen = context.tokenizers.get(name)
    if context.packed or chosen is None:
        return {}
    files = chosen.loaded.files
    pad = files.eos_id if files.pad_id is None else files.pad_id
    return {
        "pad_token_id": pad,
        "padding_side": "left" if chosen.loaded.pads_left(chosen.options) else "right",
    }

"""From what a person wrote to what a build consumes: inheritance, defaults, and nothing ignored silently.

The functions here are pure but for the environment. Their results are the dataclasses of
:mod:`tokenlake.config.resolved`, which a worker imports without paying for the models.

The parts of a build from stored datasets, each with its defaults worked out; what does not fit together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokenlake import config as config_models
from tokenlake.config.refusals import nameless, not_yet, source_not_yet, text_problems
from tokenlake.config.resolve_source import resolve_source
from tokenlake.config.resolved import (
    ResolvedBuild,
    ResolvedMix,
    ResolvedMixture,
    ResolvedPack,
    ResolvedParent,
    ResolvedSource,
)
from tokenlake.config.secret import plain_options
from tokenlake.config.stores import store_not_yet, store_of, store_problems
from tokenlake.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import MixStageConfig


def mix_problems(config: PipelineConfig) -> list[str]:
    """Return what a build from stored datasets needs beyond a valid configuration."""
    problems = [
        f"datasets.{dataset.name}.data_files: is text; its tokens are made first, see tokenlake.config.steps"
        for dataset in config.datasets
        if dataset.dataset is None
    ]
    pack, mix = config.pack, config.mix
    if not pack.enabled and "enabled" not in pack.model_fields_set and pack.model_fields_set:
        written = sorted(pack.model_fields_set)
        problems.append(
            f"pack.{written[0]}: set, but packing is off; write pack.enabled: true, or false to say so"
        )
    if not config.mixes:
        return problems
    if mix.stop_strategy == "restart" and not (mix.total_rows or mix.total_tokens or mix.epochs):
        problems.append(
            "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs, or "
            "stop_strategy: first_exhausted or all_exhausted"
        )
    for path, weights in _weights(config, mix):
        absent = sorted({dataset.name or "" for dataset in config.datasets} - weights)
        if absent:
            problems.append(
                f"{path}: has no weight for {', '.join(absent)}; give every dataset one (0 leaves it out)"
            )
    return problems


def mix_not_yet(config: PipelineConfig) -> list[str]:
    """Return what a build of texts acts on, and a build from stored datasets does not."""
    found: list[str] = []
    if config.save.num_shards is not None:
        found.append(
            f"save.num_shards: {config.save.num_shards} is not available yet for stored datasets; today: "
            "mix.unit_rows and save.max_shard_size decide how many files there are"
        )
    return found


def _weights(config: PipelineConfig, mix: MixStageConfig) -> list[tuple[str, set[str]]]:
    if mix.weight_schedule is not None:
        return [
            (f"mix.weight_schedule (step {point.step})", set(point.weights)) for point in mix.weight_schedule
        ]
    return [] if mix.weights is None else [("mix.weights", set(mix.weights))]


def resolved_parent(dataset: DatasetConfig) -> ResolvedParent:
    """Return the parent that a dataset of the store is; only of one whose `dataset` is set."""
    name, _, version = (dataset.dataset or "").partition("@")
    number = int(version.removeprefix("v")) if version else None
    return ResolvedParent(name=dataset.name or "", dataset=name, version=number, split=dataset.split)


def resolved_mixture(config: PipelineConfig) -> ResolvedMixture:
    """Return the mixture of a configuration that has one; weights that are not given are equal."""
    mix = config.mix
    names = [dataset.name or "" for dataset in config.datasets]
    if mix.weight_schedule is not None:
        points = tuple((point.step, dict(point.weights)) for point in mix.weight_schedule)
    else:
        points = ((0, dict(mix.weights or {name: 1 / len(names) for name in names})),)
    return ResolvedMixture(
        points=points,
        interpolation=mix.weight_schedule_type,
        weights_by=mix.weights_by,
        block_size=mix.block_size,
        stop=mix.stop_strategy,
        seed=mix.seed if mix.seed is not None else config.seed or 0,
        lanes=mix.lanes,
        batch_size=mix.batch_size,
        step_rows=mix.step_rows or mix.batch_size,
        order=mix.order,
        unit_rows=mix.unit_rows,
        total_rows=mix.total_rows,
        total_tokens=mix.total_tokens,
        epochs=mix.epochs,
    )


def resolve(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> ResolvedBuild:
    """Return the build that `config` asks for.

    Raises:
        ConfigError: something is missing or contradicts itself; the message lists everything.
        NotAvailableError: valid options that this release does not act on; the message lists everything.
    """
    store, save = store_of(config, environ), config.save
    _raise(ConfigError, config.validate() + text_problems(config) + store_problems(config, store))
    _raise(NotAvailableError, not_yet(config) + store_not_yet(store))
    return ResolvedBuild(
        name=config.name or "",
        store=store,
        seed=config.seed,
        sources=tuple(resolve_source(config, dataset) for dataset in config.datasets),
        pack=_pack(config),
        unit_size=config.source.unit_size,
        max_shard_size=save.max_shard_size,
        compression="zstd",
        hash_threads=config.source.hash_threads,
        num_shards=save.num_shards,
        store_options=plain_options(save.storage_options or {}),
    )


def resolve_mix(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> ResolvedMix:
    """Return the build from stored datasets that `config` asks for; see :mod:`tokenlake.config.steps`.

    Raises:
        ConfigError: something is missing or contradicts itself; the message lists everything.
        NotAvailableError: valid options that this release does not act on; the message lists everything.
    """
    store = store_of(config, environ)
    problems = nameless(config) + mix_problems(config) + store_problems(config, store)
    _raise(ConfigError, config.validate() + problems)
    _raise(NotAvailableError, not_yet(config) + mix_not_yet(config) + store_not_yet(store))
    return ResolvedMix(
        name=config.name or "",
        store=store,
        parents=tuple(resolved_parent(dataset) for dataset in config.datasets),
        mixture=resolved_mixture(config) if config.mixes else None,
        pack=_pack(config),
        max_shard_size=config.save.max_shard_size,
        compression="zstd",
        store_options=plain_options(config.save.storage_options or {}),
    )


def resolve_dataset(dataset: DatasetConfig) -> ResolvedSource:
    """Return the source of rows that a dataset asks for, on its own; a tokenizer need not be named.

    Raises:
        NotAvailableError: valid options that this release does not act on; the message lists everything.
    """
    pipeline = config_models.PipelineConfig(datasets=(dataset,))
    (named,) = pipeline.datasets
    _raise(NotAvailableError, source_not_yet(named))
    return resolve_source(pipeline, named)


def _pack(config: PipelineConfig) -> ResolvedPack | None:
    pack = config.pack
    if not pack.enabled:
        return None
    return ResolvedPack(
        seq_length=pack.seq_length,
        eos_token_id=pack.eos_token_id,
        pad_token_id=pack.pad_token_id,
        strategy=pack.strategy,
        window_tokens=pack.window_tokens,
        store_segment_ids=pack.store_segment_ids,
        include_segment_ids=pack.include_segment_ids,
        num_packers=pack.num_packers,
        max_segments=pack.max_segments,
        shuffle_seed=(config.seed or 0) if pack.shuffles else None,
    )


def _raise(kind: type[ConfigError], problems: list[str]) -> None:
    if problems:
        raise kind(_listed(problems), problems=problems)


def _listed(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems in the configuration\n" + "\n".join(f"  {line}" for line in problems)

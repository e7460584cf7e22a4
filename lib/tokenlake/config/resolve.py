"""From what a person wrote to what a build consumes: inheritance, defaults, and nothing ignored silently.

The functions here are pure but for the environment. Their results are the dataclasses of
:mod:`tokenlake.config.resolved`, which a worker imports without paying for the models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokenlake import config as config_models
from tokenlake.config.identity import identity, source_identity
from tokenlake.config.problems import nameless, not_yet, source_not_yet, text_problems
from tokenlake.config.resolved import ResolvedBuild, ResolvedPack, ResolvedSource, ResolvedTokenizer
from tokenlake.config.resolved_mix import ResolvedMix
from tokenlake.config.resolving_mix import mix_not_yet, mix_problems, resolved_mixture, resolved_parent
from tokenlake.config.resolving_source import resolve_source
from tokenlake.config.secret import plain_options
from tokenlake.config.stores import store_not_yet, store_of, store_problems
from tokenlake.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig

__all__ = [
    "ResolvedBuild",
    "ResolvedPack",
    "ResolvedSource",
    "ResolvedTokenizer",
    "identity",
    "resolve",
    "resolve_dataset",
    "resolve_mix",
    "resolve_source",
    "source_identity",
]


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

"""The parts of a build from stored datasets, each with its defaults worked out; what does not fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlake.config.resolved_mix import ResolvedMixture, ResolvedParent

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.mix_stage import MixStageConfig
    from tokenlake.config.pipeline import PipelineConfig


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

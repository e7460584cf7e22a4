"""Mix datasets of any kind in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenlake.errors import ConfigError
from tokenlake.rowwise.memory import RowsShardedSource, wrap_hf_dataset
from tokenlake.rowwise.mixed import MixedShardedSource
from tokenlake.rowwise.source import ShardedDataSource


def block_mixture_interleave(
    datasets: Mapping[str, Any] | Sequence[Any],
    weights: Mapping[str, float] | Sequence[float] | None = None,
    block_size: int = 1000,
    seed: int | None = None,
    stop: str = "restart",
) -> MixedShardedSource:
    """Mix datasets block by block; in every block the weights hold, and its rows are shuffled.

    Args:
        datasets: name to dataset, or a list of datasets. A dataset is a ``Dataset`` or ``IterableDataset`` of the
            `datasets` library, any source of ours, or a list of rows.
        weights: name to weight, or a list of weights in the order of the datasets; they sum to 1. None: equal ones.
            Datasets in a list are called as the weights are, in their order; without names source_0, source_1, ...
        block_size: rows of a block.
        seed: of the shuffle inside blocks; None is 0.
        stop: when a dataset ends: ``restart`` it, stop (``first_exhausted``), or go on with the others
            (``all_exhausted``).

    Returns:
        A source, whose rows say in ``__source__`` which dataset they are of: iterate over it, as often as you like,
        or use it wherever a source is taken. ``.drop_fields(["__source__"])`` leaves that field out.

    Raises:
        ConfigError: an argument is not what is allowed.
    """
    given = _named(datasets, weights)
    sources = {name: _source(name, dataset) for name, dataset in given.items()}
    return MixedShardedSource(
        sources, weights=_weighed(given, weights), block_size=block_size, seed=seed, stop_strategy=stop
    )


def _named(datasets: object, weights: object) -> dict[str, Any]:
    """Return the datasets by their names."""
    if isinstance(datasets, Mapping):
        return dict(cast("Mapping[str, Any]", datasets))
    if not isinstance(datasets, list | tuple):
        raise ConfigError(
            f"datasets: got a {type(datasets).__name__}, must be a mapping of name to dataset, or a list of datasets"
        )
    found = cast("Sequence[Any]", datasets)
    if not isinstance(weights, Mapping):
        return {f"source_{place}": dataset for place, dataset in enumerate(found)}
    names = list(cast("Mapping[str, float]", weights))
    _check_count(len(names), len(found))
    return dict(zip(names, found, strict=True))


def _weighed(datasets: Mapping[str, Any], weights: Any) -> Mapping[str, float] | None:
    """Return the weights by name."""
    if weights is None or isinstance(weights, Mapping):
        return weights
    if not isinstance(weights, list | tuple):
        raise ConfigError(
            f"weights: got a {type(weights).__name__}, must be a mapping of name to weight, a list of weights, or "
            "None for equal ones"
        )
    listed = cast("Sequence[float]", weights)
    _check_count(len(listed), len(datasets))
    return dict(zip(datasets, listed, strict=True))


def _check_count(weights: int, datasets: int) -> None:
    if weights != datasets:
        raise ConfigError(
            f"weights: got {weights} for {datasets} datasets, must be one each, in the order of the datasets",
            expected=datasets,
            got=weights,
        )


def _source(name: str, dataset: Any) -> ShardedDataSource:
    if isinstance(dataset, ShardedDataSource):
        return dataset
    try:
        if isinstance(dataset, list | tuple):
            return RowsShardedSource(cast("Sequence[Mapping[str, Any]]", dataset), name)
        return wrap_hf_dataset(dataset, name)
    except ConfigError as error:
        raise ConfigError(f"datasets, {name!r}: {error}", **error.details) from None

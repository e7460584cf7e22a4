"""The arguments of a mixture, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Final, cast

from tokenlake.config.near import did_you_mean, nearest
from tokenlake.errors import ConfigError
from tokenlake.mixing.schedule import WeightScheduler, constant
from tokenlake.sources.sharded.base import ShardedDataSource

STOP_STRATEGIES: Final = ("restart", "first_exhausted", "all_exhausted")


def named_sources(sources: object) -> dict[str, ShardedDataSource]:
    """Return sources by name; those in a list are source_0, source_1, ...; ConfigError if they are anything else."""
    if isinstance(sources, Mapping):
        named = dict(cast("Mapping[str, ShardedDataSource]", sources))
    elif isinstance(sources, list | tuple):
        listed = cast("Sequence[ShardedDataSource]", sources)
        named = {f"source_{place}": source for place, source in enumerate(listed)}
    else:
        raise ConfigError(
            f"sources: got a {type(sources).__name__}, must be a mapping of name to source, or a list of sources"
        )
    if not named:
        raise ConfigError("sources: got none, a mixture needs at least one")
    for name, source in named.items():
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"sources: got the name {name!r}, must be text that is not empty")
        if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"sources: {name!r} is a {type(source).__name__}, must be a source of rows, such as "
                "ParquetShardedSource; block_mixture_interleave also takes datasets and lists"
            )
    return named


def scheduler_of(
    names: tuple[str, ...], weights: Mapping[str, float] | None, scheduler: WeightScheduler | None
) -> WeightScheduler:
    """Return the weights, as they change; ConfigError unless they are of just these names."""
    if weights is not None and scheduler is not None:
        raise ConfigError("got weights and a weight_scheduler, must be one of them: a scheduler has weights")
    if scheduler is not None:
        if not isinstance(scheduler, WeightScheduler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"weight_scheduler: got a {type(scheduler).__name__}, must be a WeightScheduler"
            )
        _check_names("weight_scheduler", names, tuple(scheduler.names))
        return scheduler
    if weights is None:
        return constant(dict.fromkeys(names, 1 / len(names)))
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"weights: got a {type(weights).__name__}, must be a mapping of name to weight")
    _check_names("weights", names, tuple(weights))
    return constant({name: weights[name] for name in names})


def _check_names(what: str, names: tuple[str, ...], keys: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in keys]
    unknown = [key for key in keys if key not in names]
    if not missing and not unknown:
        return
    told = [f"no weight for {', '.join(map(repr, missing))}"] if missing else []
    told += [f"{key!r} is no source{_hint(key, names)}" for key in unknown]
    raise ConfigError(
        f"{what}: {'; '.join(told)}; weights must be of just the sources: {', '.join(names)}",
        missing=missing,
        unknown=unknown,
    )


def _hint(key: str, names: tuple[str, ...]) -> str:
    near = nearest(key, names)
    return "" if near is None else f" (did you mean {near!r}?)"


def stop_strategy_of(strategy: object) -> str:
    """Return a stop strategy; ConfigError, with the nearest one, if there is no such."""
    if strategy in STOP_STRATEGIES:
        return str(strategy)
    raise ConfigError(
        f"stop_strategy: got {strategy!r}, must be one of {', '.join(STOP_STRATEGIES)}"
        f"{did_you_mean(strategy, STOP_STRATEGIES)}",
        got=repr(strategy),
        expected=list(STOP_STRATEGIES),
    )


def whole_number(what: str, value: Any, least: int | None = None) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number, and one from `least` on."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{what}: got {value!r}, must be a whole number", got=repr(value))
    if least is not None and index(value) < least:
        raise ConfigError(f"{what}: got {value!r}, must be at least {least}", got=repr(value))
    return index(value)

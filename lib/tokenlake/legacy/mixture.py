"""Several datasets as one stream, described by one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, final

from tokenlake.config.near import did_you_mean
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.legacy.informs import TextDatasetInform, open_inform
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.batched import BatchedShardedSource
from tokenlake.sources.sharded.composite import CompositeShardedSource
from tokenlake.sources.sharded.mixed import MixedShardedSource

_ELSEWHERE: Final = {
    "shuffle_buffer_size": "blocks are shuffled by themselves, and a data loader shuffles what it loads",
    "pack_tokens": "pack with the `pack` stage of a Pipeline",
    "pack_on_the_fly": "tokenize and pack with the stages of a Pipeline",
    "tokenize_callback": "tokenize with the `tokenize` stage of a Pipeline, or with TokenizedShardedSource",
}


@final
@dataclass(frozen=True, slots=True)
class DatasetMixture:
    """Datasets, and how their rows become one stream; :func:`tokenlake.build_dataset` opens it.

    Attributes:
        informs: the datasets.
        streaming: mix them. False: one after the other, as they are, which takes no weights.
        text_target_field: field that gets every dataset's text.
        batch_size: above 1, rows come by the batch: {field: list of values}.
        seed: of the shuffle inside blocks; None is 0.
        block_mixture: mix by weights, in blocks of `mixture_block_size` rows. False: the datasets take turns, a row of
            each, until the first one ends.
        mixture_block_size: rows of a block.
        stop_strategy: when a dataset ends: ``restart`` it, stop (``first_exhausted``), or go on with the others
            (``all_exhausted``).
        mixture_weights: name to weight; they sum to 1; None: equal ones. Where the keys are the datasets' names, they
            go by name; where no dataset was given a name, they go by place, and name the datasets.
        shuffle_buffer_size, pack_tokens, pack_on_the_fly, tokenize_callback: not available here; other parts of
            the library do that.
    """

    informs: Sequence[TextDatasetInform]
    streaming: bool = True
    text_target_field: str = "text"
    batch_size: int = 1
    seed: int | None = 42
    block_mixture: bool = True
    mixture_block_size: int = 2048
    stop_strategy: str = "restart"
    mixture_weights: Mapping[str, float] | None = None
    shuffle_buffer_size: int | None = None
    pack_tokens: bool = False
    pack_on_the_fly: bool = False
    tokenize_callback: Callable[[dict[str, Any]], Any] | None = None

    def __post_init__(self) -> None:
        """Check what needs no file.

        Raises:
            ConfigError: an option is not what is allowed, or does not go with another.
            NotAvailableError: an option that other parts of the library stand for.
        """
        _check_informs(self.informs)
        for field in fields(self):
            if field.name in _ELSEWHERE and getattr(self, field.name):
                raise NotAvailableError(
                    f"DatasetMixture: {field.name} is not available here: {_ELSEWHERE[field.name]}; leave it out"
                )
        _check_switches(self)
        _names(self)

    def build(self) -> ShardedDataSource:
        """Return the rows, as :func:`tokenlake.build_dataset` does."""
        return open_mixture(self)


def open_mixture(mixture: DatasetMixture) -> ShardedDataSource:
    """Return the rows of a mixture: dicts with the text, the fields kept, and ``__source__`` where they are mixed.

    Raises:
        ConfigError: an option of a dataset is not what is allowed, or weights do not sum to 1.
        SourceNotFoundError: files of a dataset are not there.
    """
    target = mixture.text_target_field
    sources = {
        name: open_inform(inform, target)
        for name, inform in zip(_names(mixture), mixture.informs, strict=True)
    }
    if not mixture.streaming:
        return CompositeShardedSource(list(sources.values()))
    mixed = _mixed(mixture, sources)
    return mixed if mixture.batch_size == 1 else BatchedShardedSource(mixed, mixture.batch_size)


def _mixed(mixture: DatasetMixture, sources: Mapping[str, ShardedDataSource]) -> MixedShardedSource:
    if not mixture.block_mixture:  # a block holds one row of each
        return MixedShardedSource(
            sources, block_size=len(sources), seed=mixture.seed, stop_strategy="first_exhausted"
        )
    return MixedShardedSource(
        sources,
        weights=mixture.mixture_weights,
        block_size=mixture.mixture_block_size,
        seed=mixture.seed,
        stop_strategy=mixture.stop_strategy,
    )


def _check_informs(informs: object) -> None:
    if not isinstance(informs, list | tuple) or not informs:
        raise ConfigError(
            f"DatasetMixture: informs: got {informs!r:.80}, must be a list of at least one TextDatasetInform"
        )
    for place, inform in enumerate(informs):
        if not isinstance(inform, TextDatasetInform):
            raise ConfigError(
                f"DatasetMixture: informs: number {place} is a {type(inform).__name__}, must be a TextDatasetInform"
            )


def _check_switches(mixture: DatasetMixture) -> None:
    weighs = mixture.streaming and mixture.block_mixture
    if mixture.mixture_weights is not None and not weighs:
        off = "streaming" if not mixture.streaming else "block_mixture"
        raise ConfigError(
            f"DatasetMixture: mixture_weights have no meaning with {off}=False; set {off}=True to mix by weights, or "
            "leave them out"
        )
    if mixture.batch_size != 1 and not mixture.streaming:
        raise ConfigError(
            f"DatasetMixture: batch_size: got {mixture.batch_size!r} with streaming=False, which gives single rows; "
            "leave it out, and make batches when loading"
        )


def _names(mixture: DatasetMixture) -> tuple[str, ...]:
    """Return what the datasets are called, one name each."""
    auto = tuple(f"dataset_{place}" for place in range(len(mixture.informs)))
    names = tuple(inform.name or name for inform, name in zip(mixture.informs, auto, strict=True))
    if len(set(names)) < len(names):
        raise ConfigError(f"DatasetMixture: informs: got the names {list(names)}, must be different ones")
    weights = mixture.mixture_weights
    if weights is None or set(weights) == set(names):
        return names
    if names == auto and len(weights) == len(names) and not set(weights) & set(names):
        return tuple(weights)
    raise _not_matching(names, tuple(weights), named=names != auto)


def _not_matching(names: tuple[str, ...], keys: tuple[str, ...], *, named: bool) -> ConfigError:
    unknown = [key for key in keys if key not in names]
    hint = did_you_mean(unknown[0], [name for name in names if name not in keys]) if unknown else ""
    by_place = "" if named else ", or one weight each under names of your own, in the order of the datasets"
    return ConfigError(
        f"DatasetMixture: mixture_weights: got weights for {', '.join(keys) or 'nothing'}, must be for "
        f"{', '.join(names)}{by_place}{hint}",
        got=list(keys),
        expected=list(names),
    )

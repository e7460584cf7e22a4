"""Loaders of a training run, made from its configuration.

They deliver the training data and the held-out sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch_sizes import BatchSizes
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.dataset import open as open_dataset
from tokenlake.runtime.loader.loader import DataLoader
from tokenlake.runtime.loader.mixture import Mixture
from tokenlake.runtime.trainer.config import HeldOutSet, TrainingConfig
from tokenlake.runtime.trainer.data_config import MixtureConfig, TrainingData

_COLUMNS: Final = ("input_ids", "segment_ids", "positions", "targets")
"""Columns that a language model is given."""
_OF_PREFERENCES: Final = ("dpo", "orpo", "kto")
"""Losses of preference datasets, whose batches have all of their columns."""


def make_loader(config: TrainingConfig, sharding: Any | None = None) -> DataLoader:
    """Return the loader of the training data that section `data` describes.

    Args:
        config: Configuration with section `data`.
        sharding: ``jax.sharding.Sharding`` of the batches; None: batches are numpy
            arrays.

    Raises:
        ConfigError: Section `data` is missing, or an option does not fit the data.

    Example:
        >>> from tokenlake import load_training_config
        >>> from tokenlake.trainer import make_loader
        >>> config = load_training_config({"data": {"dataset": "artifacts/books", "batch_size": {0: 4, 100: 8}}})
        >>> loader = make_loader(config)
        >>> next(iter(loader))["targets"].shape
        (4, 64)
    """
    data = _data_of(config)
    options: dict[str, Any] = {
        **data.loader_options,
        "columns": _columns_of(config, data),
    }
    loader = DataLoader(_opened(data), data.batch_size, sharding=sharding, **options)
    # Set one by one as during a run, so that the state of the loader records each of
    # them.
    if data.mixture is not None:
        for change in data.mixture.weight_changes:
            loader.set_weights(data.mixture.all_weights(change), at=change.step)
    return loader


def make_held_out_loaders(
    config: TrainingConfig, sharding: Any | None = None
) -> dict[str, DataLoader]:
    """Return tag -> loader of each held-out set of section `evaluation`.

    Rows are read in stored order, once. Columns, padding and layout are those of the
    training data, because the model is the same.

    Args:
        config: Configuration with section `data`.
        sharding: ``jax.sharding.Sharding`` of the batches; None: batches are numpy
            arrays.

    Raises:
        ConfigError: Section `data` is missing; or held-out documents are requested, and
            the data has none.
    """
    data = _data_of(config)
    loaders: dict[str, DataLoader] = {}
    for tag, held_out_set in _held_out_sets(config, data).items():
        rows = open_dataset(held_out_set.dataset, split=held_out_set.split)
        loaders[tag] = DataLoader(
            rows,
            held_out_set.batch_size or BatchSizes.of(data.batch_size).first,
            shuffle=False,
            epochs=1,
            columns=_columns_of(config, data),
            padding=data.padding,
            layout=data.layout,
            sharding=sharding,
        )
    return loaders


def _data_of(config: TrainingConfig) -> TrainingData:
    """Return section `data`; ConfigError if it is missing."""
    if config.data is None:
        raise ConfigError(
            "data: required, but missing; expected data: {dataset: STORE/NAME, batch_size: 8}"
        )
    return config.data


def _columns_of(config: TrainingConfig, data: TrainingData) -> tuple[str, ...] | None:
    """Return the columns of a batch.

    They are those that are configured, or those that the loss needs.
    """
    # A model of preferences takes all columns of both answers; None requests all.
    if data.columns is not None:
        return data.columns
    if config.loss.name in _OF_PREFERENCES:
        return None
    return _COLUMNS


def _opened(data: TrainingData) -> Dataset | Mixture:
    """Return the dataset or the mixture that section `data` names."""
    datasets: dict[str, Dataset] = {}
    for source_name, source in data.sources.items():
        datasets[source_name] = open_dataset(source.dataset, split=source.split)
    if data.mixture is None:
        return datasets[data.split]
    return _mixture_of(data.mixture, datasets)


def _mixture_of(config: MixtureConfig, datasets: Mapping[str, Dataset]) -> Mixture:
    """Return the mixture of a configuration, without the changes of its weights."""
    return Mixture(
        datasets,
        config.scheduler(),
        stop=config.stop,
        rows=config.rows,
        block_size=config.block_size,
        step_rows=config.step_rows,
        weights_by=config.weights_by,
        order=config.order,
        **config.caps,
    )


def _held_out_sets(
    config: TrainingConfig, data: TrainingData
) -> Mapping[str, HeldOutSet]:
    """Return tag -> held-out set.

    They are those of `evaluation.sets`, and with `held_out` those of the training data.
    Documents that a source of a mixture holds out have the tag ``SOURCE.TAG``.
    """
    evaluation = config.evaluation
    if not evaluation.held_out:
        return evaluation.sets
    # The manifest of a version names the splits that it holds out; only it is read
    # here.
    held_out_sets: dict[str, HeldOutSet] = {}
    versions: list[str] = []
    for source_name, source in data.sources.items():
        manifest = open_dataset(source.dataset, split=source.split).manifest
        versions.append(f"{manifest.dataset}@v{manifest.version}")
        for tag, split in manifest.held_out.items():
            # Sources may hold out sets of the same tag.
            if data.mixture is not None:
                tag = f"{source_name}.{tag}"
            held_out_sets[tag] = HeldOutSet(dataset=source.dataset, split=split)
    if not held_out_sets:
        raise ConfigError(
            f"evaluation.held_out: true, but {' and '.join(versions)} holds no documents out; expected a version that "
            "is built with `eval` of its datasets, such as datasets: [{name: code, eval: 500, ...}]. What the parents "
            "of a mixture hold out is packed by itself: datasets: [{name: code, dataset: NAME.code.tokens, split: "
            "eval_code}]; name the result in evaluation.sets"
        )
    # A configured set replaces one of the same tag.
    return held_out_sets | evaluation.sets

"""A configuration that mixes text is several builds: the tokens of each source first, then the mixture of these.

Both are configurations like any other, so whoever can run one can run the steps: the library in a loop, a flow as
flows of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.mix import MixStageConfig
from tokenlake.config.pipeline import CardConfig, PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.config.section import DATASET_NAME
from tokenlake.config.stages import PackStageConfig, SaveStageConfig
from tokenlake.errors import ConfigError, NotAvailableError

_SPLIT: Final[str] = DatasetConfig.model_fields["split"].get_default()


def first_steps(config: PipelineConfig) -> dict[str, PipelineConfig]:
    """Return source -> the configuration that makes its `tokens` dataset, for every source that is text still.

    Raises:
        ConfigError: a source's name makes no name of a dataset, or packing without a mixture is asked of text and
            stored tokens at once.
        NotAvailableError: the tokens are not to be kept.
    """
    if config.is_text_build or config.retokenized is not None:
        return {}
    texts = [dataset for dataset in config.datasets if dataset.dataset is None or dataset.retokenize]
    if len(texts) < len(config.datasets) and texts and not config.mixes:
        raise ConfigError(
            f"datasets.{texts[0].name}: is text, and other datasets are stored ones: without a mixture they are not "
            "one build. Add a section mix, or build the text first and name the result as `dataset`"
        )
    if texts and config.tokenize.cache_tokenized is False:
        raise NotAvailableError(
            "tokenize.cache_tokenized: False is not available yet where text is mixed; today: the tokens of each "
            "source are kept as {name}.{source}.tokens, from which any other mixture is made without tokenizing again"
        )
    return {dataset.name or "": _tokens_of(config, dataset) for dataset in texts}


def last_step(config: PipelineConfig, versions: Mapping[str, int]) -> PipelineConfig:
    """Return the configuration of the rest, once the first steps are done.

    Args:
        versions: source -> version of its `tokens` dataset.
    """
    datasets = tuple(
        DatasetConfig(
            name=dataset.name,
            dataset=f"{tokens_name(config, dataset)}@v{versions[dataset.name or '']}",
            # Of text it says what to read of a dataset of the Hub.
            split=dataset.split if dataset.retokenize else _SPLIT,
        )
        if dataset.name in versions
        else dataset
        for dataset in config.datasets
    )
    return config.model_copy(update={"datasets": datasets})


def foreseen(config: PipelineConfig) -> ResolvedBuild:
    """Return the last step as it will be, before the first ones are done: what is wrong with a mixture must not be said
    after hours of tokens. Their versions are not known yet and stand there as 1.

    Raises:
        ConfigError, NotAvailableError: as of :func:`first_steps` and :func:`tokenlake.config.resolve.resolve`.
    """
    return resolve(last_step(config, dict.fromkeys(first_steps(config), 1)))


def tokens_name(config: PipelineConfig, dataset: DatasetConfig) -> str:
    """Return the name of the `tokens` dataset of one source: ``{name}.{source}.tokens``."""
    if config.name is None:
        raise ConfigError("name: missing. A mixture needs a name, from which the names of its parts are made")
    name = f"{config.name}.{(dataset.name or '').lower()}.tokens"
    if not re.fullmatch(DATASET_NAME, name):
        raise ConfigError(
            f"datasets.{dataset.name}.name: makes {name!r} the name of its tokens in the store, which is too long or "
            "has letters that no dataset's name may have; at most 64 of a-z, 0-9, '.', '_' and '-'. Shorten `name` "
            "or the source's"
        )
    return name


def _tokens_of(config: PipelineConfig, dataset: DatasetConfig) -> PipelineConfig:
    """The same source, alone and unpacked; long documents are kept where packing, which comes later, keeps them.

    Exports are of the whole: they are made when everything is committed.
    """
    tokenize = config.tokenize
    if config.long_documents_of(dataset) == "keep":
        tokenize = tokenize.model_copy(update={"long_documents": "keep"})
        dataset = dataset.model_copy(update={"long_documents": None})
    if dataset.retokenize:  # all of its splits; the mixture takes one
        dataset = dataset.model_copy(update={"split": _SPLIT})
    usual, exported = SaveStageConfig(), ("save_path", "save_format", "shard_column")
    exports = ("num_shards", "format", "compression", "push_to_hub", "hub_repo_id", "hub_token")
    return config.model_copy(
        update={
            "name": tokens_name(config, dataset),
            "datasets": (dataset.model_copy(update=dict.fromkeys(exported)),),
            "tokenize": tokenize,
            "mix": MixStageConfig(),
            "pack": PackStageConfig(),
            "card": CardConfig(),
            "save": config.save.model_copy(update={name: getattr(usual, name) for name in exports}),
        }
    )

"""The stage `tokenize`: rows of text to rows of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.config.lengths import long_documents
from tokenlake.config.tokenizer import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.context import ChosenTokenizer, PipelineContext
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.tokenized import TokenizedShardedSource, how_to_tokenize
from tokenlake.sources.sharded.tokenrows import TokenRows
from tokenlake.tokenizers.manager import TokenizerManager

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig

_DEFAULT_FIELD: Final = "text"


@final
class TokenizeStage(BaseStage):
    """Wraps every source in a :class:`TokenizedShardedSource`: tokenizers are loaded, rows are not read."""

    @property
    def name(self) -> str:
        return "tokenize"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the sources as rows of tokens, each with its own tokenizer.

        Raises:
            ConfigError: a source has no tokenizer.
            NotAvailableError: an option that a pipeline does not act on is set.
            SourceNotFoundError, TokenizerError: a tokenizer cannot be had.
        """
        check_stage(context.config, "tokenize")
        manager = TokenizerManager()
        made: dict[str, ShardedDataSource] = {}
        for name, source in data.items():
            options = chosen_tokenizer(context.config, context.dataset(name), name)
            loaded = manager.get_tokenizer(options.name_or_path)
            context.tokenizers[name] = chosen = ChosenTokenizer(loaded, options)
            made[name] = _tokenized(source, chosen, context, name)
        return made


def chosen_tokenizer(config: PipelineConfig, dataset: DatasetConfig | None, name: str) -> TokenizerConfig:
    """Return the tokenizer of a source: the dataset's, else the stage's, else the pipeline's, with its `max_length`."""
    own = None if dataset is None else dataset.tokenizer
    choice = own or config.tokenize.default_tokenizer or config.default_tokenizer
    if choice is None:
        raise ConfigError(
            f"datasets.{name}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is set; "
            "write a Hub id, a directory or a tokenizer.json file"
        )
    options = TokenizerConfig(name_or_path=choice) if isinstance(choice, str) else choice
    return options.model_copy(update={"max_length": options.max_length or config.tokenize.max_length})


def _tokenized(
    source: ShardedDataSource, chosen: ChosenTokenizer, context: PipelineContext, name: str
) -> ShardedDataSource:
    dataset, stage = context.dataset(name), context.config.tokenize
    how = how_to_tokenize(
        chosen.loaded,
        chosen.options,
        content_field=_DEFAULT_FIELD if dataset is None else dataset.content_field,
        additional_fields=None if dataset is None else dataset.additional_fields,
        format_callback=None,  # applied already, as the source was opened
        format_fields=None,
        remove_columns=stage.remove_columns,
        batch_size=stage.batch_size,
        arrays=True,
    )
    policy = _policy(context, name)
    tokens = TokenizedShardedSource.deciding(source, _Deciding(how, context, name))
    return tokens.filter(_Shorter(chosen.options.max_length or 0)) if policy == "drop" else tokens


def _policy(context: PipelineContext, name: str) -> str:
    """Return what becomes of documents above `max_length`: whether rows are packed is known when they are drawn."""
    config, dataset = context.config, context.dataset(name)
    packing = config.pack.model_copy(update={"enabled": context.packing})
    config = config.model_copy(update={"pack": packing})
    if dataset is None:
        dataset = config.datasets[0].model_copy(update={"tokenizer": None, "long_documents": None})
    return long_documents(config, dataset)[0]


@final
class _Deciding:
    """How to tokenize: documents are cut unless packing follows, in which case rows hold them whole."""

    def __init__(self, how: TokenRows, context: PipelineContext, name: str) -> None:
        self._context, self._name = context, name
        self._hows = {cut: replace(how, config=_cutting(how.config, cut)) for cut in (False, True)}

    def __call__(self) -> TokenRows:
        return self._hows[_policy(self._context, self._name) == "truncate"]


def _cutting(options: TokenizerConfig, cut: bool) -> TokenizerConfig:
    return options.model_copy(update={"truncation": cut})


@final
class _Shorter:
    """Whether a row has at most so many tokens."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, row: Row) -> bool:
        return len(row["input_ids"]) <= self._most

"""The stage `tokenize`: rows of text to rows of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from tokenlake.config.lengths import contradictions
from tokenlake.config.tokenizer import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.caching import cached
from tokenlake.pipeline.context import ChosenTokenizer, PipelineContext
from tokenlake.pipeline.rowencoding import RowEncoding
from tokenlake.pipeline.rowtokens import RowTokens, Wanted
from tokenlake.pipeline.settling import resolved
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.tokenized import TokenizedShardedSource
from tokenlake.tokenizers.manager import TokenizerManager

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig


@final
class TokenizeStage(BaseStage):
    """Wraps every source in a :class:`TokenizedShardedSource`: tokenizers are loaded, rows are not read."""

    @property
    def name(self) -> str:
        return "tokenize"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the sources as rows of tokens, each with its own tokenizer.

        Where one of the datasets has conversations or prompts, of which a part bears loss, all rows have a
        ``loss_mask``.

        Raises:
            ConfigError: a source has no tokenizer, or options contradict each other.
            NotAvailableError: an option that a pipeline does not act on is set.
            SourceNotFoundError, TokenizerError: a tokenizer cannot be had.
        """
        config = context.config
        check_stage(config, "tokenize")
        if problems := contradictions(config):
            raise ConfigError("\n".join(problems), problems=problems)
        manager = TokenizerManager()
        for name in data:
            options = chosen_tokenizer(config, context.dataset(name), name)
            context.tokenizers[name] = ChosenTokenizer(manager.get_tokenizer(options.name_or_path), options)
        masked = any(
            resolved(config, context.dataset(name), name, packing=False).texts.masked for name in data
        )
        return {name: _tokens(source, name, context, masked=masked) for name, source in data.items()}


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


def _tokens(
    source: ShardedDataSource, name: str, context: PipelineContext, *, masked: bool
) -> ShardedDataSource:
    tokens = TokenizedShardedSource.deciding(source, _Deciding(source, name, context, masked=masked))
    dataset, stage = context.dataset(name), context.config.tokenize
    kept = dataset.additional_fields if dataset is not None else None
    batch = stage.batch_size if context.tokenizers[name].options.padding == "longest" else None
    wanted = {"masked": masked, "kept": kept, "removed": stage.remove_columns, "batch_size": batch}
    return cached(tokens, source, name, context, wanted)


@final
class _Deciding:
    """How to tokenize a source, decided when rows are drawn: only then is it known whether packing follows."""

    def __init__(
        self, source: ShardedDataSource, name: str, context: PipelineContext, *, masked: bool
    ) -> None:
        self._source, self._name, self._context = source, name, context
        self._masked = masked
        self._made: dict[bool, RowTokens] = {}

    def __call__(self) -> RowTokens:
        packing = self._context.packing
        if packing not in self._made:
            self._made[packing] = self._make(packing)
        return self._made[packing]

    def _make(self, packing: bool) -> RowTokens:
        config, dataset = self._context.config, self._context.dataset(self._name)
        chosen = self._context.tokenizers[self._name]
        files = chosen.loaded.files
        eos = files.eos_id if config.pack.eos_token_id is None else config.pack.eos_token_id
        kept = None if dataset is None else dataset.additional_fields
        remove = config.tokenize.remove_columns
        wanted = Wanted(
            options=chosen.options,
            masked=self._masked,
            keep=() if kept is None and remove is None else kept,
            remove=frozenset(remove or ()),
            batch_size=config.tokenize.batch_size,
            workers=config.tokenize.num_workers,
        )
        source = resolved(config, dataset, self._name, packing=packing)
        encoding = RowEncoding(files, eos_id=eos, packing=packing)
        return RowTokens(self._source, source, chosen.loaded, encoding, wanted)

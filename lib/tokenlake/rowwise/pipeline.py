"""The fluent pipeline: six stages, each of which wraps the sources it gets; rows are drawn in the end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, permutations, product
from typing import Any, Final, cast, final

from tokenlake.base.checks import expected
from tokenlake.base.section import plain_options
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import ConfigSource, load_config
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
from tokenlake.config.refusals import output_problems, raise_problems, truncation_problems
from tokenlake.config.stages import (
    LoadStageConfig,
    PackStageConfig,
    SaveStageConfig,
    SourceStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
)
from tokenlake.errors import ConfigError
from tokenlake.etl.export.directory import FolderTarget, Target, require_apart
from tokenlake.etl.export.plan import hub_token
from tokenlake.etl.export.push import push_directories
from tokenlake.etl.observability import observed_batches
from tokenlake.etl.publish import HubRepository
from tokenlake.etl.tokenizers.manager import LoadedTokenizer
from tokenlake.rowwise.cached_tokens import cached
from tokenlake.rowwise.combine import PackedShardedSource, TokenLimitedSource
from tokenlake.rowwise.files import open_dataset
from tokenlake.rowwise.loader import AsyncDataLoader
from tokenlake.rowwise.mixed import MixedShardedSource
from tokenlake.rowwise.save import SavedShardedSource, create_writer
from tokenlake.rowwise.shards import section
from tokenlake.rowwise.source import LimitedShardedSource, ShardedDataSource
from tokenlake.rowwise.stage import BaseStage, PipelineContext
from tokenlake.rowwise.stage_order import check_config, check_order
from tokenlake.rowwise.tokenized import RowTokens, TokenizedShardedSource, texts_of
from tokenlake.runtime.mixing.schedule import WeightScheduler

Sources = Mapping[str, ShardedDataSource]
"""Name of a dataset, or of what a stage made of several, to its rows."""

_MIXED: Final = "mixed"
_DEFAULT_OUTPUT: Final = "./output"


class _OwnStage(BaseStage):
    """A stage that is called as its section of the configuration, which is the first word of its class.

    What it was made with goes in the place of the whole section; None: the context's own.
    """

    @property
    def name(self) -> str:
        return type(self).__name__.removesuffix("Stage").lower()

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, Any]:
        """Return what the stage makes of the sources; where ``enabled: false`` is written out, they stay as they are.

        Raises:
            ConfigError: the configuration contradicts itself, also as each class says.
            NotAvailableError: an option that a pipeline does not act on is set.
        """
        own = getattr(context.config, self.name)
        if self.config is not None:
            own = section(type(own), self.config, self.name)
            context.config = context.config.model_copy(update={self.name: own})
        if "enabled" in own.model_fields_set and not own.enabled:
            return dict(data)
        check_config(context.config, self.name)
        return self._made(data, context)

    @abstractmethod
    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, Any]: ...


@final
class SourceStage(_OwnStage):
    """Opens every dataset: files are listed, rows are not read."""

    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the rows of every dataset; SourceNotFoundError where an entry of `data_files` matches nothing."""
        config = context.config
        context.opened = {dataset.name or "": open_dataset(config, dataset) for dataset in config.datasets}
        return context.opened


@final
class TokenizeStage(_OwnStage):
    """Wraps every source in a :class:`TokenizedShardedSource`: tokenizers are loaded, rows are not read."""

    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the sources as rows of tokens, each with its own tokenizer.

        Where one of the datasets has conversations or prompts, of which a part bears loss, all rows have a
        ``loss_mask``.

        Raises:
            ConfigError: a source has no tokenizer, or options contradict each other.
            SourceNotFoundError, TokenizerError: a tokenizer cannot be loaded.
        """
        config = context.config
        raise_problems(ConfigError, truncation_problems(config))
        for name in data:  # by the dataset's tokenizer, else the stage's, else the pipeline's
            choice = config.tokenizer_of(context.dataset(name))
            if choice is None:
                why = "missing, and neither tokenize.default_tokenizer nor default_tokenizer is set"
                raise ConfigError(f"datasets.{name}.tokenizer: {why}; write a Hub id or a path")
            options = TokenizerConfig(name_or_path=choice) if isinstance(choice, str) else choice
            limit = {"max_length": options.max_length or config.tokenize.max_length}
            files = context.get_tokenizer(options.name_or_path).files
            context.tokenizers[name] = LoadedTokenizer(files, options.model_copy(update=limit))
        texts = [texts_of(context.config_with_packing(False), context.dataset(name), name) for name in data]
        masked = any(source.texts.masked for source in texts)
        return {name: _tokens(source, name, context, masked=masked) for name, source in data.items()}


def _tokens(
    source: ShardedDataSource, name: str, context: PipelineContext, *, masked: bool
) -> ShardedDataSource:
    dataset, stage = context.dataset(name), context.config.tokenize
    chosen, eos = context.tokenizers[name], context.config.pack.eos_token_id
    kept = None if dataset is None else dataset.additional_fields
    ends = chosen.files.eos_id if eos is None else eos

    @cache
    def tokens(packing: bool) -> RowTokens:
        return RowTokens(
            source=texts_of(context.config_with_packing(packing), context.dataset(name), name),
            tokenizer=chosen,
            keep=kept,
            remove=stage.remove_columns,
            loss=True if masked else None,
            batch_size=stage.batch_size,
            workers=stage.num_workers,
            eos_id=ends,
            packing=packing,
        )

    batch = stage.batch_size if chosen.config.padding == "longest" else None
    wanted = {"masked": masked, "kept": kept, "removed": stage.remove_columns, "batch_size": batch}
    # Only when rows are drawn is it known whether packing follows.
    made = TokenizedShardedSource.deciding(source, lambda: tokens(context.packing))
    return cached(made, source, name, context, wanted)


@final
class MixStage(_OwnStage):
    """Makes one :class:`MixedShardedSource` of all sources."""

    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return ``{"mixed": mixture}``; a single source stays as it is where the section says nothing but defaults.

        Raises:
            ConfigError: weights are of other names than the sources, or sources have different tokenizers.
        """
        mix = context.config.mix
        if len(data) == 1 and not context.config.mixes:
            return data
        _share_tokenizer(data, context)
        mixed = MixedShardedSource(
            data,
            weights=None if mix.weight_schedule else mix.weights,
            block_size=mix.block_size,
            seed=context.seed if mix.seed is None else mix.seed,
            stop_strategy=mix.stop_strategy,
            weight_scheduler=_schedule(mix, mix.batch_size),
        )
        if mix.weight_schedule and mix.step_rows is None:
            context.stepped = lambda rows: mixed.reschedule(_schedule(mix, rows))
        if mix.total_rows is not None:
            return {_MIXED: LimitedShardedSource(mixed, mix.total_rows)}
        return {_MIXED: mixed if mix.total_tokens is None else TokenLimitedSource(mixed, mix.total_tokens)}


def _schedule(mix: MixStageConfig, batch_size: int) -> WeightScheduler | None:
    """Return the weights along the rows of the mixture; a step is `step_rows` of them, else a batch."""
    rows = mix.step_rows or batch_size
    points = [{"step": point.step * rows, "weights": point.weights} for point in mix.weight_schedule or ()]
    return WeightScheduler(points, mix.weight_schedule_type) if points else None


def _share_tokenizer(data: Mapping[str, Any], context: PipelineContext) -> None:
    """Let the mixture have the tokenizer of its sources: in one stream of ids an id must mean one thing."""
    chosen = {name: context.tokenizers[name] for name in data if name in context.tokenizers}
    if not chosen:
        return
    first, *others = chosen
    for other in others:
        if chosen[first].files.json_bytes != chosen[other].files.json_bytes:
            names = [chosen[name].config.name_or_path for name in (first, other)]
            why = f"{first!r} and {other!r} are tokenized by two tokenizers, {names[0]!r} and {names[1]!r}"
            raise ConfigError(f"mix: {why}; in one stream an id must mean one thing. Use one tokenizer")
    context.tokenizers[_MIXED] = chosen[first]


@final
class PackStage(_OwnStage):
    """Wraps every source in a :class:`PackedShardedSource`."""

    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the sources packed, each by itself.

        Rows that hold ``input_ids`` already are packed as they are, with ``pack.eos_token_id``, or the EOS of the
        tokenizer that is named for them.

        Raises:
            ConfigError: no EOS is known, or a dataset pads its documents or keeps fields beside them.
            SourceNotFoundError, TokenizerError: that tokenizer cannot be loaded.
        """
        config, pack = context.config_with_packing(True), context.config.pack
        problems: list[str] = []
        for dataset in config.datasets:
            if (known := context.tokenizers.get(dataset.name or "")) is not None:
                problems += output_problems(config, dataset, known.config)
        raise_problems(ConfigError, problems + truncation_problems(config))
        made: dict[str, ShardedDataSource] = {}
        for name, source in data.items():
            ends = context.tokenizers.get(name)
            choice = config.tokenizer_of(context.dataset(name)) if ends is None else None
            if choice is not None and pack.eos_token_id is None:
                ends = context.get_tokenizer(choice if isinstance(choice, str) else choice.name_or_path)
            made[name] = PackedShardedSource(source, pack, tokenizer=ends, seed=context.seed)
        context.packed, context.regrouped = True, context.stepped is not None
        return made


@final
class SaveStage(_OwnStage):
    """Wraps every source in a :class:`SavedShardedSource`."""

    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the sources, each to be written to a directory of its own and read back from there.

        A dataset's directory is its `save_path`; else `output_dir` where there is one source, and ``output_dir/name``
        where there are several. With `push_to_hub` they are uploaded once all are written.

        Raises:
            ConfigError: a target may not be written, two are the same, one holds an input, or a source is endless.
        """
        config, save = context.config, context.config.save
        for dataset in config.datasets:
            own = [field for field in ("save_path", "save_format", "num_shards") if getattr(dataset, field)]
            if own and dataset.name not in data:
                why = f"set, but what is saved is {', '.join(map(repr, data))}"
                raise ConfigError(
                    f"datasets.{dataset.name}.{own[0]}: {why}; save datasets before they are mixed"
                )
        targets: dict[str, Target] = {}
        made: dict[str, SavedShardedSource] = {}
        for name, source in data.items():
            if source.endless:
                why = "never ends, because mix.stop_strategy 'restart' starts exhausted sources again"
                raise ConfigError(f"save: {name!r} {why}; set mix.total_rows, or another stop_strategy")
            made[name], targets[name] = _saved(name, source, context, alone=len(data) == 1)
        _require_apart(targets, config)
        context.saved += made.values()
        if save.push_to_hub:
            if away := [target.url for target in targets.values() if not isinstance(target, FolderTarget)]:
                why = f"{away[0]} is not on this machine"
                raise ConfigError(f"save.push_to_hub: {why}; save to a path, and push that")
            repository, token = save.hub_repo_id or "", hub_token(save)
            # An error now if it is none, or there is no token.
            HubRepository(repository, token=token)
            folders = {name: target.url for name, target in targets.items()}
            options = {"public": not save.hub_private, "token": token}
            context.push = partial(push_directories, folders, repository, **options)
        return made


def _saved(
    name: str, source: ShardedDataSource, context: PipelineContext, *, alone: bool
) -> tuple[SavedShardedSource, Target]:
    """Return a source that is to be saved, and its directory."""
    save, dataset = context.config.save, context.dataset(name)
    own = {field: getattr(dataset, field, None) for field in ("save_path", "save_format", "num_shards")}
    # As text: a path object would make a path of a URL, which is none.
    folder = save.output_dir or _DEFAULT_OUTPUT
    num_shards = own["num_shards"] or save.num_shards
    make = partial(
        create_writer,
        own["save_path"] or (folder if alone else f"{folder}/{name}"),
        own["save_format"] or save.format,
        None if num_shards else save.max_shard_size,
        num_shards,
        # The stage's compression is that of its format: a dataset of another one has the usual.
        save.compression if own["save_format"] in (None, save.format) else None,
        save.overwrite,
        storage_options=plain_options(save.storage_options or {}),
        origin=context.origin(name),
    )
    return SavedShardedSource(source, own["save_format"] or save.format, make), make().target


def _require_apart(targets: Mapping[str, Target], config: PipelineConfig) -> None:
    """Raise ConfigError if one target lies in another, or holds an input."""
    for (name, target), (other, path) in permutations(targets.items(), 2):
        if target.is_within(path.url):
            why = f"{name!r} would be written to {target.url} and {other!r} to {path.url}, one in the other"
            raise ConfigError(f"save: {why}; give each dataset a save_path of its own")
    for target, dataset in product(targets.values(), config.datasets):
        require_apart("save", target, dataset.all_files)


@final
class LoadStage(_OwnStage):
    """Puts an :class:`AsyncDataLoader` before every source."""

    def _made(self, data: Mapping[str, Any], context: PipelineContext) -> dict[str, AsyncDataLoader]:
        """Return a loader of each source.

        Rows of different lengths, which there are where nothing is packed or padded, are filled up with the padding
        token of their tokenizer (else its EOS) to the longest of each batch.

        Steps of a schedule of weights are training steps, of as many rows as a batch, unless ``mix.step_rows`` is set;
        where packed rows are mixed, too. Where mixed documents are packed, a step takes as many as fill its rows, which
        is known only when they have been drawn.

        Raises:
            ConfigError: rows are packed after they are mixed by a schedule, and `mix.step_rows` is not set.
            MissingExtraError: batches on devices are asked for, and jax is not installed.
        """
        load = context.config.load
        if context.stepped is not None:
            if context.regrouped:
                why = "Documents are packed after they are mixed, so that a training step takes no fixed number of them"
                how = "call pack() before mix(), where it takes a batch of rows, or say how many, as step_rows: 256"
                raise ConfigError(f"mix.step_rows: missing. {why}; {how}")
            context.stepped(load.batch_size)
        made: dict[str, AsyncDataLoader] = {}
        for name, source in data.items():
            options = load.model_dump()
            if (chosen := context.tokenizers.get(name)) is not None and not context.packed:
                side = "left" if chosen.pads_left(chosen.config) else "right"
                options |= {"pad_token_id": chosen.files.fill_id, "padding_side": side}
            made[name] = AsyncDataLoader(source, seed=context.seed, **options)
        return made


@final
class Pipeline:
    """Stages from files to batches::

        for batch in Pipeline.from_config(config).source().tokenize().pack().load().build():
            ...

    Every stage takes its section of the configuration, which then goes in the place of the pipeline's own (as a whole),
    and returns the pipeline. Stages go in the order source, tokenize, mix, pack, save, load; each can be left out but
    `source` (rows that hold ``input_ids`` need no tokenize), `pack` may come before `mix`, `save` anywhere before
    `load`, and stages of your own may come in between (:meth:`stage`). A stage lists files or loads a tokenizer; rows
    are read when somebody draws them, or when :meth:`build` saves them.

    A stage that comes too late, or twice, is a RuntimeError. What else it raises says the class of the stage.
    """

    def __init__(self, config: PipelineConfig) -> None:
        """Take a configuration; :meth:`from_config` also takes a mapping or a file."""
        self._context = PipelineContext(config)
        self._data: dict[str, Any] = {}
        self._stages: list[str] = []

    @classmethod
    def from_config(cls, config: ConfigSource) -> Pipeline:
        """Return a pipeline.

        Args:
            config: a PipelineConfig, a mapping of its keys, or the path of a YAML file. What is wrong between the
                sections of a PipelineConfig is said by its `validate()`, and raised by :meth:`source`.

        Raises:
            ConfigError: a mapping or a file is wrong; the message lists everything.
        """
        if isinstance(config, PipelineConfig):
            return cls(config)
        return cls(load_config(config))

    def source(self, config: SourceStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Open every dataset: files are listed, no row is read."""
        return self._apply(SourceStage(config))

    def tokenize(self, config: TokenizeStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Tokenize every dataset by its own tokenizer, its stage's, or the pipeline's; only the tokenizers are loaded.

        Documents above `max_length` are cut, unless packing follows: then an explicit ``truncation=True`` alone cuts.
        """
        return self._apply(TokenizeStage(config))

    def mix(self, config: MixStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Mix all datasets to one stream, ``mixed``, by weights: of documents, or of packed rows after :meth:`pack`.

        A single dataset is mixed only where the section says more than defaults; else it stays as it is.
        """
        return self._apply(MixStage(config))

    def pack(self, config: PackStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Pack documents into rows of one length: those of each dataset, or those of the mixture after :meth:`mix`.

        To call it is to ask for it; only where the configuration says ``enabled: false`` in so many words do rows stay
        as they are. A row without ``input_ids`` is a BadRecordError when it is drawn.
        """
        return self._apply(PackStage(config))

    def save(self, config: SaveStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Write rows to flat directories, once, and go on with what was written.

        They are written when :meth:`build` is called, or when the first row is drawn. To call it is to ask for it, as
        with :meth:`pack`.
        """
        return self._apply(SaveStage(config))

    def load(self, config: LoadStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Make batches of rows: an :class:`AsyncDataLoader` for each dataset."""
        return self._apply(LoadStage(config))

    def stage(self, stage: BaseStage) -> Pipeline:
        """Apply a stage of your own.

        Raises:
            RuntimeError: `source` was not called before it, or `load` was.
            ConfigError: it is no stage, or returns something else than sources by name.
        """
        if not isinstance(stage, BaseStage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("stage", stage, "a BaseStage, made by its class")
        return self._apply(stage)

    def build(self) -> Iterator[Any]:
        """Return an iterator over all datasets, one after the other: batches after `load`, else rows.

        Whatever is to be saved has been saved when it returns, and is on the Hub where it is to be pushed. Where the
        configuration has a section `observability`, progress is shown on standard error.

        Raises:
            RuntimeError: `source` was not called.
            as :func:`save_dataset`, where something is saved.
        """
        check_order("build", self._stages)
        for saved in self._context.saved:
            saved.save()
        if self._context.push is not None:
            self._context.push()
        rows = chain.from_iterable(list(self._data.values()))
        return observed_batches(rows, self._context.config, batched="load" in self._stages)

    def get_data(self) -> dict[str, Any]:
        """Return the sources (after `load` the loaders) by name, as the stages so far have made them."""
        return dict(self._data)

    def get_context(self) -> PipelineContext:
        """Return what stages know of the pipeline: its configuration, its seed."""
        return self._context

    def get_stages(self) -> list[str]:
        """Return the names of the stages so far, in order."""
        return list(self._stages)

    def _apply(self, stage: BaseStage) -> Pipeline:
        check_order(stage.name, self._stages)
        if not stage.validate_config(stage.config):
            why = f"validate_config refused its configuration, {stage.config!r:.200}"
            raise ConfigError(f"stage {stage.name!r}: {why}")
        before = self._context.config
        try:
            made: Any = stage.process(self._data, self._context)
            named = isinstance(made, Mapping) and made
            if not named or not all(isinstance(item, Iterable) for item in cast("Any", made).values()):
                got = f"a mapping of {len(made)}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
                why = f"process returned {got}, must be a mapping of name to source"
                raise ConfigError(f"stage {stage.name!r}: {why}")
            self._data = dict(made)
        except BaseException:
            self._context.config = before
            raise
        self._context.measure(stage, self._data)
        self._stages.append(stage.name)
        return self


def create_pipeline(
    datasets: Sequence[DatasetConfig | Mapping[str, Any]],
    default_tokenizer: str | TokenizerConfig | Mapping[str, Any] | None = None,
    streaming: bool = True,
    **sections: Any,
) -> Pipeline:
    """Return a pipeline of datasets.

    Args:
        datasets: at least one, each a DatasetConfig or a mapping of its keys.
        default_tokenizer: of the datasets that name none.
        streaming: False downloads datasets of the Hub before they are read.
        sections: other keys of PipelineConfig: ``seed``, ``tokenize``, ``mix``, ``pack`` ...

    Raises:
        ConfigError: something is wrong; the message lists everything.
    """
    given = {"datasets": datasets, "default_tokenizer": default_tokenizer, "streaming": streaming, **sections}
    return Pipeline.from_config(given)

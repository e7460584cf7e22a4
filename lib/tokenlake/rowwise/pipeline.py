"""The fluent pipeline of six stages.

Each stage wraps the sources before it; no row is read until the end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, permutations, product
from typing import Any, Final, cast, final

from tokenlake.base.checks import expected
from tokenlake.base.section import plain_options
from tokenlake.config.contradictions import (
    output_problems,
    raise_problems,
    truncation_problems,
)
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import ConfigSource, load_config
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
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
"""Name of a dataset, or of a mixture of several, to its rows."""

_MIXED: Final = "mixed"  # name of the source that the stage `mix` returns
_DEFAULT_OUTPUT: Final = "./output"
_SAVE_FIELDS: Final = ("save_path", "save_format", "num_shards")
"""Options of a dataset that act in the stage `save`."""


class _OwnStage(BaseStage):
    """A stage of the library.

    Its name is the first word of its class, which is also its section of the
    configuration.

    The argument of the class replaces the whole section; None leaves the section of the
    context.
    """

    @property
    def name(self) -> str:
        return type(self).__name__.removesuffix("Stage").lower()

    def process(
        self, data: Mapping[str, Any], context: PipelineContext
    ) -> Mapping[str, Any]:
        """Return the sources after the stage.

        With a written ``enabled: false`` they stay as they are.

        Raises:
            ConfigError: The configuration contradicts itself; each class lists further
                reasons.
            NotAvailableError: An option is set that has no effect in a pipeline.
        """
        settings = getattr(context.config, self.name)
        if self.config is not None:
            settings = section(type(settings), self.config, self.name)
            context.config = context.config.model_copy(update={self.name: settings})
        # Calling a stage enables it; only a written `false` turns it off.
        if "enabled" in settings.model_fields_set and not settings.enabled:
            return dict(data)
        check_config(context.config, self.name)
        return self._applied(data, context)

    @abstractmethod
    def _applied(
        self, data: Mapping[str, Any], context: PipelineContext
    ) -> Mapping[str, Any]:
        """Return the sources after the stage, whose section is checked."""


@final
class SourceStage(_OwnStage):
    """Stage that opens every dataset.

    Files are listed, rows are not read.
    """

    def _applied(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the rows of every dataset.

        Raises:
            SourceNotFoundError: An entry of `data_files` matches nothing.
        """
        opened: dict[str, ShardedDataSource] = {}
        for dataset in context.config.datasets:
            opened[dataset.name or ""] = open_dataset(context.config, dataset)
        context.opened = opened
        return opened


@final
class TokenizeStage(_OwnStage):
    """Stage that wraps every source in a :class:`TokenizedShardedSource`.

    Tokenizers are loaded, rows are not read.
    """

    def _applied(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the sources as rows of tokens, each with its own tokenizer.

        If one of the datasets has conversations or prompts, a part of which counts
        toward the loss, all rows have a ``loss_mask``.

        Raises:
            ConfigError: A source has no tokenizer, or options contradict each other.
            SourceNotFoundError, TokenizerError: A tokenizer cannot be loaded.
        """
        config = context.config
        raise_problems(ConfigError, truncation_problems(config))
        for source_name in data:
            # The tokenizer of the dataset, else that of the stage, else that of the
            # pipeline.
            choice = config.tokenizer_of(context.dataset(source_name))
            if choice is None:
                raise ConfigError(
                    f"datasets.{source_name}.tokenizer: missing, and neither tokenize.default_tokenizer nor "
                    "default_tokenizer is set; write a Hub id or a path"
                )
            if isinstance(choice, str):
                options = TokenizerConfig(name_or_path=choice)
            else:
                options = choice
            limit = {"max_length": options.max_length or config.tokenize.max_length}
            files = context.get_tokenizer(options.name_or_path).files
            limited_options = options.model_copy(update=limit)
            context.tokenizers[source_name] = LoadedTokenizer(files, limited_options)

        # All rows of a pipeline have the same fields: one masked dataset gives all of
        # them a mask.
        unpacked = context.config_with_packing(False)
        texts = [
            texts_of(unpacked, context.dataset(source_name), source_name)
            for source_name in data
        ]
        is_masked = any(source.texts.masked for source in texts)
        token_sources: dict[str, ShardedDataSource] = {}
        for source_name, source in data.items():
            token_sources[source_name] = _tokens(
                source, source_name, context, masked=is_masked
            )
        return token_sources


def _tokens(
    source: ShardedDataSource, name: str, context: PipelineContext, *, masked: bool
) -> ShardedDataSource:
    """Return the rows of a source as tokens.

    They are stored in the cache if the configuration says so.

    Args:
        source: Rows to tokenize.
        name: Name of the source.
        context: Context of the pipeline, with the tokenizer of the source.
        masked: Whether all rows have a ``loss_mask``.
    """
    dataset = context.dataset(name)
    stage = context.config.tokenize
    tokenizer = context.tokenizers[name]
    additional_fields: tuple[str, ...] | None = None
    if dataset is not None:
        additional_fields = dataset.additional_fields
    eos_id = context.config.pack.eos_token_id
    if eos_id is None:
        eos_id = tokenizer.files.eos_id

    # Settings with and without packing, each computed once.
    @cache
    def row_tokens(packing: bool) -> RowTokens:
        config = context.config_with_packing(packing)
        return RowTokens(
            source=texts_of(config, dataset, name),
            tokenizer=tokenizer,
            keep=additional_fields,
            remove=stage.remove_columns,
            loss=True if masked else None,
            batch_size=stage.batch_size,
            workers=stage.num_workers,
            eos_id=eos_id,
            packing=packing,
        )

    # A later stage may pack, so this is decided when rows are drawn.
    tokens = TokenizedShardedSource.deciding(
        source, lambda: row_tokens(context.packing)
    )
    # The size of batches decides tokens only if rows are padded to the longest of their
    # batch.
    batch_size: int | None = None
    if tokenizer.config.padding == "longest":
        batch_size = stage.batch_size
    settings = {
        "masked": masked,
        "kept": additional_fields,
        "removed": stage.remove_columns,
        "batch_size": batch_size,
    }
    return cached(tokens, source, name, context, settings)


@final
class MixStage(_OwnStage):
    """Stage that mixes all sources into one :class:`MixedShardedSource`."""

    def _applied(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return ``{"mixed": mixture}``.

        A single source stays as it is if the section has only defaults.

        Raises:
            ConfigError: The weights do not have the names of the sources, or sources
                have different tokenizers.
        """
        mix = context.config.mix
        if len(data) == 1 and not context.config.mixes:
            return data
        _share_tokenizer(data, context)
        # A schedule takes the place of constant weights.
        weights = mix.weights
        if mix.weight_schedule:
            weights = None
        seed = mix.seed
        if seed is None:
            seed = context.seed
        mixed = MixedShardedSource(
            data,
            weights=weights,
            block_size=mix.block_size,
            seed=seed,
            stop_strategy=mix.stop_strategy,
            weight_scheduler=_schedule(mix, mix.batch_size),
        )
        # Without `step_rows`, the size of a training step is known when batches are
        # made.
        if mix.weight_schedule and mix.step_rows is None:
            context.stepped = lambda rows: mixed.reschedule(_schedule(mix, rows))
        # A limit ends a mixture that restarts its sources.
        if mix.total_rows is not None:
            return {_MIXED: LimitedShardedSource(mixed, mix.total_rows)}
        if mix.total_tokens is not None:
            return {_MIXED: TokenLimitedSource(mixed, mix.total_tokens)}
        return {_MIXED: mixed}


def _schedule(mix: MixStageConfig, batch_size: int) -> WeightScheduler | None:
    """Return the schedule of weights over the rows of the mixture.

    Args:
        mix: Section of the configuration. `step_rows` is the number of rows per step.
        batch_size: Number of rows per step if `step_rows` is not set.
    """
    rows = mix.step_rows or batch_size
    points: list[dict[str, Any]] = []
    for point in mix.weight_schedule or ():
        points.append({"step": point.step * rows, "weights": point.weights})
    if not points:
        return None
    return WeightScheduler(points, mix.weight_schedule_type)


def _share_tokenizer(data: Mapping[str, Any], context: PipelineContext) -> None:
    """Set the tokenizer of the mixture, which is that of its sources.

    Raises:
        ConfigError: Sources have different tokenizers. In one stream, an id must mean
            one thing.
    """
    tokenizers: dict[str, LoadedTokenizer] = {}
    for source_name in data:
        if source_name in context.tokenizers:
            tokenizers[source_name] = context.tokenizers[source_name]
    # Rows that are not tokenized yet have no tokenizer to share.
    if not tokenizers:
        return
    first_name, *other_names = tokenizers
    tokenizer = tokenizers[first_name]
    for source_name in other_names:
        other_tokenizer = tokenizers[source_name]
        if tokenizer.files.json_bytes != other_tokenizer.files.json_bytes:
            raise ConfigError(
                f"mix: {first_name!r} and {source_name!r} are tokenized by two tokenizers, "
                f"{tokenizer.config.name_or_path!r} and {other_tokenizer.config.name_or_path!r}; the ids of one stream "
                "need one tokenizer. Use the same tokenizer"
            )
    context.tokenizers[_MIXED] = tokenizer


@final
class PackStage(_OwnStage):
    """Stage that wraps every source in a :class:`PackedShardedSource`."""

    def _applied(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the sources, each packed by itself.

        Rows that already hold ``input_ids`` are packed with ``pack.eos_token_id``, or
        with the EOS of the tokenizer that the configuration names for them.

        Raises:
            ConfigError: No EOS is known, or a dataset pads its documents or keeps
                fields beside them.
            SourceNotFoundError, TokenizerError: That tokenizer cannot be loaded.
        """
        # Options of datasets that packing rules out, all in one error.
        config = context.config_with_packing(True)
        pack = context.config.pack
        problems: list[str] = []
        for dataset in config.datasets:
            tokenizer = context.tokenizers.get(dataset.name or "")
            if tokenizer is not None:
                problems += output_problems(config, dataset, tokenizer.config)
        problems += truncation_problems(config)
        raise_problems(ConfigError, problems)

        packed: dict[str, ShardedDataSource] = {}
        for source_name, source in data.items():
            tokenizer = context.tokenizers.get(source_name)
            # Rows that already hold ids have no tokenizer yet, which gives EOS.
            if tokenizer is None and pack.eos_token_id is None:
                choice = config.tokenizer_of(context.dataset(source_name))
                if isinstance(choice, TokenizerConfig):
                    choice = choice.name_or_path
                if choice is not None:
                    tokenizer = context.get_tokenizer(choice)
            packed[source_name] = PackedShardedSource(
                source, pack, tokenizer=tokenizer, seed=context.seed
            )
        context.packed = True
        context.regrouped = context.stepped is not None
        return packed


@final
class SaveStage(_OwnStage):
    """Stage that wraps every source in a :class:`SavedShardedSource`."""

    def _applied(self, data: Mapping[str, Any], context: PipelineContext) -> Sources:
        """Return the sources, each of which is written to its own directory.

        Rows are read back from there.

        The directory of a dataset is its `save_path`, else `output_dir` for a single
        source, and ``output_dir/name`` for several. With `push_to_hub`, the directories
        are uploaded once all are written.

        Raises:
            ConfigError: A target may not be written, two are the same, one holds an
                input, or a source is endless.
        """
        config = context.config
        # Options of datasets that were mixed before would be ignored.
        for dataset in config.datasets:
            fields = [field for field in _SAVE_FIELDS if getattr(dataset, field)]
            if fields and dataset.name not in data:
                raise ConfigError(
                    f"datasets.{dataset.name}.{fields[0]}: set, but the saved rows are {', '.join(map(repr, data))}; "
                    "save datasets before they are mixed"
                )

        # Directories are checked before anything is written.
        targets: dict[str, Target] = {}
        saved_sources: dict[str, SavedShardedSource] = {}
        for source_name, source in data.items():
            if source.endless:
                raise ConfigError(
                    f"save: {source_name!r} never ends, because mix.stop_strategy 'restart' starts exhausted sources "
                    "again; set mix.total_rows, or another stop_strategy"
                )
            saved_sources[source_name], targets[source_name] = _saved(
                source_name, source, context, alone=len(data) == 1
            )
        _require_apart(targets, config)
        context.saved += saved_sources.values()
        if config.save.push_to_hub:
            context.push = _push_of(targets, config.save)
        return saved_sources


def _push_of(targets: Mapping[str, Target], save: SaveStageConfig) -> Callable[[], str]:
    """Return a function that uploads the written directories.

    Raises:
        ConfigError: A directory is not local, the repository has no valid id, or there
            is no token.
    """
    for target in targets.values():
        if not isinstance(target, FolderTarget):
            raise ConfigError(
                f"save.push_to_hub: {target.url} is not on this machine; save to a path, and push that"
            )
    repository = save.hub_repo_id or ""
    token = hub_token(save)
    # Raises now, and not after everything is written.
    HubRepository(repository, token=token)
    folders = {source_name: target.url for source_name, target in targets.items()}
    return partial(
        push_directories, folders, repository, public=not save.hub_private, token=token
    )


def _saved(
    name: str, source: ShardedDataSource, context: PipelineContext, *, alone: bool
) -> tuple[SavedShardedSource, Target]:
    """Return a source that saves its rows, and its directory.

    Args:
        name: Name of the source.
        source: Rows to save.
        context: Context of the pipeline.
        alone: Whether it is the only source, which is saved to `output_dir` itself.
    """
    # Options of the dataset, else those of the stage.
    save = context.config.save
    dataset = context.dataset(name)
    save_path = getattr(dataset, "save_path", None)
    save_format = getattr(dataset, "save_format", None)
    num_shards = getattr(dataset, "num_shards", None) or save.num_shards

    # Text, because a path object would change a URL.
    output_dir = save.output_dir or _DEFAULT_OUTPUT
    default_path = output_dir if alone else f"{output_dir}/{name}"
    output_path = save_path or default_path
    # The compression of the stage belongs to its format; a dataset with another format
    # has the default.
    compression: str | None = None
    if save_format in (None, save.format):
        compression = save.compression
    make_writer = partial(
        create_writer,
        output_path,
        save_format or save.format,
        None if num_shards else save.max_shard_size,
        num_shards,
        compression,
        save.overwrite,
        storage_options=plain_options(save.storage_options or {}),
        origin=context.origin(name),
    )
    saved_source = SavedShardedSource(source, save_format or save.format, make_writer)
    return saved_source, make_writer().target


def _require_apart(targets: Mapping[str, Target], config: PipelineConfig) -> None:
    """Raise ConfigError if a target is inside another one, or holds an input."""
    for (name, target), (other_name, other_target) in permutations(targets.items(), 2):
        if target.is_within(other_target.url):
            raise ConfigError(
                f"save: {name!r} would be written to {target.url} and {other_name!r} to {other_target.url}, one "
                "inside the other; give each dataset a separate save_path"
            )
    for target, dataset in product(targets.values(), config.datasets):
        require_apart("save", target, dataset.all_files)


@final
class LoadStage(_OwnStage):
    """Stage that puts an :class:`AsyncDataLoader` before every source."""

    def _applied(
        self, data: Mapping[str, Any], context: PipelineContext
    ) -> dict[str, AsyncDataLoader]:
        """Return a loader for each source.

        Rows that are neither packed nor padded have different lengths. They are padded
        with the padding token of their tokenizer (else its EOS) to the longest of each
        batch.

        Steps of a schedule of weights are training steps of one batch of rows, unless
        ``mix.step_rows`` is set. That includes a mixture of packed rows. If mixed
        documents are packed, a step takes the documents that fill its rows, a number
        that is not known before they are drawn.

        Raises:
            ConfigError: Rows are packed after they are mixed by a schedule, and
                `mix.step_rows` is not set.
            MissingExtraError: Batches on devices are configured, and jax is not
                installed.
        """
        load = context.config.load
        # Steps of a schedule become rows of the mixture, now that the size of a step is
        # known.
        if context.stepped is not None:
            if context.regrouped:
                raise ConfigError(
                    "mix.step_rows: missing. Documents are packed after they are mixed, so a training step has no "
                    "fixed number of them; call pack() before mix(), so that a step is a batch of rows, or set the "
                    "number, as in step_rows: 256"
                )
            context.stepped(load.batch_size)

        loaders: dict[str, AsyncDataLoader] = {}
        for source_name, source in data.items():
            options = load.model_dump()
            tokenizer = context.tokenizers.get(source_name)
            if tokenizer is not None and not context.packed:
                options["pad_token_id"] = tokenizer.files.fill_id
                pads_left = tokenizer.pads_left(tokenizer.config)
                options["padding_side"] = "left" if pads_left else "right"
            loaders[source_name] = AsyncDataLoader(source, seed=context.seed, **options)
        return loaders


@final
class Pipeline:
    """Stages from files to batches.

    Each stage takes its section of the configuration, which replaces the pipeline's own
    as a whole, and returns the pipeline. The order of stages is source, tokenize, mix,
    pack, save, load. All but `source` may be left out (rows that hold ``input_ids``
    need no tokenize). `pack` may come before `mix`, and `save` anywhere before `load`.
    :meth:`stage` adds other stages in between. A stage lists files or loads a
    tokenizer. Rows are read when they are iterated, or when :meth:`build` saves them.

    Args:
        config: Configuration of the pipeline; :meth:`from_config` also takes a mapping
            or a file.

    Raises:
        RuntimeError: A stage comes too late, or twice.

    Example:
        >>> import tokenlake as tl
        >>> config = {
        ...     "datasets": [{"name": "books", "data_files": "data/books/*.jsonl"}],
        ...     "default_tokenizer": "openai-community/gpt2",
        ...     "pack": {"seq_length": 64},
        ...     "load": {"batch_size": 4},
        ... }
        >>> batches = tl.Pipeline.from_config(config).source().tokenize().pack().load().build()
        >>> next(batches)["input_ids"].shape
        (4, 64)
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
            config: PipelineConfig, mapping of its keys, or path of a YAML file.
                Contradictions between the sections of a PipelineConfig are listed by
                its `validate()`, and raised by :meth:`source`.

        Raises:
            ConfigError: A mapping or a file is wrong. The message lists all problems.
        """
        if isinstance(config, PipelineConfig):
            return cls(config)
        return cls(load_config(config))

    def source(
        self, config: SourceStageConfig | Mapping[str, Any] | None = None
    ) -> Pipeline:
        """Open every dataset. Files are listed, and no row is read.

        Args:
            config: Section `source`, which replaces the pipeline's own; None: the
                pipeline's own.
        """
        return self._apply(SourceStage(config))

    def tokenize(
        self, config: TokenizeStageConfig | Mapping[str, Any] | None = None
    ) -> Pipeline:
        """Tokenize every dataset; no row is read.

        The tokenizer is that of the dataset, otherwise that of the stage, otherwise
        that of the pipeline.

        Documents above `max_length` are cut, unless packing follows; then only an
        explicit ``truncation=True`` cuts.

        Args:
            config: Section `tokenize`, which replaces the pipeline's own; None: the
                pipeline's own.
        """
        return self._apply(TokenizeStage(config))

    def mix(self, config: MixStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Combine all datasets by weights into one stream, ``mixed``.

        Weights are those of documents, or of packed rows after :meth:`pack`. A single
        dataset is mixed only if the section differs from its defaults; otherwise it is
        unchanged.

        Args:
            config: Section `mix`, which replaces the pipeline's own; None: the
                pipeline's own.
        """
        return self._apply(MixStage(config))

    def pack(
        self, config: PackStageConfig | Mapping[str, Any] | None = None
    ) -> Pipeline:
        """Pack documents into rows of one length.

        They are those of each dataset, or those of the mixture after :meth:`mix`.

        The call itself enables packing; only an explicit ``enabled: false`` in the
        configuration leaves rows as they are. A row without ``input_ids`` raises
        BadRecordError when it is read.

        Args:
            config: Section `pack`, which replaces the pipeline's own; None: the
                pipeline's own.
        """
        return self._apply(PackStage(config))

    def save(
        self, config: SaveStageConfig | Mapping[str, Any] | None = None
    ) -> Pipeline:
        """Write rows to flat directories, once, and continue with the written rows.

        They are written when :meth:`build` is called, or when the first row is read.
        The call itself enables saving, as with :meth:`pack`.

        Args:
            config: Section `save`, which replaces the pipeline's own; None: the
                pipeline's own.
        """
        return self._apply(SaveStage(config))

    def load(
        self, config: LoadStageConfig | Mapping[str, Any] | None = None
    ) -> Pipeline:
        """Make batches of rows, by an :class:`AsyncDataLoader` for each dataset.

        Args:
            config: Section `load`, which replaces the pipeline's own; None: the
                pipeline's own.
        """
        return self._apply(LoadStage(config))

    def stage(self, stage: BaseStage) -> Pipeline:
        """Apply a custom stage.

        Args:
            stage: Stage, which returns sources by name.

        Raises:
            RuntimeError: `source` was not called before it, or `load` was.
            ConfigError: It is not a stage, or returns something other than sources by
                name.
        """
        if not isinstance(stage, BaseStage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("stage", stage, "a BaseStage instance")
        return self._apply(stage)

    def build(self) -> Iterator[Any]:
        """Return an iterator over all datasets, one after the other.

        It yields batches after `load`, otherwise rows.

        When it returns, everything that is to be saved is saved, and pushed to the Hub
        if the configuration asks for it. With a section `observability`, progress is
        shown on standard error.

        Raises:
            RuntimeError: `source` was not called.
            TokenlakeError: Saving failed, as for :func:`save_dataset`.
        """
        check_order("build", self._stages)
        for saved in self._context.saved:
            saved.save()
        if self._context.push is not None:
            self._context.push()
        rows = chain.from_iterable(list(self._data.values()))
        return observed_batches(
            rows, self._context.config, batched="load" in self._stages
        )

    def get_data(self) -> dict[str, Any]:
        """Return the sources by name, as the stages so far have made them.

        After `load` they are the loaders.
        """
        return dict(self._data)

    def get_context(self) -> PipelineContext:
        """Return the context of the stages: configuration and seed."""
        return self._context

    def get_stages(self) -> list[str]:
        """Return the names of the stages so far, in order."""
        return list(self._stages)

    def _apply(self, stage: BaseStage) -> Pipeline:
        """Call a stage. If it fails, the pipeline is as it was before."""
        check_order(stage.name, self._stages)
        if not stage.validate_config(stage.config):
            raise ConfigError(
                f"stage {stage.name!r}: validate_config refused its configuration, {stage.config!r:.200}"
            )
        # Stages put their sections into the configuration of the context.
        config_before = self._context.config
        try:
            self._data = _sources_of(stage, stage.process(self._data, self._context))
        except BaseException:
            self._context.config = config_before
            raise
        self._context.measure(stage, self._data)
        self._stages.append(stage.name)
        return self


def _sources_of(stage: BaseStage, result: object) -> dict[str, Any]:
    """Return the result of a stage.

    Raises:
        ConfigError: The result is not a mapping of name to source.
    """
    if isinstance(result, Mapping):
        # Rows, sources and loaders can all be iterated.
        sources = dict(cast("Mapping[str, Any]", result))
        if sources and all(isinstance(source, Iterable) for source in sources.values()):
            return sources
        got = f"a mapping of {len(sources)}"
    else:
        got = f"a {type(result).__name__}"
    raise ConfigError(
        f"stage {stage.name!r}: process returned {got}, must be a mapping of name to source"
    )


def create_pipeline(
    datasets: Sequence[DatasetConfig | Mapping[str, Any]],
    default_tokenizer: str | TokenizerConfig | Mapping[str, Any] | None = None,
    streaming: bool = True,
    **sections: Any,
) -> Pipeline:
    """Return a pipeline of datasets.

    Args:
        datasets: Datasets, at least one, each a DatasetConfig or a mapping of its keys.
        default_tokenizer: Tokenizer of the datasets that name none.
        streaming: True to read datasets of the Hub over the network; False to download
            them first.
        sections: Other keys of PipelineConfig: ``seed``, ``tokenize``, ``mix``,
            ``pack`` ...

    Raises:
        ConfigError: The configuration has problems. The message lists all of them.

    Example:
        >>> import tokenlake as tl
        >>> pipeline = tl.create_pipeline([{"name": "books", "data_files": "data/books/*.jsonl"}], seed=0)
        >>> row = next(pipeline.source().build())
        >>> row["text"][:8]
        'books 0.'
    """
    return Pipeline.from_config(
        {
            "datasets": datasets,
            "default_tokenizer": default_tokenizer,
            "streaming": streaming,
            **sections,
        }
    )

"""The six stages of the fluent pipeline: each wraps the sources it gets, and reads no rows."""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import permutations, product
from os.path import commonpath
from typing import Any, Final, final

from tokenlake.config.pipeline import MixStageConfig, PipelineConfig, dump_yaml
from tokenlake.config.refusals import output_problems, raise_problems, truncation_problems
from tokenlake.config.secret import plain_options
from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.export.directory import FolderTarget, Origin, Target, require_apart
from tokenlake.export.plan import hub_token, push_directories
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.publish.repository import HubRepository
from tokenlake.rowwise.combine import PackedShardedSource, TokenLimitedSource
from tokenlake.rowwise.files import open_dataset
from tokenlake.rowwise.loader import AsyncDataLoader
from tokenlake.rowwise.mixed import MixedShardedSource
from tokenlake.rowwise.save import SavedShardedSource, create_writer
from tokenlake.rowwise.shards import section
from tokenlake.rowwise.source import LimitedShardedSource, ShardedDataSource
from tokenlake.rowwise.stage import BaseStage, PipelineContext, cached, check_config
from tokenlake.rowwise.tokenized import RowTokens, TokenizedShardedSource, texts_of
from tokenlake.store.layout import CONFIG, TOKENIZER
from tokenlake.tokenizers.fingerprint import describe
from tokenlake.tokenizers.manager import LoadedTokenizer

Sources = Mapping[str, ShardedDataSource]
"""Name of a dataset, or of what a stage made of several, to its rows."""

_MIXED: Final = "mixed"
_DEFAULT_OUTPUT: Final = "./output"

_NO_SETTING: Final[Any] = {
    **dict.fromkeys(("load", "save", "cache", "ray", "observability", "default_tokenizer"), True),
    "datasets": {
        "__all__": {"data_files", "storage_options", "save_path", "cache_path", "tokenizer", "exclude"}
    },
    "tokenize": {"default_tokenizer", "num_workers", "engine", "cache_tokenized"},
}
"""Places and secrets, what changes no row, and tokenizers, which are described by what they are."""


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
        """Return the rows of every dataset of the configuration, in its order.

        Raises:
            ConfigError: the configuration contradicts itself, or asks for what a pipeline does not do.
            SourceNotFoundError: an entry of `data_files` matches nothing.
        """
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
        origin=_origin(name, context),
    )
    return SavedShardedSource(source, own["save_format"] or save.format, make), make().target


def _require_apart(targets: Mapping[str, Target], config: PipelineConfig) -> None:
    """Raise ConfigError if one target lies in another, or holds an input."""
    for (name, target), (other, path) in permutations(targets.items(), 2):
        if target.is_within(path.url):
            why = f"{name!r} would be written to {target.url} and {other!r} to {path.url}, one in the other"
            raise ConfigError(f"save: {why}; give each dataset a save_path of its own")
    for target, dataset in product(targets.values(), config.datasets):
        files = dataset.data_files or ()
        require_apart("save", target, (files,) if isinstance(files, str) else files)


def _origin(name: str, context: PipelineContext) -> Callable[[], Origin]:
    """Return what says of where a source's rows come from, as the stages before have decided it."""
    config, names = context.config, [name] if name in context.opened else list(context.opened)
    tokenizers = {each: context.tokenizers[each] for each in names if each in context.tokenizers}
    kind = "packed" if context.packed else "tokens" if tokenizers else "rows"

    def origin() -> Origin:
        # As it was written, but for places and what decides no row.
        decided = config.model_dump(mode="json", exclude_unset=True, exclude=_NO_SETTING)
        decided["datasets"] = [each for each in decided["datasets"] if each.get("name") in names]
        inputs: list[dict[str, Any]] = []
        for each in names:
            # By what lies below the folder of all: no path of the machine.
            versions = context.opened[each].versions
            folder = commonpath([posixpath.dirname(path) for path, _, _ in versions]) if versions else ""
            for path, size, token in versions:
                below = path[len(folder) :].lstrip("/")
                inputs.append({"source": each, "path": below, "bytes": size, "version": token})
        described = {name: describe(loaded.files) for name, loaded in tokenizers.items()}
        made_of = {"config": decided, "tokenizer": described, "inputs": inputs}
        files = [(CONFIG, dump_yaml(config).encode())]
        for loaded in list(tokenizers.values())[:1]:  # rows of one stream have one
            files += [(f"{TOKENIZER}/{path}", data) for path, data in loaded.files.files.items()]
        return Origin(kind, made_of, beside=dict(files))

    return origin


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

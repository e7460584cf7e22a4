"""The stage `source`: datasets to rows.

The stage `tokenize`: rows of text to rows of tokens.

The stage `mix`: several sources to one weighted stream.

The stage `pack`: rows of tokens to rows of one length.

The stage `save`: rows to flat directories.

The stage `load`: rows to batches.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.config.contradictions import output_problems, truncation_problems
from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.rowwise.cache import cached
from tokenlake.rowwise.combine import LimitedShardedSource, TokenLimitedSource
from tokenlake.rowwise.directory import Origin, check_target, local_target
from tokenlake.rowwise.files import open_dataset
from tokenlake.rowwise.formats import Form
from tokenlake.rowwise.loader import AsyncDataLoader
from tokenlake.rowwise.mixed import MixedShardedSource
from tokenlake.rowwise.packed import PackedShardedSource
from tokenlake.rowwise.row_tokens import RowEncoding, RowTokens, Wanted, resolved
from tokenlake.rowwise.save import SavedShardedSource, SaveTarget
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.rowwise.stage import BaseStage, ChosenTokenizer, PipelineContext, check_pipeline, check_stage
from tokenlake.rowwise.tokenized import TokenizedShardedSource
from tokenlake.tokenizers.fingerprint import describe
from tokenlake.tokenizers.manager import TokenizerManager

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import MixStageConfig, SaveStageConfig

_OF_OTHER_STAGES: Final[dict[str, Any]] = {
    "additional_fields": None,
    "cache_enabled": True,
    "cache_path": None,
    "chat": None,
    "long_documents": None,
    "num_shards": None,
    "prompt": None,
    "save_format": None,
    "save_path": None,
    "tokenizer_kwargs": None,
}
"""Fields of a dataset that say nothing of its rows as they are read."""


@final
class SourceStage(BaseStage):
    """Opens every dataset: files are listed, rows are not read."""

    @property
    def name(self) -> str:
        return "source"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the rows of every dataset of the configuration, in its order.

        Raises:
            ConfigError: the configuration contradicts itself, or asks for what a pipeline does not do.
            SourceNotFoundError: an entry of `data_files` matches nothing.
        """
        config = context.config
        check_pipeline(config)
        context.opened = {
            dataset.name or "": open_dataset(
                dataset.model_copy(update=_OF_OTHER_STAGES), config.source, streaming=config.streaming
            )
            for dataset in config.datasets
        }
        return context.opened


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
        if problems := truncation_problems(config):
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


MIXED: Final = "mixed"
"""Name of the mixture among the sources."""


@final
class MixStage(BaseStage):
    """Makes one :class:`MixedShardedSource` of all sources."""

    @property
    def name(self) -> str:
        return "mix"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return ``{"mixed": mixture}``; a single source stays as it is where the section says nothing but defaults.

        Raises:
            ConfigError: weights are of other names than the sources, or sources have different tokenizers.
            NotAvailableError: an option that a pipeline does not act on is set.
        """
        check_stage(context.config, "mix")
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
        return {MIXED: _ended(mixed, mix)}


def _schedule(mix: MixStageConfig, batch_size: int) -> WeightScheduler | None:
    """Return the weights along the rows of the mixture; a step is `step_rows` of them, else a batch."""
    rows = mix.step_rows or batch_size
    points = [{"step": point.step * rows, "weights": point.weights} for point in mix.weight_schedule or ()]
    return WeightScheduler(points, mix.weight_schedule_type) if points else None


def _ended(mixed: MixedShardedSource, mix: MixStageConfig) -> ShardedDataSource:
    if mix.total_rows is not None:
        return LimitedShardedSource(mixed, mix.total_rows)
    return mixed if mix.total_tokens is None else TokenLimitedSource(mixed, mix.total_tokens)


def _share_tokenizer(data: Mapping[str, Any], context: PipelineContext) -> None:
    """Let the mixture have the tokenizer of its sources: in one stream of ids an id must mean one thing."""
    chosen = {name: context.tokenizers[name] for name in data if name in context.tokenizers}
    if not chosen:
        return
    first, *others = chosen
    for other in others:
        if chosen[first].loaded.files.json_bytes != chosen[other].loaded.files.json_bytes:
            raise ConfigError(
                f"mix: {other!r} is tokenized by {chosen[other].options.name_or_path!r} and {first!r} by "
                f"{chosen[first].options.name_or_path!r}, which is another tokenizer; in one stream an id must mean "
                "one thing. Use one tokenizer for all, or do not mix them",
                source=other,
            )
    context.tokenizers[MIXED] = chosen[first]


@final
class PackStage(BaseStage):
    """Wraps every source in a :class:`PackedShardedSource`."""

    @property
    def name(self) -> str:
        return "pack"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the sources packed, each by itself; where ``enabled: false`` is written out, as they are.

        Raises:
            ConfigError: no EOS is known, or a dataset pads its documents or keeps fields beside them.
        """
        pack = context.config.pack
        if "enabled" in pack.model_fields_set and not pack.enabled:
            return dict(data)
        check_stage(context.config, "pack")
        _require_packable(context)
        made = {name: self._packed(name, source, context) for name, source in data.items()}
        context.packed = True
        return made

    def _packed(self, name: str, source: ShardedDataSource, context: PipelineContext) -> PackedShardedSource:
        chosen = context.tokenizers.get(name)
        loaded = None if chosen is None else chosen.loaded
        return PackedShardedSource(source, context.config.pack, tokenizer=loaded, seed=context.seed)


def _require_packable(context: PipelineContext) -> None:
    config = context.config.model_copy(
        update={"pack": context.config.pack.model_copy(update={"enabled": True})}
    )
    problems = [
        line
        for dataset in config.datasets
        if dataset.name in context.tokenizers
        for line in output_problems(config, dataset, context.tokenizers[dataset.name].options)
    ]
    problems += truncation_problems(config)
    if problems:
        raise ConfigError("\n".join(problems), problems=problems)


DEFAULT_OUTPUT: Final = "./output"

_NO_SETTING: Final[Any] = {
    **dict.fromkeys(("load", "save", "cache", "ray", "observability", "default_tokenizer"), True),
    "datasets": {
        "__all__": {"data_files", "storage_options", "save_path", "cache_path", "tokenizer", "exclude"}
    },
    "tokenize": {"default_tokenizer", "num_workers", "engine", "cache_tokenized"},
}
"""Places and secrets, what changes no row, and tokenizers, which are described by what they are."""


@final
class SaveStage(BaseStage):
    """Wraps every source in a :class:`SavedShardedSource`."""

    @property
    def name(self) -> str:
        return "save"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the sources, each to be written to a directory of its own and read back from there.

        A dataset's directory is its `save_path`; else `output_dir` where there is one source, and ``output_dir/name``
        where there are several. Where ``enabled: false`` is written out, the sources stay as they are.

        Raises:
            ConfigError: a target may not be written, two are the same, one holds an input, or a source is endless.
            NotAvailableError: an option that a pipeline does not act on is set.
        """
        config = context.config
        if "enabled" in config.save.model_fields_set and not config.save.enabled:
            return dict(data)
        check_stage(config, "save")
        _require_own(data, context)
        targets = {name: _target(name, context, alone=len(data) == 1) for name in data}
        _check(targets, context)
        for name, source in data.items():
            _require_end(name, source)
        made = {
            name: SavedShardedSource(source, targets[name], _Origin(name, context))
            for name, source in data.items()
        }
        context.saved += made.values()
        return made


@final
class _Origin:
    """What the manifest of a saved source says of where its rows come from, as the stages before have decided it.

    Of inputs it names what lies below the folder that all of them are in: no path of the machine.
    """

    def __init__(self, name: str, context: PipelineContext) -> None:
        self._config, self._context = context.config, context
        self._names = [name] if name in context.opened else list(context.opened)
        self._tokenizers = {
            each: context.tokenizers[each] for each in self._names if each in context.tokenizers
        }
        self._kind = "packed" if context.packed else "tokens" if self._tokenizers else "rows"

    def __call__(self) -> Origin:
        tokenizers = {name: describe(chosen.loaded.files) for name, chosen in self._tokenizers.items()}
        inputs = [entry for name in self._names for entry in self._inputs(name)]
        return Origin(self._kind, {"config": self._settings(), "tokenizer": tokenizers, "inputs": inputs})

    def _settings(self) -> dict[str, Any]:
        """The configuration as it was written, but for places and what decides no row."""
        decided = self._config.model_dump(mode="json", exclude_unset=True, exclude=_NO_SETTING)
        decided["datasets"] = [each for each in decided["datasets"] if each.get("name") in self._names]
        return decided

    def _inputs(self, name: str) -> list[dict[str, Any]]:
        versions = self._context.opened[name].versions
        folder = commonpath([posixpath.dirname(path) for path, _, _ in versions]) if versions else ""
        return [
            {"source": name, "path": path[len(folder) :].lstrip("/"), "bytes": size, "version": token}
            for path, size, token in versions
        ]


def _require_own(data: Mapping[str, Any], context: PipelineContext) -> None:
    """Raise ConfigError if a dataset is to be saved in its own way, and is none of the sources any more."""
    for dataset in context.config.datasets:
        own = [field for field in ("save_path", "save_format", "num_shards") if getattr(dataset, field)]
        if own and dataset.name not in data:
            raise ConfigError(
                f"datasets.{dataset.name}.{own[0]}: set, but what is saved is {', '.join(map(repr, data))}; save the "
                "datasets before they are mixed, or leave it out"
            )


def _target(name: str, context: PipelineContext, *, alone: bool) -> SaveTarget:
    save, dataset = context.config.save, context.dataset(name)
    own_path = None if dataset is None else dataset.save_path
    own_format = None if dataset is None else dataset.save_format
    own_shards = None if dataset is None else dataset.num_shards
    # As text: a path object would make a path of a URL, which is none.
    folder = save.output_dir or DEFAULT_OUTPUT
    path = own_path or (folder if alone else f"{folder}/{name}")
    num_shards = own_shards or save.num_shards
    form = Form.of(own_format or save.format, _compression(save, own_format))
    target = SaveTarget(
        path=local_target(path),
        format=form.format,
        compression=form.compression,
        num_shards=num_shards,
        max_shard_size=None if num_shards else save.max_shard_size,
        overwrite=save.overwrite,
    )
    check_target(target.path, overwrite=target.overwrite)
    return target


def _compression(save: SaveStageConfig, own_format: str | None) -> str | None:
    """Return the stage's compression, which is that of its format: a dataset of another one has the usual."""
    return save.compression if own_format in (None, save.format) else None


def _check(targets: Mapping[str, SaveTarget], context: PipelineContext) -> None:
    seen: dict[Path, str] = {}
    for name, target in targets.items():
        for path, other in seen.items():
            if path == target.path or path in target.path.parents or target.path in path.parents:
                raise ConfigError(
                    f"save: {name!r} would be written to {target.path} and {other!r} to {path}, one in the other; give "
                    "each dataset a save_path of its own"
                )
        seen[target.path] = name
        for dataset in context.config.datasets:
            _require_apart(dataset, target.path)


def _require_apart(dataset: DatasetConfig, target: Path) -> None:
    files = dataset.data_files
    for entry in (files,) if isinstance(files, str) else files or ():
        if "://" not in entry and Path(entry).expanduser().absolute().is_relative_to(target):
            raise ConfigError(
                f"save: {target} holds the input {entry!r} of {dataset.name!r}, which it would replace; give a "
                "directory of its own"
            )


def _require_end(name: str, source: ShardedDataSource) -> None:
    if source.endless:
        raise ConfigError(
            f"save: {name!r} never ends, because mix.stop_strategy 'restart' starts exhausted sources again; set "
            "mix.total_rows, mix.total_tokens, or another stop_strategy"
        )


@final
class LoadStage(BaseStage):
    """Puts an :class:`AsyncDataLoader` before every source."""

    @property
    def name(self) -> str:
        return "load"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> dict[str, AsyncDataLoader]:
        """Return a loader of each source.

        Rows of different lengths, which there are where nothing is packed or padded, are filled up with the padding
        token of their tokenizer (else its EOS) to the longest of each batch.

        Steps of a schedule of weights are training steps, of as many rows as a batch, unless ``mix.step_rows`` is set.

        Raises:
            ConfigError: rows are packed after they are mixed, and nobody says how many of them a step takes.
            NotAvailableError: an option that a pipeline does not act on is set.
            MissingExtraError: batches on devices are asked for, and jax is not installed.
        """
        check_stage(context.config, "load")
        load = context.config.load
        if context.stepped is not None:
            _require_rows(context)
            context.stepped(load.batch_size)
        return {
            name: AsyncDataLoader(
                source,
                batch_size=load.batch_size,
                prefetch_enabled=load.prefetch_enabled,
                prefetch_workers=load.prefetch_workers,
                prefetch_buffer_size=load.prefetch_buffer_size,
                shuffle_buffer_size=load.shuffle_buffer_size,
                drop_last=load.drop_last,
                seed=context.seed,
                prefetch_to_device=load.prefetch_to_device,
                **_padding(name, context),
            )
            for name, source in data.items()
        }


def _require_rows(context: PipelineContext) -> None:
    if context.packed:
        raise ConfigError(
            "mix.step_rows: missing. Documents are packed after they are mixed, so that a training step takes no fixed "
            "number of them; say how many a step of mix.weight_schedule has, as step_rows: 256"
        )


def _padding(name: str, context: PipelineContext) -> dict[str, Any]:
    chosen = context.tokenizers.get(name)
    if context.packed or chosen is None:
        return {}
    files = chosen.loaded.files
    pad = files.eos_id if files.pad_id is None else files.pad_id
    return {
        "pad_token_id": pad,
        "padding_side": "left" if chosen.loaded.pads_left(chosen.options) else "right",
    }

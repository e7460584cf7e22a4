"""`DataPipeline`: from a configuration of ``type: data_module`` to data loaders.

Loaders are those of PyTorch. The pipeline's tokenizer is here, too.
"""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, cast, final

from tokenlake.base.checks import did_you_mean
from tokenlake.base.lazy_names import lazy_names
from tokenlake.base.result import Err, Result, attempt
from tokenlake.base.section_file import load_section
from tokenlake.config.dataset import PACKED_NAMES, DataModuleConfig, SplitSpec
from tokenlake.config.load import pipeline_of
from tokenlake.config.refusals import raise_problems
from tokenlake.config.stages import DEFAULT_MAX_LENGTH, TokenizerConfig
from tokenlake.errors import ConfigError, SourceError, TokenizerError, TokenlakeError
from tokenlake.etl.introspection.inspection import DatasetMetadata
from tokenlake.etl.introspection.introspector import DatasetIntrospector
from tokenlake.etl.text.fields import RenameFields, SelectFields
from tokenlake.etl.text.prompt_engine import PromptEngine
from tokenlake.etl.tokenizers.manager import LoadedTokenizer, TokenizerManager
from tokenlake.rowwise.combine import IterableShardedSource, PackedShardedSource
from tokenlake.rowwise.files import open_dataset
from tokenlake.rowwise.shards import section
from tokenlake.rowwise.source import LimitedShardedSource, ShardedDataSource


@final
class TokenizerWrapper:
    """Tokenizer that is loaded and ready to encode.

    Args:
        tokenizer: Hub id, path, `TokenizerConfig`, or object of transformers or
            tokenizers.

    Attributes:
        pad_token_id: Id of the padding token, or of the EOS token if there is none.
        vocab_size: Largest id plus one, added tokens included.

    Raises:
        TokenizerError: It has neither a padding nor an EOS token;
            ``TokenizerConfig(special_tokens=...)`` names one.

    Example:
        >>> from tokenlake.data_pipeline import TokenizerWrapper
        >>> tokenizer = TokenizerWrapper("openai-community/gpt2")
        >>> ids = tokenizer.encode("A lake holds water.").unwrap()
        >>> tokenizer.decode(ids).unwrap()
        'A lake holds water.'
    """

    def __init__(self, tokenizer: Any) -> None:
        self._manager = TokenizerManager()
        self.loaded: Final[LoadedTokenizer] = self._manager.get_tokenizer(tokenizer)
        self.pad_token_id: Final = self.loaded.pad_id
        self.vocab_size: Final = self.loaded.files.vocab_size

    @classmethod
    def from_pretrained(
        cls, name_or_path: Any, **options: Any
    ) -> Result[Self, TokenlakeError]:
        """Return the tokenizer of an id or a path, or the error.

        Args:
            name_or_path: Hub id or path.
            options: Options of :class:`tokenlake.TokenizerConfig`: `max_length`,
                `special_tokens`, `padding_side` ...
        """
        config = name_or_path
        if options:
            config = {"name_or_path": name_or_path, **options}
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: Any) -> Result[Self, TokenlakeError]:
        """Return the tokenizer of a configuration, or the error.

        Args:
            config: `TokenizerConfig`, or mapping of its keys.
        """

        def make_wrapper() -> Self:
            tokenizer = config
            if isinstance(config, Mapping):
                tokenizer = section(TokenizerConfig, config, "tokenizer")
            return cls(tokenizer)

        return attempt(make_wrapper)

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """Id that begins a text; None if the tokenizer names none."""
        return self.loaded.files.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """Id that ends a text; None if the tokenizer names none."""
        return self.loaded.files.eos_id

    def encode(self, text: str) -> Result[list[int], TokenlakeError]:
        """Return the ids of a text, cut and surrounded by special tokens as configured.

        Args:
            text: Text.
        """
        return self.encode_batch([text]).map(lambda rows: rows[0])

    def encode_batch(
        self, texts: Sequence[str]
    ) -> Result[list[list[int]], TokenlakeError]:
        """Return the ids of texts, padded as configured.

        Args:
            texts: Texts.
        """

        def make_ids() -> list[list[int]]:
            batch = self._manager.tokenize_batch(self.loaded, texts, self.loaded.config)
            return batch["input_ids"]

        return attempt(make_ids)

    def decode(self, ids: Sequence[int]) -> Result[str, TokenlakeError]:
        """Return the text of ids, special tokens included.

        Args:
            ids: Ids, int[n].
        """
        return attempt(lambda: self.loaded.decode(ids))


PipelineError = TokenlakeError
ConfigurationError = ConfigError
IntrospectionError = DataLoadingError = SourceError
TokenizationError = TokenizerError

_T = TypeVar("_T")
_TORCH: Final = (
    "PackedDataset",
    "PreprocessedDataset",
    "StreamingPreprocessedDataset",
    "DataLoaderBuilder",
    "is_too_long",
    "process_place",
)
_of_torch: Final = lazy_names(
    "tokenlake",
    {name: f"tokenlake.data_pipeline.dataloader:{name}" for name in _TORCH},
    "torch",
)
"""Names that need PyTorch, which nothing else of a pipeline does."""
_WHOLE: Final = 1 << 30
"""A limit that no example reaches."""
_BUFFER: Final = 1000
"""Rows of a stream among which the next is drawn."""
_EXAMPLE: Final = (
    "{type: data_module, dataset: {name: org/name}, tokenizer: openai-community/gpt2}"
)


@final
class DataPipeline:
    """Rows of a dataset as batches of prompts and answers, described by one YAML file.

    Everything is opened on first use. Threads may share a pipeline; each resource is
    opened once.

    Args:
        config: Configuration, mapping of its keys, or path of a YAML file.
        tokenizer: Tokenizer that replaces the configured one: a path, or an object of
            transformers or tokenizers. None: the configured one.
        datasets: Name of a split -> its rows (a sequence or a source), which replace
            the configured dataset. None: the configured one.

    Raises:
        ConfigError: The configuration is wrong. The message has a line for each
            problem.

    Example:
        >>> from tokenlake.data_pipeline import DataPipeline
        >>> config = {
        ...     "dataset": {"name": "lake"},
        ...     "prompt_template": {"template": "Q: {question} A: {answer}", "label_column": "answer"},
        ...     "tokenizer": {"name_or_path": "openai-community/gpt2", "max_length": 32},
        ...     "dataloader": {"batch_size": 2},
        ... }
        >>> rows = [{"question": "How deep is it?", "answer": "Nine metres."}] * 4
        >>> pipeline = DataPipeline(config, datasets={"train": rows})
        >>> batch = next(iter(pipeline.get_dataloader("train").unwrap()))
        >>> batch["input_ids"].shape
        torch.Size([2, 32])
    """

    def __init__(
        self,
        config: DataModuleConfig | Mapping[str, Any] | str | os.PathLike[str],
        *,
        tokenizer: Any = None,
        datasets: Mapping[str, Sequence[Mapping[str, Any]] | ShardedDataSource]
        | None = None,
    ) -> None:
        # Rows and tokenizers that are passed as objects replace the configured ones, so
        # that a pipeline needs no files.
        self.config: Final = load_section(DataModuleConfig, config, example=_EXAMPLE)[0]
        self._given = tokenizer
        self._datasets = dict(datasets or {})
        # Each resource by its name, once it is opened. A resource may need others, so
        # that the lock is one that its holder can take again.
        self._lock = threading.RLock()
        self._opened: dict[str, Any] = {}

    @classmethod
    def from_config(
        cls,
        config: DataModuleConfig | Mapping[str, Any] | str | os.PathLike[str],
        **objects: Any,
    ) -> Result[Self, TokenlakeError]:
        """Return the pipeline, or the error of its configuration.

        Args:
            config: Configuration, as for the class.
            objects: `tokenizer` and `datasets`, as for the class.
        """
        return attempt(lambda: cls(config, **objects))

    @property
    def tokenizer(self) -> TokenizerWrapper:
        """Tokenizer, loaded on first use.

        Raises:
            TokenizerError: It cannot be loaded.
        """
        tokenizer = self._given
        if tokenizer is None:
            tokenizer = self.config.tokenizer_config
        return self._once("tokenizer", lambda: TokenizerWrapper(tokenizer))

    @property
    def prompt_engine(self) -> PromptEngine:
        """Engine that makes examples of rows.

        It does not pad, because batches do. Packed examples are not cut.
        """
        options = self.config.prompt_template
        files = self.tokenizer.loaded.files
        # A packed example is whole: packing decides which ids fit into a row.
        cuts = self._cuts
        max_length = self._width
        if self._packs and not cuts:
            max_length = _WHOLE
        shortens = self.config.dataloader.long_prompts == "shorten"

        def make_engine() -> PromptEngine:
            return PromptEngine(
                options,
                files,
                max_length=max_length,
                truncation=cuts,
                padding=False,
                budget="proportional" if shortens else None,
            )

        return self._once("engine", make_engine)

    @property
    def _packs(self) -> bool:
        """Whether examples are packed into rows."""
        return "packing" in self.config.dataset.stages

    @property
    def _cuts(self) -> bool:
        """Whether examples that are too long are cut.

        Where they are packed, they are cut only if that is configured.
        """
        # The option has three states: true, false, and not written.
        truncation = self.config.tokenizer_config.truncation
        if self._packs:
            return truncation is True
        return truncation is not False

    @property
    def _width(self) -> int:
        """Most ids of a row."""
        return self.config.tokenizer_config.max_length or DEFAULT_MAX_LENGTH

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        configured = (split.name for split in self.config.dataset.splits)
        return tuple(self._datasets) or tuple(configured)

    def discover(self) -> Result[DatasetMetadata, TokenlakeError]:
        """Return subsets, splits and columns of the dataset, or the error.

        They are found without downloading the dataset.
        """
        dataset = self.config.dataset
        name = dataset.name.replace("{split}", dataset.splits[0].name)
        return DatasetIntrospector().discover(name, dataset.config_name)

    def get_dataset(self, split: str = "train") -> Result[Any, TokenlakeError]:
        """Return a split as a `PreprocessedDataset`, or the error.

        The class is `StreamingPreprocessedDataset` for a streamed dataset, and
        `PackedDataset` for a packed one.

        Args:
            split: Name of the split.
        """
        return attempt(lambda: self._dataset(split))

    def get_dataloader(
        self,
        split: str = "train",
        *,
        shuffle: bool | None = None,
        distributed: bool = False,
        batch_size: int | None = None,
    ) -> Result[Any, TokenlakeError]:
        """Return a ``torch.utils.data.DataLoader`` of a split, or the error.

        Batches are dicts of `input_ids`, `attention_mask` and `labels`, (batch_size,
        width) each. The width is `tokenizer.max_length`, or with ``padding: longest``
        that of the longest row.

        Args:
            split: Name of the split.
            shuffle: True for another order in each epoch; None: `dataloader.shuffle` of
                the configuration.
            distributed: True for this process's share of the rows, as in
                ``torch.distributed``.
            batch_size: Rows of a batch; None: `dataloader.batch_size` of the
                configuration.
        """
        return attempt(lambda: self._loader(split, shuffle, distributed, batch_size))

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        """Return a resource by its name, made by the first call."""
        with self._lock:
            if name not in self._opened:
                self._opened[name] = make()
            return cast("_T", self._opened[name])

    def _spec(self, split: str) -> SplitSpec:
        """Return the settings of a split.

        Raises:
            ConfigError: The dataset has no such split.
        """
        if split not in self.splits:
            splits = ", ".join(map(repr, self.splits))
            raise ConfigError(
                f"dataset.splits: no split {split!r}{did_you_mean(split, self.splits)}; expected one of {splits}",
                field_path="dataset.splits",
                expected=splits,
                got=split,
            )
        specs = {spec.name: spec for spec in self.config.dataset.splits}
        return specs.get(split, SplitSpec(name=split))

    def _rows(self, spec: SplitSpec) -> Any:
        """Return the rows of a split, at most `sample_size`.

        They are of the configuration, or of the datasets that replace it. They are in
        their own order, or shuffled by the seed of the split.
        """
        # 1. The rows, with the names that the configuration gives the columns.
        rows: Any = self._datasets.get(spec.name)
        column_mapping = self.config.dataset.column_mapping or {}
        name_of_column = {column: name for name, column in column_mapping.items()}
        steps: list[Callable[[dict[str, Any]], dict[str, Any]]] = []
        if rows is None:
            config = pipeline_of(self.config, build=False)
            dataset = config.get_dataset_by_name(spec.name)
            assert dataset is not None
            rows = open_dataset(config, dataset)  # renames the columns, too
        elif name_of_column:
            steps.append(RenameFields(name_of_column))
        columns = self.config.dataset.columns
        if columns is not None:
            selected_names = [name_of_column.get(column, column) for column in columns]
            steps.append(SelectFields(selected_names))
        is_source = isinstance(rows, ShardedDataSource)
        for step in steps:
            # A source maps its rows when they are read; a list is mapped at once.
            if is_source:
                rows = rows.map(step)
            else:
                rows = [step(dict(row)) for row in rows]

        # 2. The first rows of a stream, or a sample of all rows.
        if self.config.dataset.streaming:
            if spec.sample_size is None:
                return rows
            if is_source:
                return LimitedShardedSource(rows, spec.sample_size)
            return rows[: spec.sample_size]
        rows = list(rows)
        if spec.shuffle:
            random.Random(spec.seed).shuffle(rows)
        return rows[: spec.sample_size]

    def _dataset(
        self, split: str, *, shuffle: bool = False, place: tuple[int, int] = (0, 1)
    ) -> Any:
        """Return the dataset of a split.

        Args:
            split: Name of the split.
            shuffle: Whether a stream is shuffled.
            place: Rank of this process, and number of processes.
        """
        self._check_loading()
        spec = self._spec(split)
        rows = self._once(f"rows {split}", lambda: self._rows(spec))
        if not self.config.dataset.streaming:
            # Rows that are too long are found once, not once for every loader.
            rows = self._once(f"usable {split}", lambda: self._usable(split, rows))
            if self._packs:
                return self._once(f"packed {split}", lambda: self._packed(rows))
            return _of_torch("PreprocessedDataset")(rows, self.prompt_engine)
        if spec.shuffle and spec.sample_size is not None:
            raise ConfigError(
                f"dataset.splits.{split}.shuffle: true, but a stream can only take its first sample_size rows; write "
                "streaming: false or shuffle: false"
            )
        # A stream is shuffled within a buffer, because its rows cannot be permuted.
        shuffle_buffer = 0
        if shuffle or spec.shuffle:
            shuffle_buffer = _BUFFER
        streaming = _of_torch("StreamingPreprocessedDataset")
        return streaming(
            rows,
            self.prompt_engine,
            shuffle_buffer=shuffle_buffer,
            seed=spec.seed,
            skip_long=self.config.dataloader.long_prompts == "skip",
            rank=place[0],
            world_size=place[1],
            drop_last=self.config.dataloader.drop_last,
        )

    def _packed(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return a split as a `PackedDataset`.

        Its rows are those that a build of the file packs in one unit.
        """
        examples = _of_torch("PreprocessedDataset")(rows, self.prompt_engine)
        source = IterableShardedSource(
            examples[row_index] for row_index in range(len(rows))
        )
        packed_rows = PackedShardedSource(
            source, seq_length=self._width, tokenizer=self.tokenizer.loaded
        )
        return _of_torch("PackedDataset")(packed_rows)

    def _usable(
        self, split: str, rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split without those that are too long.

        A warning states the number that is left out or cut.

        With ``long_prompts: fail``, no row is read here.
        """
        policy = self.config.dataloader.long_prompts
        engine = self.prompt_engine
        if policy == "fail":
            return rows
        # Each row is put through the engine once, before the first batch: a count in
        # the middle of training would come too late.
        shortened_before = engine.shortened
        usable: list[Mapping[str, Any]] = []
        for row in rows:
            result = engine.process(row)
            is_skipped = False
            if isinstance(result, Err):
                is_skipped = _of_torch("is_too_long")(result.error)
            if not (is_skipped and policy == "skip"):
                usable.append(row)
        skipped = len(rows) - len(usable)
        shortened = engine.shortened - shortened_before
        if skipped or shortened:
            outcome = f"{shortened:,} were shortened"
            if policy == "skip":
                outcome = f"{skipped:,} were left out"
            warnings.warn(
                f"dataset.splits.{split}: of {len(rows):,} rows {outcome}, because their prompts are longer than "
                f"tokenizer.max_length allows ({engine.max_length:,}); dataloader.long_prompts is {policy}",
                RuntimeWarning,
                stacklevel=2,
            )
        return usable

    def _check_loading(self) -> None:
        """Refuse options of the file that a build acts on and a loader does not.

        Raises:
            ConfigError: The message has a line for each of them.
        """
        config = self.config
        tokenizer = self.config.tokenizer_config
        # All problems are collected, so that one message names them all.
        problems: list[str] = []
        if self._packs and config.dataset.streaming:
            problems.append(
                "dataset.stages: packing, but streamed rows are not packed while they are loaded; write streaming: "
                "false, or build the file (`tokenlake run FILE`) and load the version with tl.torch_dataset"
            )
        if self._packs and not self._cuts and config.dataloader.long_prompts != "fail":
            problems.append(
                f"dataloader.long_prompts: {config.dataloader.long_prompts}, but packing keeps long prompts whole; "
                "leave it out, or write tokenizer.truncation: true"
            )
        packed_names = [name for name in config.output_schema if name in PACKED_NAMES]
        if packed_names and not self._packs:
            problems.append(
                f"output_schema.{packed_names[0]}: only packed rows have it; add `packing` to dataset.stages, or "
                "leave it out"
            )
        if not tokenizer.add_special_tokens:
            problems.append(
                "tokenizer.add_special_tokens: false, but prompt_template determines BOS and EOS of prompts; write "
                "prompt_template.add_bos: false and prompt_template.add_eos: false"
            )
        if not tokenizer.return_attention_mask:
            problems.append(
                "tokenizer.return_attention_mask: false, but output_schema lists the tensors of a batch; leave "
                "attention_mask out of it"
            )
        if not config.output_schema:
            problems.append(
                "output_schema: got no tensor, must name at least one, such as {input_ids: int64}"
            )
        if self._given is not None and tokenizer.special_tokens:
            problems.append(
                "tokenizer.special_tokens: set, but the given tokenizer (tokenizer=...) has its own; leave one of "
                "them out"
            )
        is_conversation = config.prompt_template.conversation
        if config.dataloader.long_prompts == "shorten" and is_conversation:
            problems.append(
                "dataloader.long_prompts: shorten, but rows are conversations, which cannot be shortened; write skip"
            )
        raise_problems(ConfigError, problems)

    def _loader(
        self,
        split: str,
        shuffle: bool | None,
        distributed: bool,
        batch_size: int | None,
    ) -> Any:
        """Return the loader of a split, as :meth:`get_dataloader`."""
        options = self.config.dataloader
        spec = self._spec(split)
        tokenizer = self.config.tokenizer_config
        is_shuffled = options.shuffle if shuffle is None else shuffle
        is_stream = self.config.dataset.streaming
        place = _of_torch("process_place")() if distributed else (0, 1)
        padding = "longest"
        if tokenizer.padding == "max_length":
            padding = "max_length"
        padding_side = "right"
        if self.tokenizer.loaded.pads_left(tokenizer):
            padding_side = "left"

        # A stream shuffles and divides its own rows. Any other dataset leaves that to
        # the sampler of the loader.
        builder = (
            _of_torch("DataLoaderBuilder")()
            .with_dataset(self._dataset(split, shuffle=is_shuffled, place=place))
            .with_batch_size(
                batch_size or options.batch_size, drop_last=options.drop_last
            )
            .with_pin_memory(options.pin_memory)
            .with_shuffle(is_shuffled and not is_stream, seed=spec.seed)
            .with_workers(
                options.num_workers,
                persistent=options.persistent_workers,
                prefetch_factor=options.prefetch_factor,
            )
            .with_padding(
                self.tokenizer.pad_token_id,
                padding=padding,
                padding_side=padding_side,
                max_length=tokenizer.max_length,
                integers=dict(self.config.output_schema),
            )
        )
        if distributed and not is_stream:
            builder = builder.with_distributed(*place)
        return builder.build().unwrap()

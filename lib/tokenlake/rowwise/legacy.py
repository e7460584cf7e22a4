"""EasyDeL's older interface: a mixture of text datasets, described by one object.

One call opens it.

The object describes the files of each dataset, and the way in which rows are read.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self, final, overload

from pydantic import TypeAdapter, ValidationError

from tokenlake.base.checks import expected
from tokenlake.base.section import LITERALS_REFUSED, Options
from tokenlake.config.load import load_config
from tokenlake.errors import BadRecordError, ConfigError, NotAvailableError, SourceError
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.executors import ExecutorName, present_executor
from tokenlake.etl.observability.build import observed
from tokenlake.etl.planner import Configuration
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import BuildResult
from tokenlake.etl.runner import build_dataset as build_version
from tokenlake.etl.sources.layout import TRAIN
from tokenlake.rowwise.combine import (
    BatchedShardedSource,
    CompositeShardedSource,
    PackedShardedSource,
)
from tokenlake.rowwise.files import DatasetType, create_source
from tokenlake.rowwise.mixed import MixedShardedSource
from tokenlake.rowwise.shards import Row, fields_in
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.runtime.mixing.weights import check_weight_names
from tokenlake.runtime.store.outputs import require_outside_stores

_LOADS: Final = (
    "an AsyncDataLoader prepares batches ahead: AsyncDataLoader(mixture.build(), ...)"
)
_READS: Final = (
    "remote files are always read in ranges, and failed requests are retried"
)
# Options of the interface that other parts of the library replace, and which ones.
_ELSEWHERE: Final = {
    "prefetch_workers": _LOADS,
    "prefetch_buffer_size": _LOADS,
    "cloud_max_retries": _READS,
    "cloud_retry_delay": _READS,
    "cache_remote_files": _READS,
    "cache_expiry_seconds": _READS,
    "cache_dir": "TOKENLAKE_CACHE is the folder of indexes, and HF_HOME that of files of the Hub",
    "image_target_field": "rows are texts and tokens; images are not supported",
}


@final
@dataclass(frozen=True, slots=True)
class DatasetMixture:
    """Datasets, and the way in which their rows become one stream.

    :func:`tokenlake.build_dataset` opens it.

    Attributes:
        informs: Datasets.
        streaming: Whether the datasets are mixed. False: one after the other, as they
            are, which takes no weights.
        text_target_field: Field that gets every dataset's text.
        batch_size: Number of rows per batch. Above 1, rows are batches: {field: list of
            values}.
        seed: Random seed of the shuffle inside blocks; None is 0.
        block_mixture: Whether datasets are mixed by weights, in blocks of
            `mixture_block_size` rows. False: the datasets take turns, a row of each,
            until the first one ends.
        mixture_block_size: Number of rows per block.
        stop_strategy: Action at the end of a dataset: ``restart`` it, stop
            (``first_exhausted``), or continue with the others (``all_exhausted``).
        mixture_weights: Weight of each dataset: shares, percentages, or ratios of whole
            numbers; None: equal ones. If the keys are the datasets' names, they apply
            by name. If no dataset has a name, they apply in order, and name the
            datasets.
        shuffle_buffer_size: Number of rows in a buffer from which rows are drawn at
            random; None: in the mixture's order.
        tokenize_callback: Function of a row that returns its ids. Rows are then
            ``{tokens_field_name: ids}``.
        pack_tokens: Whether the ids in `tokens_field_name` are packed into rows of
            `pack_seq_length`, with ``input_ids``.
        pack_on_the_fly: The same, for the ids that `tokenize_callback` returns.
        tokens_field_name: Field of a row's ids.
        pack_seq_length: Number of tokens of a packed row.
        pack_eos_token_id: Id that is put after each document.
        pack_shuffle: Whether packed rows are shuffled.
        pack_shuffle_buffer_factor: A quarter of the number of packed rows that are
            shuffled at a time.
        dask_storage_options: `storage_options` of datasets that have none.
        cache_dir: Refused, like the options below; the error names the option that has
            this effect.
        prefetch_workers, prefetch_buffer_size: Refused.
        cloud_max_retries, cloud_retry_delay: Refused.
        cache_remote_files, cache_expiry_seconds: Refused.
        image_target_field: Refused.
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
    tokens_field_name: str = "tokens"
    pack_seq_length: int | None = None
    pack_eos_token_id: int | None = None
    pack_shuffle: bool = True
    pack_shuffle_buffer_factor: int = 16
    pack_on_the_fly: bool = False
    tokenize_callback: Callable[[dict[str, Any]], Any] | None = None
    dask_storage_options: Mapping[str, Any] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    prefetch_workers: int | None = None
    prefetch_buffer_size: int | None = None
    cloud_max_retries: int | None = None
    cloud_retry_delay: float | None = None
    cache_remote_files: bool | None = None
    cache_expiry_seconds: int | None = None
    image_target_field: str | None = None

    def __post_init__(self) -> None:
        """Check everything that needs no file.

        Raises:
            ConfigError: An option is not allowed, or contradicts another one.
            NotAvailableError: An option is set that other parts of the library replace.
        """
        # The informs may be anything: a list of them is checked first.
        informs = self.informs if isinstance(self.informs, list | tuple) else ()
        are_informs = all(
            isinstance(inform, TextDatasetInform)  # pyright: ignore[reportUnnecessaryIsInstance]
            for inform in informs
        )
        if not informs or not are_informs:
            raise expected(
                "informs", self.informs, "a list of at least one TextDatasetInform"
            )
        for option, replacement in _ELSEWHERE.items():
            if getattr(self, option) is not None:
                raise NotAvailableError(
                    f"DatasetMixture: {option} is not available: {replacement}; leave it out"
                )
        self._check_mixing()
        # Packing needs ids, and its two settings.
        if self.pack_on_the_fly and self.tokenize_callback is None:
            raise ConfigError(
                "DatasetMixture: pack_on_the_fly needs a tokenize_callback; pack_tokens packs ids"
            )
        for option in ("pack_seq_length", "pack_eos_token_id"):
            is_set = getattr(self, option) is not None
            if is_set != self._packs:
                problem = "has no effect without pack_tokens or pack_on_the_fly"
                if self._packs:
                    problem = "is needed to pack"
                raise ConfigError(f"DatasetMixture: {option} {problem}")
        self._names()

    def _check_mixing(self) -> None:
        """Raise ConfigError for options that the kind of mixing ignores."""
        has_weights = self.mixture_weights is not None
        # Datasets one after the other have neither weights nor batches; datasets that
        # take turns have no weights.
        if not self.streaming:
            switch = "streaming"
            has_ignored_option = has_weights or self.batch_size != 1
        else:
            switch = "block_mixture"
            has_ignored_option = not self.block_mixture and has_weights
        if has_ignored_option:
            option = "mixture_weights" if has_weights else "batch_size"
            raise ConfigError(
                f"DatasetMixture: {option} has no effect with {switch}=False; leave one out"
            )

    def build(self) -> ShardedDataSource:
        """Return the rows: dicts with the text and the kept fields.

        Mixed rows have the name of their dataset in ``__source__``.

        Raises:
            ConfigError: An option of a dataset is not allowed, or weights are not
                shares.
            SourceNotFoundError: Files of a dataset do not exist.
        """
        opened: list[ShardedDataSource] = []
        for inform in self._informs_with_options():
            opened.append(inform.open(self.text_target_field))
        # One stream of rows.
        rows: ShardedDataSource
        if not self.streaming:
            rows = CompositeShardedSource(opened)
        else:
            # Without blocks the datasets take turns: a block of one row each.
            block_size = len(opened)
            stop_strategy = "first_exhausted"
            if self.block_mixture:
                block_size = self.mixture_block_size
                stop_strategy = self.stop_strategy
            rows = MixedShardedSource(
                dict(zip(self._names(), opened, strict=True)),
                weights=self.mixture_weights,
                block_size=block_size,
                seed=self.seed,
                stop_strategy=stop_strategy,
            )
        # Steps over the stream, in this order.
        if self.shuffle_buffer_size is not None:
            rows = rows.shuffle(self.seed, self.shuffle_buffer_size)
        if self.tokenize_callback is not None:
            callback = self.tokenize_callback
            tokens_field = self.tokens_field_name
            rows = rows.map(lambda row: {tokens_field: callback(row)})
        if self._packs:
            rows = PackedShardedSource(
                rows,
                seq_length=self.pack_seq_length,
                eos_token_id=self.pack_eos_token_id,
                input_field=self.tokens_field_name,
                shuffle=self.pack_shuffle,
                shuffle_buffer_factor=self.pack_shuffle_buffer_factor,
                seed=self.seed,
            )
        if self.batch_size != 1:
            rows = BatchedShardedSource(rows, self.batch_size)
        return rows

    def to_json_string(self) -> str:
        """Return the options that were set, as JSON.

        Raises:
            ConfigError: A function was set, or JSON cannot contain a dataset
                (:meth:`TextDatasetInform.to_json`).
        """
        if self.tokenize_callback is not None:
            raise ConfigError(f"tokenize_callback: {_NO_FUNCTION}")
        json_values = set_fields(self)
        json_values["informs"] = [
            inform.to_json() for inform in self._informs_with_options()
        ]
        # The options are written with each dataset, which hides secrets.
        json_values.pop("dask_storage_options", None)
        return json.dumps(json_values, indent=2, default=dict)

    def save_mixture(self, json_file_path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_json_string` to a file, for :meth:`load_mixture`.

        Raises:
            ConfigError: The file lies in a store.
        """
        require_outside_stores(json_file_path, "json_file_path")
        Path(json_file_path).write_text(self.to_json_string(), encoding="utf-8")

    @classmethod
    def load_mixture(cls, json_file: str | os.PathLike[str]) -> Self:
        """Return the mixture in a file; ConfigError if the file has none."""
        try:
            json_values = json.loads(Path(json_file).read_text(encoding="utf-8"))
            json_values["informs"] = [
                TextDatasetInform.from_json(inform) for inform in json_values["informs"]
            ]
            return cls(**json_values)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{os.fspath(json_file)}: not a mixture ({error}); expected a file that save_mixture wrote"
            ) from error

    @property
    def _packs(self) -> bool:
        """Whether rows of tokens are packed."""
        return self.pack_tokens or self.pack_on_the_fly

    def _informs_with_options(self) -> list[TextDatasetInform]:
        """Return the datasets, each with storage options.

        They are its own, or else those of the mixture.
        """
        shared_options = self.dask_storage_options
        if not shared_options:
            return list(self.informs)
        informs: list[TextDatasetInform] = []
        for inform in self.informs:
            if not inform.storage_options:
                inform = replace(inform, storage_options=shared_options)
            informs.append(inform)
        return informs

    def _names(self) -> tuple[str, ...]:
        """Return the name of each dataset.

        Raises:
            ConfigError: Names are equal, or weights have other names.
        """
        default_names = tuple(f"dataset_{place}" for place in range(len(self.informs)))
        given_names: list[str] = []
        for inform, default_name in zip(self.informs, default_names, strict=True):
            given_names.append(inform.name or default_name)
        names = tuple(given_names)
        if len(set(names)) < len(names):
            raise ConfigError(
                f"DatasetMixture: informs: got the names {list(names)}, expected a different name for each dataset"
            )
        weights = self.mixture_weights
        if weights is None:
            return names
        # Weights of datasets without names apply in order, and name them.
        has_default_names = names == default_names and len(weights) == len(names)
        if has_default_names and not set(weights) & set(names):
            return tuple(weights)
        check_weight_names("DatasetMixture: mixture_weights", names, tuple(weights))
        return names


@overload
def build_dataset(config: DatasetMixture) -> ShardedDataSource: ...


@overload
def build_dataset(
    config: Configuration,
    *,
    workers: int | None = None,
    on_event: Watcher = ignore,
    retries: int = 2,
    pool: WorkerPool | None = None,
    executor: ExecutorName | None = None,
    engine: ExecutorName | None = None,
) -> BuildResult: ...


def build_dataset(
    config: Configuration | DatasetMixture, **options: Any
) -> BuildResult | ShardedDataSource:
    """Build a version of a dataset on this machine.

    For a :class:`DatasetMixture`, return its rows.

    A build resumes the finished units of an interrupted one. If an equal version
    exists, it is returned.

    Args:
        config: Configuration, mapping of its keys, or path of a YAML file, from which a
            version is built. Of a DatasetMixture nothing is written: a source of its
            rows is returned, which reads while it is iterated.
        workers: Number of worker processes; None: one for each processor that this
            process may use, limited by memory.
        executor: Place where units run: ``local``, ``store``, ``ray`` or ``dask``;
            None: the one that the configuration names, otherwise ``local``.
        engine: Former name of `executor`, for one release.
        on_event: Function that receives the events of the build, called from several
            threads. Default: none is called.
        retries: Number of times that a unit is tried again after an error that may be
            temporary; 2 by default.
        pool: Running workers that are used in place of `workers` new ones, and stay
            open; None: new workers.

    Returns:
        The committed version; or the rows of a mixture, as dicts.

    Raises:
        ConfigError: The configuration is wrong. The message has a line for each
            problem.
        SourceError: An input cannot be read.
        TokenlakeError: The build failed, see :mod:`tokenlake.errors`. Finished units
            are kept, and the same call resumes.

    Example:
        >>> import tokenlake as tl
        >>> config = {
        ...     "name": "books",
        ...     "datasets": [{"name": "books", "data_files": "data/books/*.jsonl"}],
        ...     "default_tokenizer": "openai-community/gpt2",
        ...     "source": {"splits": {"train": 0.9, "validation": 0.1}},
        ...     "pack": {"enabled": True, "seq_length": 64},
        ...     "save": {"output_dir": "new"},
        ... }
        >>> result = tl.build_dataset(config, workers=1)
        >>> train, validation = tl.open("new/books"), tl.open("new/books", split="validation")
        >>> train.seq_length, len(train) > len(validation)
        (64, True)
    """
    # A build: options go to the builder.
    if not isinstance(config, DatasetMixture):
        options["executor"] = present_executor(
            options.get("executor"), options.pop("engine", None)
        )
        build_config = load_config(config)
        with observed(build_config, options.pop("on_event", ignore)) as watcher:
            return build_version(build_config, **options, on_event=watcher)
    if options:
        raise ConfigError(
            f"{', '.join(options)}: without effect on a DatasetMixture; leave them out"
        )
    return config.build()


DatasetLoadError = SourceError
"""Error of a dataset that cannot be loaded."""

# Fields of a dataset that the configuration of a source has, too.
_OF_FILES: Final = (
    "data_files",
    "num_rows",
    "dataset_split_name",
    "split",
    "subset",
    "storage_options",
    "name",
)
_NO_FUNCTION: Final = (
    "JSON cannot contain functions; set it after loading with dataclasses.replace"
)
_OPTIONS: Final[TypeAdapter[Any]] = TypeAdapter(Options)


class BaseDatasetInform(ABC):
    """Dataset of a mixture."""

    __slots__ = ()

    @abstractmethod
    def get_str_type(self) -> str | None:
        """Return the type of the files as text; None: by the extension of each."""


@final
@dataclass(frozen=True, slots=True)
class TextDatasetInform(BaseDatasetInform):
    """One text dataset of a mixture: its files, and the way in which rows are read.

    Attributes:
        type: Type of the files: json, jsonl, parquet, arrow, csv, tsv, txt, huggingface
            or hf; None: by the extension of each file. ``json`` files may be an array
            of objects or have an object on every line: their first character decides.
            ``txt`` files have a text on every line, which gets the name
            `content_field`.
        data_files: File, glob, directory, URL or Hub id, or a list of them.
        num_rows: Maximum number of rows to read.
        dataset_split_name: Split to read, if it is not `split`.
        split: Split of a Hub dataset, or of a folder whose names contain splits.
        format_callback: Function of a row, applied after `format_fields`. If it returns
            None, the row is left out.
        format_fields: Fields to rename first, {old: new}; a row that lacks one is an
            error. Names inside messages stay (:class:`tokenlake.ConvertToChatML` knows
            those).
        content_field: Field of the text, which the mixture renames to its
            `text_target_field`; None keeps all fields as they are. Rows without it that
            have `chosen` and `rejected` stay as they are.
        additional_fields: Fields to keep beside the text; a row that lacks one is an
            error. All others are left out.
        name: Name of the dataset in the mixture; None: dataset_0, dataset_1, ... in
            order.
        subset: Configuration of a Hub dataset, or of a folder whose README.md has
            ``configs:``.
        storage_options: Options of the file system of the files.
    """

    type: DatasetType | str | None = None
    data_files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    num_rows: int | None = None
    dataset_split_name: str | None = None
    split: str = "train"
    format_callback: Callable[[Row], Row | None] | None = None
    format_fields: Mapping[str, str] | None = None
    content_field: str | None = "content"
    additional_fields: Sequence[str] | None = None
    name: str | None = None
    subset: str | None = None
    storage_options: Mapping[str, Any] | None = None

    def get_str_type(self) -> str | None:
        """Return `type` as text."""
        if self.type is None:
            return None
        return str(self.type)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were set, as values of JSON.

        :meth:`from_json` reads them.

        Raises:
            ConfigError: A function was set, or a credential that is not ``{env: NAME}``
                or ``{block: NAME}``.
        """
        if self.format_callback is not None:
            raise ConfigError(f"format_callback: {_NO_FUNCTION}")
        # Secrets are written as references only.
        storage_options = dict(self.storage_options or {})
        try:
            options = _OPTIONS.validate_python(
                storage_options, context={LITERALS_REFUSED: True}
            )
        except ValidationError as error:
            raise ConfigError(
                f"storage_options: {error.errors(include_url=False)[0]['msg']}"
            ) from None
        json_values = set_fields(self)
        json_values["storage_options"] = (
            _OPTIONS.dump_python(options, mode="json") or None
        )
        data_files = self.data_files
        if isinstance(data_files, str | os.PathLike):
            json_values["data_files"] = os.fspath(data_files)
        elif data_files is not None:
            json_values["data_files"] = [os.fspath(file) for file in data_files]
        return json_values

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the dataset that :meth:`to_json` described.

        Raises:
            ConfigError: The value has other fields.
        """
        try:
            return cls(**value)
        except TypeError as error:
            raise ConfigError(
                f"informs: {error}; expected the fields of a TextDatasetInform"
            ) from None

    def open(self, target: str) -> ShardedDataSource:
        """Return the rows of the dataset, with their text in the field `target`.

        Raises:
            ConfigError: An option is not allowed.
            SourceNotFoundError: An entry of `data_files` matches nothing.
        """
        if self.data_files is None:
            raise expected(
                "TextDatasetInform: data_files",
                None,
                "a file, glob, directory, URL or Hub id",
            )
        # The steps over the rows, in this order.
        source = create_source(self._source_config())
        if self.format_fields:
            source = source.rename_fields(self.format_fields)
        if self.format_callback is not None:
            source = source.transform(self.format_callback)
        content = self.content_field
        fields = self.additional_fields or ()
        if content is None:
            return source
        are_names = all(
            isinstance(field, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            for field in fields
        )
        if isinstance(fields, str) or not are_names:
            raise expected(
                "additional_fields", fields, "a list of names, such as ['id']"
            )
        if target in fields and target != content:
            raise ConfigError(
                f"additional_fields: must not be {target!r}, the field for the text of {content!r}; rename it, or "
                "choose another text_target_field"
            )

        def to_target(row: Row) -> Row:
            # Pairs of answers have no text of their own.
            if content not in row and "chosen" in row and "rejected" in row:
                return row
            missing = [field for field in (content, *fields) if field not in row]
            if missing:
                raise BadRecordError(
                    f"the row lacks {', '.join(map(repr, missing))}; it has {fields_in(row)}. Every row must have the "
                    "fields named",
                    reason="missing_field",
                )
            kept_fields = {field: row[field] for field in fields}
            return {target: row[content], **kept_fields}

        return source.map(to_target)

    def _source_config(self) -> dict[str, Any]:
        """Return the dataset as the configuration of a source of rows."""
        config: dict[str, Any] = {field: getattr(self, field) for field in _OF_FILES}
        if self.split == TRAIN:
            # A written split would select among files that are named one by one; the
            # default does not.
            del config["split"]
        # The types of this interface, as settings of a source.
        file_type = self.get_str_type()
        config["type"] = file_type
        config["delimiter"] = None
        if file_type == "tsv":
            config["type"] = "csv"
            config["delimiter"] = "\t"
        if file_type in ("txt", "text"):
            config["text_mode"] = "lines"
            config["content_field"] = self.content_field or "text"
        return config


def set_fields(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass whose values differ from their defaults."""
    values: dict[str, Any] = {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        if value != field.default:
            values[field.name] = value
    return values

"""EasyDeL's older interface: a mixture of text datasets, described by one object and
opened by one call.

The object says of each dataset where its files are and how its rows are read.
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
    """Datasets, and how their rows become one stream; :func:`tokenlake.build_dataset`
    opens it.

    Attributes:
        informs: the datasets.
        streaming: mix them. False: one after the other, as they are, which takes no
            weights.
        text_target_field: field that gets every dataset's text.
        batch_size: above 1, rows come by the batch: {field: list of values}.
        seed: of the shuffle inside blocks; None is 0.
        block_mixture: mix by weights, in blocks of `mixture_block_size` rows. False:
            the datasets take turns, a row of each, until the first one ends.
        mixture_block_size: rows of a block.
        stop_strategy: when a dataset ends: ``restart`` it, stop (``first_exhausted``),
            or go on with the others (``all_exhausted``).
        mixture_weights: name to weight: shares, percentages, or ratios of whole
            numbers; None: equal ones. Where the keys are the datasets' names, they go
            by name; where no dataset was given a name, they go by place, and name the
            datasets.
        shuffle_buffer_size: rows are drawn at random from a buffer of so many; None: in
            the mixture's order.
        tokenize_callback: function of a row that returns its ids: rows are
            ``{tokens_field_name: ids}`` then.
        pack_tokens: pack the ids in `tokens_field_name` into rows of `pack_seq_length`,
            with ``input_ids``.
        pack_on_the_fly: the same, of what `tokenize_callback` returns.
        tokens_field_name: field of a row's ids.
        pack_seq_length, pack_eos_token_id: tokens of a packed row, and what is put
            after each document.
        pack_shuffle, pack_shuffle_buffer_factor: whether packed rows are shuffled, four
            times as many at a time as this factor.
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
        """Check what needs no file.

        Raises:
            ConfigError: an option is not what is allowed, or does not go with another.
            NotAvailableError: an option that other parts of the library stand for.
        """
        informs = self.informs if isinstance(self.informs, list | tuple) else ()
        are_informs = all(
            isinstance(inform, TextDatasetInform)  # pyright: ignore[reportUnnecessaryIsInstance]
            for inform in informs
        )
        if not informs or not are_informs:
            raise expected(
                "informs", self.informs, "a list of at least one TextDatasetInform"
            )
        for field, instead in _ELSEWHERE.items():
            if getattr(self, field) is not None:
                raise NotAvailableError(
                    f"DatasetMixture: {field} is not available: {instead}; leave it out"
                )
        weighted = self.mixture_weights is not None
        off = (
            "streaming"
            if not self.streaming
            else "block_mixture"
            if not self.block_mixture
            else ""
        )
        if (off and weighted) or (off == "streaming" and self.batch_size != 1):
            option = "mixture_weights" if weighted else "batch_size"
            raise ConfigError(
                f"DatasetMixture: {option} has no effect with {off}=False; leave one out"
            )
        if self.pack_on_the_fly and self.tokenize_callback is None:
            raise ConfigError(
                "DatasetMixture: pack_on_the_fly needs a tokenize_callback; pack_tokens packs ids"
            )
        for name in ("pack_seq_length", "pack_eos_token_id"):
            if (getattr(self, name) is not None) != self._packs:
                alone = "has no effect without pack_tokens or pack_on_the_fly"
                why = "is needed to pack" if self._packs else alone
                raise ConfigError(f"DatasetMixture: {name} {why}")
        self._names()

    def build(self) -> ShardedDataSource:
        """Return the rows: dicts with the text, the fields kept, and ``__source__``
        where they are mixed.

        Raises:
            ConfigError: an option of a dataset is not what is allowed, or weights are
                not shares.
            SourceNotFoundError: files of a dataset are not there.
        """
        opened = [
            inform.open(self.text_target_field)
            for inform in self._informs_with_options()
        ]
        rows: ShardedDataSource
        if not self.streaming:
            rows = CompositeShardedSource(opened)
        else:
            # Without blocks the datasets take turns: a block of one row each.
            rows = MixedShardedSource(
                dict(zip(self._names(), opened, strict=True)),
                weights=self.mixture_weights,
                block_size=self.mixture_block_size
                if self.block_mixture
                else len(opened),
                seed=self.seed,
                stop_strategy=self.stop_strategy
                if self.block_mixture
                else "first_exhausted",
            )
        if self.shuffle_buffer_size is not None:
            rows = rows.shuffle(self.seed, self.shuffle_buffer_size)
        if self.tokenize_callback is not None:
            callback, field = self.tokenize_callback, self.tokens_field_name
            rows = rows.map(lambda row: {field: callback(row)})
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
        return (
            rows
            if self.batch_size == 1
            else BatchedShardedSource(rows, self.batch_size)
        )

    def to_json_string(self) -> str:
        """Return what was set, as JSON.

        Raises:
            ConfigError: a function was set, or a dataset cannot be told in JSON
                (:meth:`TextDatasetInform.to_json`).
        """
        if self.tokenize_callback is not None:
            raise ConfigError(f"tokenize_callback: {_NO_FUNCTION}")
        values = set_fields(self)
        values["informs"] = [
            inform.to_json() for inform in self._informs_with_options()
        ]
        # The options are written with each dataset, which hides secrets.
        values.pop("dask_storage_options", None)
        return json.dumps(values, indent=2, default=dict)

    def save_mixture(self, json_file_path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_json_string` to a file, for :meth:`load_mixture`;
        ConfigError where it lies in a store.
        """
        require_outside_stores(json_file_path, "json_file_path")
        Path(json_file_path).write_text(self.to_json_string(), encoding="utf-8")

    @classmethod
    def load_mixture(cls, json_file: str | os.PathLike[str]) -> Self:
        """Return the mixture in a file; ConfigError if the file has none."""
        try:
            values = json.loads(Path(json_file).read_text(encoding="utf-8"))
            values["informs"] = [
                TextDatasetInform.from_json(inform) for inform in values["informs"]
            ]
            return cls(**values)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{os.fspath(json_file)}: not a mixture ({error}); expected a file that save_mixture wrote"
            ) from error

    @property
    def _packs(self) -> bool:
        return self.pack_tokens or self.pack_on_the_fly

    def _informs_with_options(self) -> list[TextDatasetInform]:
        """Return the datasets, each with its own storage options or else those of
        the mixture.
        """
        shared = self.dask_storage_options
        return [
            inform
            if inform.storage_options or not shared
            else replace(inform, storage_options=shared)
            for inform in self.informs
        ]

    def _names(self) -> tuple[str, ...]:
        """Return what the datasets are called, one name each."""
        auto = tuple(f"dataset_{place}" for place in range(len(self.informs)))
        names = tuple(
            inform.name or name for inform, name in zip(self.informs, auto, strict=True)
        )
        if len(set(names)) < len(names):
            raise ConfigError(
                f"DatasetMixture: informs: got the names {list(names)}, expected a different name for each dataset"
            )
        weights = self.mixture_weights
        if weights is None:
            return names
        if (
            names == auto
            and len(weights) == len(names)
            and not set(weights) & set(names)
        ):
            return tuple(weights)  # by place
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
    """Build a version of a dataset on this machine; of a :class:`DatasetMixture`,
    return its rows.

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
"""What a dataset that cannot be loaded raises."""
_OF_FILES: Final = (
    *(
        "data_files",
        "num_rows",
        "dataset_split_name",
        "split",
        "subset",
        "storage_options",
        "name",
    ),
)
_NO_FUNCTION: Final = (
    "JSON cannot contain functions; set it after loading with dataclasses.replace"
)
_OPTIONS: Final[TypeAdapter[Any]] = TypeAdapter(Options)


class BaseDatasetInform(ABC):
    """What a mixture takes as a dataset."""

    __slots__ = ()

    @abstractmethod
    def get_str_type(self) -> str | None:
        """Return the type of the files as text; None: by the extension of each."""


@final
@dataclass(frozen=True, slots=True)
class TextDatasetInform(BaseDatasetInform):
    """One text dataset of a mixture: where its files are and how its rows are read.

    Attributes:
        type: json, jsonl, parquet, arrow, csv, tsv, txt, huggingface or hf; None: by
            the extension of each file. ``json`` files may be an array of objects or
            have an object on every line: their first character tells. ``txt`` files
            have a text on every line, which gets the name `content_field`.
        data_files: file, glob, directory, URL or Hub id, or a list of them.
        num_rows: read at most this many rows.
        dataset_split_name: the split to read, where it is not `split`.
        split: of a Hub dataset, or of a folder whose names say splits.
        format_callback: function of a row, applied after `format_fields`; None as its
            result leaves the row out.
        format_fields: fields to rename first, {old: new}; a row that lacks one is an
            error. Names inside of messages stay (:class:`tokenlake.ConvertToChatML`
            knows those).
        content_field: field of the text, which the mixture renames to its
            `text_target_field`; None keeps all fields as they are. Rows without it that
            have `chosen` and `rejected` stay as they are.
        additional_fields: fields to keep beside the text; a row that lacks one is an
            error. All others are left out.
        name: what the mixture calls the dataset; None: dataset_0, dataset_1, ... by its
            place.
        subset: configuration of a Hub dataset, or of a folder whose README.md has
            ``configs:``.
        storage_options: options of the file system that the files are on.
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
        return None if self.type is None else str(self.type)

    def to_json(self) -> dict[str, Any]:
        """Return what was set, as values of JSON; :meth:`from_json` reads it.

        Raises:
            ConfigError: a function was set, or a credential that is not ``{env: NAME}``
                or ``{block: NAME}``.
        """
        if self.format_callback is not None:
            raise ConfigError(f"format_callback: {_NO_FUNCTION}")
        storage_options = dict(self.storage_options or {})
        try:
            options = _OPTIONS.validate_python(
                storage_options, context={LITERALS_REFUSED: True}
            )
        except ValidationError as error:
            raise ConfigError(
                f"storage_options: {error.errors(include_url=False)[0]['msg']}"
            ) from None
        values = set_fields(self)
        values["storage_options"] = _OPTIONS.dump_python(options, mode="json") or None
        files = self.data_files
        if isinstance(files, str | os.PathLike):
            values["data_files"] = os.fspath(files)
        elif files is not None:
            values["data_files"] = [os.fspath(file) for file in files]
        return values

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the dataset that :meth:`to_json` described; ConfigError if `value`
        has other fields.
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
            ConfigError: an option is not what is allowed.
            SourceNotFoundError: an entry of `data_files` matches nothing.
        """
        if self.data_files is None:
            raise expected(
                "TextDatasetInform: data_files",
                None,
                "a file, glob, directory, URL or Hub id",
            )
        config: dict[str, Any] = {field: getattr(self, field) for field in _OF_FILES}
        if self.split == TRAIN:
            # A written split would select among files that are named one by one; the
            # default does not.
            del config["split"]
        kind = self.get_str_type()
        config["type"] = kind
        config["delimiter"] = None
        if kind == "tsv":
            config["type"] = "csv"
            config["delimiter"] = "\t"
        if kind in ("txt", "text"):
            config["text_mode"] = "lines"
            config["content_field"] = self.content_field or "text"
        source = create_source(config)
        if self.format_fields:
            source = source.rename_fields(self.format_fields)
        if self.format_callback is not None:
            source = source.transform(self.format_callback)
        content, fields = self.content_field, self.additional_fields or ()
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
            why = f"must not be {target!r}, the field for the text of {content!r}"
            raise ConfigError(
                f"additional_fields: {why}; rename it, or choose another text_target_field"
            )

        def to_target(row: Row) -> Row:
            if content not in row and "chosen" in row and "rejected" in row:
                return row
            missing = [field for field in (content, *fields) if field not in row]
            if missing:
                raise BadRecordError(
                    f"the row lacks {', '.join(map(repr, missing))}; it has {fields_in(row)}. Every row must have the "
                    "fields named",
                    reason="missing_field",
                )
            return {target: row[content], **{field: row[field] for field in fields}}

        return source.map(to_target)


def set_fields(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass whose values differ from their defaults."""
    values: dict[str, Any] = {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        if value != field.default:
            values[field.name] = value
    return values

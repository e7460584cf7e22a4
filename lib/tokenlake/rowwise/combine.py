"""Sources made of other sources, and sources of rows in memory.

Other sources are joined, limited, batched or packed.

Rows in memory are lists, and objects of the `datasets` library, which this module does
not import. A map-style ``Dataset`` is an Arrow table, perhaps with an index over it, so
any row can be read at once. An ``IterableDataset`` is a recipe: its rows come in order,
and a row is reached by passing over those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import chain, count, islice, pairwise
from typing import Any, Final, cast, final

import numpy as np

from tokenlake.base.checks import expected, whole_number
from tokenlake.config.resolved import ResolvedPack
from tokenlake.config.stages import PackStageConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.packing.rows import PackedRows
from tokenlake.etl.plan.planned_tokenizer import packing_ids
from tokenlake.etl.tokenizers.manager import LoadedTokenizer
from tokenlake.rowwise.shards import (
    Numbered,
    Row,
    ShardInfo,
    beyond,
    fields_in,
    rows_from,
    section,
)
from tokenlake.rowwise.source import DerivedSource, NumberedSource, ShardedDataSource


@final
class CompositeShardedSource(NumberedSource):
    """Shards of several sources, one source after the other.

    Shards keep their names if all names differ. Otherwise every name begins with the
    index of its source: ``0/a.parquet``, ``1/a.parquet``.
    """

    def __init__(self, sources: Iterable[ShardedDataSource]) -> None:
        """Join sources.

        Args:
            sources: Sources in the order of their shards, at least one.

        Raises:
            ConfigError: There is no source, or one of them is something else.
        """
        expectation = "a list of at least one source"
        if isinstance(sources, ShardedDataSource) or not isinstance(sources, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("sources", sources, expectation)
        self._sources = tuple(sources)
        if not self._sources:
            raise expected("sources", sources, expectation)
        for source in self._sources:
            if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise expected("sources", source, expectation)

        # Names of the shards: those of the sources if all differ, else with their
        # index.
        # Shard of this source -> index of its source, and its name there.
        origins: list[tuple[int, str]] = []
        for index, source in enumerate(self._sources):
            origins += [(index, name) for name in source.shard_names]
        names = [name for _, name in origins]
        if len(set(names)) < len(names):
            names = [f"{index}/{name}" for index, name in origins]
        self._names = tuple(names)
        self._origins = origins

    @property
    def every_row(self) -> bool:
        return all(source.every_row for source in self._sources)

    @property
    def endless(self) -> bool:
        return any(source.endless for source in self._sources)

    def _rows(self, index: int, row: int) -> Numbered:
        source_index, shard_name = self._origins[index]
        return self._sources[source_index].open_shard_numbered(shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index = self._index(shard_name)
        source_index, name_in_source = self._origins[index]
        info = self._sources[source_index].get_shard_info(name_in_source)
        return replace(info, name=shard_name, index=index)


@final
class TokenLimitedSource(DerivedSource):
    """Rows of a source of one shard, up to a number of tokens.

    The row that reaches the number is included.
    """

    def __init__(self, source: ShardedDataSource, max_tokens: int) -> None:
        """Limit a source.

        Args:
            source: Source of one shard.
            max_tokens: Number of ids of ``input_ids``. The last row is not cut, so that
                there may be more.
        """
        self._source = source
        self._max_tokens = max_tokens

    @property
    def endless(self) -> bool:
        return False

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return replace(self._source.get_shard_info(shard_name), rows=None)

    # A row beyond the limit can be found only by counting the tokens of those before
    # it.
    def _rows(self, index: int, row: int) -> Numbered:
        shard_name = self.shard_names[index]

        def until_full() -> Iterator[Row]:
            tokens_left = self._max_tokens
            for number, limited_row in enumerate(self._source.open_shard(shard_name)):
                yield limited_row
                tokens_left -= len(_values_of(limited_row, "input_ids", number))
                if tokens_left <= 0:
                    return

        return rows_from(row, until_full(), shard_name)


@final
class BatchedShardedSource(DerivedSource):
    """Shards of another source, with one row for every `batch_size` of its rows.

    A row is {field: list of values}.

    The last batch of a shard may be smaller. A row that lacks a field of its batch has
    None there. Batches are numbered from 0 in their shard; batch b begins at row ``b *
    batch_size`` of the source.
    """

    def __init__(self, source: ShardedDataSource, batch_size: int) -> None:
        """Batch a source.

        Args:
            source: Source of the rows.
            batch_size: Number of rows per batch.

        Raises:
            ConfigError: `batch_size` is not a positive whole number.
        """
        self._source = source
        self._batch_size = whole_number("batch_size", batch_size, 1)

    @property
    def every_row(self) -> bool:
        return True

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        if info.rows is None or not self._source.every_row:
            return replace(info, rows=None)
        return replace(info, rows=-(-info.rows // self._batch_size))

    def _rows(self, index: int, row: int) -> Numbered:
        shard_name = self.shard_names[index]
        first_row = row * self._batch_size
        batch_count = self.get_shard_info(shard_name).rows
        if batch_count is None:
            # The source cannot seek to its n-th row: read from the beginning, and
            # count.
            rows = self._source.open_shard(shard_name)
            rows_before = sum(1 for _ in islice(rows, first_row))
            batch_count = -(-rows_before // self._batch_size)
        elif row < batch_count:
            rows = self._source.open_shard_at_row(shard_name, first_row)
        else:
            rows = iter(())
        # The end of the source: one row at its end gives nothing, and more are an
        # error.
        if row > batch_count:
            raise beyond(shard_name, row, batch_count)

        for number in count(row):
            batch = list(islice(rows, self._batch_size))
            if not batch:
                return
            # Fields in the order of their first occurrence.
            fields = dict.fromkeys(chain.from_iterable(batch))
            columns: Row = {}
            for field in fields:
                columns[field] = [batch_row.get(field) for batch_row in batch]
            yield number, columns


_PACKED: Final = "packed"  # name of the only shard


@final
class PackedShardedSource(NumberedSource):
    """Rows of tokens, packed into rows of `seq_length` tokens, in one shard.

    A row has these fields, where L is `seq_length`:

    - ``input_ids``: int32[L]
    - ``attention_mask``: int32[L], 1 for ids and 0 for padding
    - ``segment_ids``: int32[L], 1, 2, 3 ... for its documents and 0 for padding; not
      with ``include_segment_ids=False``
    - ``loss_mask``: bool[L], if documents have one

    Each document is followed by EOS, unless it ends with one. No token is lost. The
    rows equal those of a build that packs the same documents as one unit. An endless
    source is packed without end.

    A document is the ``input_ids`` of one row. Its ``loss_mask``, or its ``labels``
    that are not -100, decide which tokens count toward the loss. Its other fields are
    dropped.
    """

    _names = (_PACKED,)

    def __init__(
        self,
        source: ShardedDataSource,
        config: PackStageConfig | Mapping[str, Any] | int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        strategy: str | None = None,
        num_packers: int | None = None,
        include_segment_ids: bool | None = None,
        input_field: str = "input_ids",
        shuffle: bool | None = None,
        shuffle_buffer_factor: int | None = None,
        seed: int | None = None,
        *,
        seq_length: int | None = None,
        tokenizer: LoadedTokenizer | None = None,
    ) -> None:
        """Pack a source; nothing is read yet.

        The other arguments are those of `config` and take precedence over it; None
        leaves its value.

        Args:
            source: Rows with ids.
            config: Settings of packing; `enabled` has no effect here. A number is
                `seq_length`. None for the defaults.
            input_field: Field of the ids.
            shuffle: Setting ``shuffle_packed``: shuffles ``shuffle_buffer_factor *
                num_packers`` rows at a time.
            seed: Random seed of the shuffle; None is 0.
            tokenizer: Tokenizer that gives EOS and padding if no ids are set.

        Raises:
            ConfigError: No EOS is known, or an option is not allowed.
        """
        if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("source", source, "a source of rows with input_ids")
        overrides = {
            "seq_length": seq_length,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
            "strategy": strategy,
            "num_packers": num_packers,
            "include_segment_ids": include_segment_ids,
            "shuffle_packed": shuffle,
            "shuffle_buffer_factor": shuffle_buffer_factor,
        }
        self._source = source
        self._field = input_field

        # The settings: those of the configuration, and over them the arguments.
        settings: Any = config or {}
        if isinstance(config, int):
            settings = {"seq_length": config}
        elif isinstance(config, PackStageConfig):
            settings = config.model_dump(exclude_unset=True)
        if isinstance(settings, Mapping):
            settings = dict(cast("Mapping[str, Any]", settings))
            for option, value in overrides.items():
                if value is not None:
                    settings[option] = value
        pack = section(PackStageConfig, settings, "PackedShardedSource")

        # Options of the packer: those that have the names of settings, and the others.
        self._eos, pad = _ends(pack, tokenizer)
        options: dict[str, Any] = {}
        for field in fields(PackedRows):
            if hasattr(pack, field.name):
                options[field.name] = getattr(pack, field.name)
        options["pad_token_id"] = pad
        options["eos_token_id"] = self._eos
        options["seed"] = seed or 0
        options["shuffle_packed"] = pack.shuffles
        self._packing = PackedRows(**options)

    @property
    def endless(self) -> bool:
        return self._source.endless

    def _rows(self, index: int, row: int) -> Numbered:
        """Return rows from number `row` on.

        The rows before it are packed too, because later ones depend on them.
        """
        return rows_from(row, self._packing.pack(self._documents()), _PACKED)

    def _documents(self) -> Iterator[Row]:
        """Yield the ids of each document, and the loss mask if it has one."""
        # A row without ids gives no document.
        for number, row in enumerate(self._source):
            ids = np.asarray(_values_of(row, self._field, number))
            if not len(ids):
                continue
            loss = row.get("loss_mask")
            if loss is None and row.get("labels") is not None:
                loss = np.asarray(row["labels"]) != -100
            if loss is None:
                yield {"input_ids": ids}
                continue
            if len(loss) != len(ids):
                raise BadRecordError(
                    f"row {number}: loss for {len(loss)} of {len(ids)} ids", row=number
                )
            if ids[-1] != self._eos:
                # EOS counts toward the loss if the last token does: a model that learns
                # the end of a document must learn to stop there. A document that was
                # cut off has no such end.
                ids = np.append(ids, self._eos)
                loss = np.append(loss, loss[-1])
            yield {"input_ids": ids, "loss_mask": loss}

    def __repr__(self) -> str:
        return f"PackedShardedSource({self._source!r}, seq_length={self._packing.seq_length})"


def _values_of(row: Row, field: str, number: int) -> Any:
    """Return the values of a field of tokens; BadRecordError if the row has none."""
    values = row.get(field)
    if values is None:
        raise BadRecordError(
            f"row {number} has no {field}; it has {fields_in(row)}. Tokenize rows first",
            reason="missing_field",
            row=number,
        )
    return values


def _ends(
    config: PackStageConfig, tokenizer: LoadedTokenizer | None
) -> tuple[int, int]:
    """Return the ids of EOS and padding.

    Ids of the configuration take precedence over those of the tokenizer. Without a
    padding token, EOS pads.

    Raises:
        ConfigError: No EOS is known, or the tokenizer does not have an id of the
            configuration.
    """
    eos = config.eos_token_id
    pad = config.pad_token_id
    # A build decides in the same way, so that both have the same ids.
    if tokenizer is not None:
        pack = ResolvedPack(width=config.seq_length, eos_token_id=eos, pad_token_id=pad)
        ids = packing_ids(
            pack, tokenizer.files, None, f"tokenizer {tokenizer.files.name!r}"
        )
        return ids["eos_id"], ids["pad_id"]
    if eos is None:
        raise ConfigError(
            "pack.eos_token_id: missing, and no tokenizer is named; packing needs an EOS token to mark where documents "
            "end: write its id, or name the tokenizer that made the ids"
        )
    if pad is None:
        pad = eos
    return eos, pad


# Rows of the first slice: a seek for one row should not convert a thousand.
_FIRST_ROWS: Final = 16
_MAX_ROWS: Final = 1024  # rows of a slice that become Python objects together
_SLICE_BYTES: Final = 8 << 20  # bytes of Arrow data in a slice


@final
class RowsShardedSource(NumberedSource):
    """A list of rows as one shard.

    It yields copies of the rows, so that changes to them leave the list as it is.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str = "rows") -> None:
        """Take rows, which are not copied here.

        Args:
            rows: Rows of the shard.
            name: Name of the shard.

        Raises:
            ConfigError: `rows` is not a list, or one of them is not a mapping of field
                to value.
        """
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("rows", rows, "a list of rows")
        for number, row in enumerate(cast("Sequence[object]", rows)):
            if not isinstance(row, Mapping):
                raise expected(
                    f"rows: row {number}", row, "a mapping of field to value"
                )
        self._listed = rows
        self._names = (name,)

    def _count(self, index: int) -> int:
        return len(self._listed)

    def _rows(self, index: int, row: int) -> Numbered:
        if row > len(self._listed):
            raise beyond(self._names[0], row, len(self._listed))
        for number in range(row, len(self._listed)):
            yield number, dict(self._listed[number])


@final
class IterableShardedSource(ShardedDataSource):
    """Rows of any iterable as one shard, which is read from its beginning."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows

    @property
    def shard_names(self) -> Sequence[str]:
        return ("rows",)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return iter(self._rows)


@final
class HFDatasetShardedSource(NumberedSource):
    """A dataset of the `datasets` library, with its rows in its own order.

    The rows include the effects of select, shuffle, filter, map, set_format and
    set_transform.
    """

    def __init__(
        self, dataset: Any, name: str | None = None, *, num_shards: int = 1
    ) -> None:
        """Wrap a dataset; nothing is read or copied.

        Args:
            dataset: ``Dataset`` or ``IterableDataset``.
            name: Name of the shard, or the beginning of the names of shards. None for
                the split of the dataset.
            num_shards: Number of contiguous shards. An iterable has at most as many as
                its own, which the library assigns. If it was shuffled, or cut by take
                or skip, its shards may hold other rows than the whole; so the default
                is one.

        Raises:
            ConfigError: `dataset` is something else, or has fewer shards.
        """
        _require_dataset(dataset)
        whole_number("num_shards", num_shards, 1)
        if name is None:
            name = str(getattr(dataset, "split", None) or "dataset")
        if num_shards == 1:
            self._names = (name,)
        else:
            self._names = tuple(
                f"{name}-{index:05}-of-{num_shards:05}" for index in range(num_shards)
            )
        self._dataset = dataset
        self._bounds: list[tuple[int, int]] | None = None
        """First row and end of each shard; None for an iterable."""
        # A dataset with a length is divided into equal ranges, an iterable into its own
        # shards.
        if hasattr(dataset, "__len__"):
            edges = [
                index * len(dataset) // num_shards for index in range(num_shards + 1)
            ]
            self._bounds = list(pairwise(edges))
            return
        max_shards = getattr(dataset, "num_shards", None)
        if not max_shards:
            max_shards = getattr(dataset, "n_shards", 1)
        max_shards = int(max_shards)
        if num_shards > max_shards:
            raise ConfigError(
                f"num_shards: got {num_shards}, but this IterableDataset has {max_shards}"
            )

    def _count(self, index: int) -> int | None:
        if self._bounds is None:
            return None
        first_row, end_row = self._bounds[index]
        return end_row - first_row

    def _rows(self, index: int, row: int) -> Numbered:
        shard_name = self._names[index]
        if self._bounds is None:
            examples = self._streamed(index, row)
        else:
            examples = self._indexed(index, row)
        for number, example in enumerate(examples, row):
            if isinstance(example, dict):
                yield number, cast("Row", example)
            elif isinstance(example, Mapping):
                yield number, dict(cast("Mapping[str, Any]", example))
            elif hasattr(example, "to_pylist"):
                # In the format ``arrow`` it is a table of one row.
                yield number, example.to_pylist()[0]
            else:
                raise ConfigError(
                    f"shard {shard_name!r}, row {number}: the dataset's format makes a {type(example).__name__} of a "
                    "row, not a dict; use with_format(None)",
                    shard=shard_name,
                    row=number,
                )

    def _indexed(self, index: int, row: int) -> Iterator[Any]:
        """Yield the rows of a shard of a ``Dataset`` from number `row` on."""
        assert self._bounds is not None
        shard_start, shard_end = self._bounds[index]
        if row > shard_end - shard_start:
            raise beyond(self._names[index], row, shard_end - shard_start)
        if self._arrow is None:
            yield from (
                self._dataset[row_index]
                for row_index in range(shard_start + row, shard_end)
            )
            return

        # Slices of the Arrow table, each up to twice as large as the one before.
        row_index = shard_start + row
        slice_rows = _FIRST_ROWS
        while row_index < shard_end:
            table = self._arrow[row_index : min(row_index + slice_rows, shard_end)]
            yield from table.to_pylist()
            row_index += slice_rows
            rows_of_slice = _SLICE_BYTES * len(table) // max(table.nbytes, 1)
            slice_rows = max(1, min(2 * slice_rows, _MAX_ROWS, rows_of_slice))

    def _streamed(self, index: int, row: int) -> Iterator[Any]:
        """Return the rows of a shard of an ``IterableDataset`` from number `row` on."""
        # The library divides an iterable by whole shards of its own.
        shard_count = len(self._names)
        shard = self._dataset
        if shard_count > 1:
            shard = self._dataset.shard(num_shards=shard_count, index=index)
        # The row before the first one is read: if it is missing, `row` is beyond the
        # end.
        skipped = max(0, row - 1)
        rows = iter(shard.skip(skipped)) if skipped else iter(shard)
        if row and next(rows, None) is None:
            raise beyond(self._names[index], row, sum(1 for _ in shard))
        return rows

    @cached_property
    def _arrow(self) -> Any:
        """The dataset in the format of Arrow tables.

        It is None if its rows are not simply the values of its table.
        """
        row_format: Mapping[str, Any] = getattr(self._dataset, "format", None) or {}
        features = getattr(self._dataset, "features", None)
        is_decoded = getattr(features, "_column_requires_decoding", None) or {}
        has_plain_format = row_format.get("type") in (None, "arrow", "python")
        if not has_plain_format or any(is_decoded.values()):
            return None
        return self._dataset.with_format("arrow", columns=row_format.get("columns"))


wrap_hf_dataset = HFDatasetShardedSource


def _require_dataset(dataset: Any) -> None:
    """Raise ConfigError unless an object has the methods of a dataset.

    They are those of a ``Dataset`` or an ``IterableDataset``.
    """
    # A dictionary of splits is a frequent mistake.
    if isinstance(dataset, Mapping):
        splits = [str(key) for key in cast("Mapping[object, object]", dataset)]
        split = splits[0] if splits else "train"
        raise ConfigError(
            f"got a {type(dataset).__name__}, with a dataset per split ({', '.join(splits) or 'none'}); wrap one: "
            f"wrap_hf_dataset(datasets[{split!r}])",
            splits=splits,
        )
    access = "__getitem__" if hasattr(dataset, "__len__") else "skip"
    methods = ("with_format", "column_names", access, "__iter__")
    has_methods = all(hasattr(dataset, method) for method in methods)
    if isinstance(dataset, type) or not has_methods:
        raise expected(
            "dataset",
            dataset,
            "a Dataset or an IterableDataset of the `datasets` library",
        )

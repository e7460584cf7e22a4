"""Sources made of other rows: joined one after the other, cut short, grouped, or packed; or of rows that lie in memory.

Those are lists, and objects of the `datasets` library, which this module does not import. A map-style ``Dataset`` is an
Arrow table and perhaps an index over it: any row is near. An ``IterableDataset`` is a recipe: its rows come in order,
and a row is reached by passing those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, Final, cast, final

import numpy as np

from tokenlake.base.checks import expected, whole_number
from tokenlake.config.resolved import ResolvedPack
from tokenlake.config.stages import PackStageConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.packing.rows import PackedRows
from tokenlake.etl.plan.planned_tokenizer import packing_ids
from tokenlake.etl.tokenizers.manager import LoadedTokenizer
from tokenlake.rowwise.shards import Numbered, Row, ShardInfo, beyond, fields_in, rows_from, section
from tokenlake.rowwise.source import DerivedSource, NumberedSource, ShardedDataSource


@final
class CompositeShardedSource(NumberedSource):
    """The shards of all sources, in their order.

    Shards keep their names where no two have the same one; else every name begins with the place of its
    source: ``0/a.parquet``, ``1/a.parquet``.
    """

    def __init__(self, sources: Iterable[ShardedDataSource]) -> None:
        """Join `sources`.

        Raises:
            ConfigError: there is none, or one of them is no source.
        """
        listed = isinstance(sources, Iterable) and not isinstance(sources, ShardedDataSource)  # pyright: ignore[reportUnnecessaryIsInstance]
        self._sources = tuple(sources) if listed else ()
        odd = [one for one in self._sources if not isinstance(one, ShardedDataSource)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if not self._sources or odd:
            raise expected("sources", odd[0] if odd else sources, "a list of at least one source")
        homes = [(place, name) for place, source in enumerate(self._sources) for name in source.shard_names]
        names = [name for _, name in homes]
        if len(set(names)) < len(names):
            names = [f"{place}/{name}" for place, name in homes]
        self._names, self._homes = tuple(names), [(self._sources[place], name) for place, name in homes]

    @property
    def every_row(self) -> bool:
        return all(source.every_row for source in self._sources)

    @property
    def endless(self) -> bool:
        return any(source.endless for source in self._sources)

    def _rows(self, index: int, row: int) -> Numbered:
        source, name = self._homes[index]
        return source.open_shard_numbered(name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        place = self._index(shard_name)
        source, name = self._homes[place]
        return replace(source.get_shard_info(name), name=shard_name, index=place)


@final
class TokenLimitedSource(DerivedSource):
    """The rows of a source of one shard, up to and including the one that reaches a number of tokens."""

    def __init__(self, source: ShardedDataSource, max_tokens: int) -> None:
        """Limit `source` to `max_tokens` ids of ``input_ids``; the last row comes out whole."""
        self._source, self._max_tokens = source, max_tokens

    @property
    def endless(self) -> bool:
        return False

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return replace(self._source.get_shard_info(shard_name), rows=None)

    def _rows(self, index: int, row: int) -> Numbered:
        name = self.shard_names[index]

        def until_full() -> Iterator[Row]:
            left = self._max_tokens
            for number, row in enumerate(self._source.open_shard(name)):
                yield row
                left -= len(_values_of(row, "input_ids", number))
                if left <= 0:
                    return

        return rows_from(row, until_full(), name)


@final
class BatchedShardedSource(DerivedSource):
    """Another source's shards, a row for every `batch_size` of its rows: {field: list of values}.

    The last batch of a shard may be smaller. A row that lacks a field of its batch has None there. Batches are
    numbered from 0 on in their shard; opening at one opens the source at its first row.
    """

    def __init__(self, source: ShardedDataSource, batch_size: int) -> None:
        """Batch `source`; ConfigError unless `batch_size` is a whole number from 1 on."""
        self._source, self._size = source, whole_number("batch_size", batch_size, 1)

    @property
    def every_row(self) -> bool:
        return True

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        rows = info.rows if self._source.every_row else None
        return replace(info, rows=None if rows is None else -(-rows // self._size))

    def _rows(self, index: int, row: int) -> Numbered:
        shard, source = self.shard_names[index], self._source
        if (known := self.get_shard_info(shard).rows) is not None:
            rows = source.open_shard_at_row(shard, row * self._size) if row < known else iter(())
        else:
            rows = source.open_shard(shard)
            known = -(-sum(1 for _ in islice(rows, row * self._size)) // self._size)
        if row > known:
            raise beyond(shard, row, known)
        while some := list(islice(rows, self._size)):
            fields = dict.fromkeys(field for row in some for field in row)
            yield row, {field: [one.get(field) for one in some] for field in fields}
            row += 1


_PACKED: Final = "packed"


@final
class PackedShardedSource(NumberedSource):
    """Rows of tokens in rows of `seq_length`, in one shard, however many the other source has.

    A row has ``input_ids`` (int32[L]), ``attention_mask`` (int32[L]: 1 for ids, 0 for padding), ``segment_ids``
    (int32[L]: 1, 2, 3 ... for its documents, 0 for padding) unless ``include_segment_ids`` is false, and ``loss_mask``
    (bool[L]) where documents have one. After each document comes EOS, unless it ends with one; no token is lost; rows
    are those of a build that packs the same documents as one unit.
    An endless source is packed without end.

    A document is what is in a row's ``input_ids``; what bears loss is told by its ``loss_mask``, or by ``labels`` that
    are not -100. Its other fields do not come out.
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
        """Pack `source`; nothing is read yet.

        Args:
            source: rows with ids.
            config: how to pack; `enabled` does not matter here. A number is `seq_length`. None: the defaults.
            input_field: of the rows' ids.
            shuffle: ``shuffle_packed``, which takes ``shuffle_buffer_factor * num_packers`` rows at a time.
            seed: of the shuffle; None is 0.
            tokenizer: whose EOS and padding are used where none are named.

        The other arguments are those of `config`, and count before it; None leaves it as it is.

        Raises:
            ConfigError: no EOS is known, or an option is not allowed.
        """
        given = {name: value for name, value in locals().items() if name in PackStageConfig.model_fields}
        if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("source", source, "a source of rows with input_ids")
        self._source, self._field = source, input_field
        config = {"seq_length": config} if isinstance(config, int) else config
        own: Any = (
            config.model_dump(exclude_unset=True) if isinstance(config, PackStageConfig) else config or {}
        )
        if isinstance(own, Mapping):
            given |= {"shuffle_packed": shuffle}
            own = {**own, **{name: value for name, value in given.items() if value is not None}}
        pack = section(PackStageConfig, own, "PackedShardedSource")
        self._eos, pad = _ends(pack, tokenizer)
        names = [each.name for each in fields(PackedRows) if hasattr(pack, each.name)]
        how: dict[str, Any] = {name: getattr(pack, name) for name in names}
        how |= {"pad_token_id": pad, "eos_token_id": self._eos, "seed": seed or 0}
        how["shuffle_packed"] = pack.shuffles
        self._packing = PackedRows(**how)

    @property
    def endless(self) -> bool:
        return self._source.endless

    def _rows(self, index: int, row: int) -> Numbered:
        """Return rows from number `row` on; those before it are packed too: what is in a row depends on them."""
        return rows_from(row, self._packing.pack(self._documents()), _PACKED)

    def _documents(self) -> Iterator[Row]:
        """Yield the ids of each document, and which of them bear loss."""
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
                raise BadRecordError(f"row {number}: loss for {len(loss)} of {len(ids)} ids", row=number)
            if ids[-1] != self._eos:
                # Who learns the last token of a document must learn to stop after it, but not where it was cut off.
                ids, loss = np.append(ids, self._eos), np.append(loss, loss[-1])
            yield {"input_ids": ids, "loss_mask": loss}

    def __repr__(self) -> str:
        return f"PackedShardedSource({self._source!r}, seq_length={self._packing.seq_length})"


def _values_of(row: Row, field: str, number: int) -> Any:
    values = row.get(field)
    if values is None:
        why = f"row {number} has no {field}; it has {fields_in(row)}. Tokenize rows first"
        raise BadRecordError(why, reason="missing_field", row=number)
    return values


def _ends(config: PackStageConfig, tokenizer: LoadedTokenizer | None) -> tuple[int, int]:
    """Return EOS and padding: the configuration's, else the tokenizer's; without a padding token it is EOS."""
    eos, pad = config.eos_token_id, config.pad_token_id
    if tokenizer is not None:
        pack = ResolvedPack(width=config.seq_length, eos_token_id=eos, pad_token_id=pad)
        ids = packing_ids(pack, tokenizer.files, None, f"tokenizer {tokenizer.files.name!r}")
        return ids["eos_id"], ids["pad_id"]
    if eos is None:
        why = "missing, and no tokenizer is named; packing needs an EOS token to mark where documents end"
        raise ConfigError(f"pack.eos_token_id: {why}: write its id, or name the tokenizer that made the ids")
    return eos, eos if pad is None else pad


_FIRST: Final = 16  # rows of the first batch: a seek for one row should not convert a thousand
_MOST: Final = 1024
_BATCH_BYTES: Final = 8 << 20  # of Arrow data that become Python objects at a time


@final
class RowsShardedSource(NumberedSource):
    """A list of rows as one shard; rows come out as copies, so that nobody changes the list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str = "rows") -> None:
        """Take the rows, which are not copied; `name`: of the shard.

        Raises:
            ConfigError: they are no list, or one of them is not a mapping of field to value.
        """
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("rows", rows, "a list of rows")
        for number, row in enumerate(cast("Sequence[object]", rows)):
            if not isinstance(row, Mapping):
                raise expected(f"rows: row {number}", row, "a mapping of field to value")
        self._listed, self._names = rows, (name,)

    def _count(self, index: int) -> int:
        return len(self._listed)

    def _rows(self, index: int, row: int) -> Numbered:
        if row > len(self._listed):
            raise beyond(self._names[0], row, len(self._listed))
        for number in range(row, len(self._listed)):
            yield number, dict(self._listed[number])


@final
class IterableShardedSource(ShardedDataSource):
    """Any rows as one shard, which is read from its beginning."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows

    @property
    def shard_names(self) -> Sequence[str]:
        return ("rows",)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return iter(self._rows)


@final
class HFDatasetShardedSource(NumberedSource):
    """An object of the `datasets` library, its rows in the order in which it gives them itself.

    What was done to it (select, shuffle, filter, map, set_format, set_transform) shows in the rows.
    """

    def __init__(self, dataset: Any, name: str | None = None, *, num_shards: int = 1) -> None:
        """Wrap `dataset`; nothing is read or copied.

        Args:
            dataset: a ``Dataset`` or an ``IterableDataset``.
            name: what shards are called by; by default the dataset's split.
            num_shards: contiguous shards. An iterable can have at most as many as its own, and the library
                deals them out: where it was shuffled, or cut by take or skip, shards may hold other rows than
                the whole, so it stays in one unless asked.

        Raises:
            ConfigError: `dataset` is something else, or has fewer shards.
        """
        _require_dataset(dataset)
        whole_number("num_shards", num_shards, 1)
        title = name if name is not None else str(getattr(dataset, "split", None) or "dataset")
        names = (f"{title}-{index:05}-of-{num_shards:05}" for index in range(num_shards))
        self._names = (title,) if num_shards == 1 else tuple(names)
        self._dataset, self._bounds = dataset, None
        if hasattr(dataset, "__len__"):
            edges = [index * len(dataset) // num_shards for index in range(num_shards + 1)]
            self._bounds = list(pairwise(edges))
            return
        own = int(getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", 1))
        if num_shards > own:
            raise ConfigError(f"num_shards: got {num_shards}, but this IterableDataset has {own}")

    def _count(self, index: int) -> int | None:
        return None if self._bounds is None else self._bounds[index][1] - self._bounds[index][0]

    def _rows(self, index: int, row: int) -> Numbered:
        name = self._names[index]
        examples = self._streamed(index, row) if self._bounds is None else self._indexed(index, row)
        for number, example in enumerate(examples, row):
            if isinstance(example, Mapping):
                yield number, cast("Row", example if isinstance(example, dict) else dict(example))
            elif hasattr(example, "to_pylist"):  # in the format ``arrow`` it is a table of one row
                yield number, example.to_pylist()[0]
            else:
                got = type(example).__name__
                why = f"the dataset's format makes a {got} of a row, not a dict; use with_format(None)"
                raise ConfigError(f"shard {name!r}, row {number}: {why}", shard=name, row=number)

    def _indexed(self, index: int, row: int) -> Iterator[Any]:
        start, stop = self._bounds[index] if self._bounds else (0, 0)
        if row > stop - start:
            raise beyond(self._names[index], row, stop - start)
        if self._arrow is None:
            yield from (self._dataset[place] for place in range(start + row, stop))
            return
        at, step = start + row, _FIRST
        while at < stop:
            table = self._arrow[at : min(at + step, stop)]
            yield from table.to_pylist()
            at += step
            step = max(1, min(2 * step, _MOST, _BATCH_BYTES * len(table) // max(table.nbytes, 1)))

    def _streamed(self, index: int, row: int) -> Iterator[Any]:
        count = len(self._names)
        part = self._dataset if count == 1 else self._dataset.shard(num_shards=count, index=index)
        # One row more than is wanted tells the end of the shard from what is beyond it.
        passed = max(0, row - 1)
        found = iter(part.skip(passed) if passed else part)
        if row and next(found, None) is None:
            raise beyond(self._names[index], row, sum(1 for _ in part))
        return found

    @cached_property
    def _arrow(self) -> Any:
        """The same dataset giving Arrow tables, None where its rows are more than what the table holds."""
        form: Mapping[str, Any] = getattr(self._dataset, "format", None) or {}
        decoded = getattr(getattr(self._dataset, "features", None), "_column_requires_decoding", None) or {}
        if form.get("type") not in (None, "arrow", "python") or any(decoded.values()):
            return None
        return self._dataset.with_format("arrow", columns=form.get("columns"))


wrap_hf_dataset = HFDatasetShardedSource


def _require_dataset(dataset: Any) -> None:
    """Raise ConfigError unless `dataset` has what a ``Dataset`` or ``IterableDataset`` has."""
    if isinstance(dataset, Mapping):
        splits = [str(key) for key in cast("Mapping[object, object]", dataset)]
        one = splits[0] if splits else "train"
        why = f"got a {type(dataset).__name__}, with a dataset per split ({', '.join(splits) or 'none'})"
        raise ConfigError(f"{why}; wrap one: wrap_hf_dataset(datasets[{one!r}])", splits=splits)
    access = "__getitem__" if hasattr(dataset, "__len__") else "skip"
    needed = ("with_format", "column_names", access, "__iter__")
    if isinstance(dataset, type) or not all(hasattr(dataset, name) for name in needed):
        raise expected("dataset", dataset, "a Dataset or an IterableDataset of the `datasets` library")

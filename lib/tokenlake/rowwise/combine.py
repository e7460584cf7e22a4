"""Sources made of another source, or of several: joined one after the other, cut short, grouped, or packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Any, Final, cast, final

import numpy as np

from tokenlake.config.resolved import ResolvedPack
from tokenlake.config.stages import PackStageConfig
from tokenlake.config.values import expected, whole_number
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.plan.tokenizer import packing_ids
from tokenlake.packing.rows import PackedRows
from tokenlake.rowwise.shards import Numbered, Row, ShardInfo, beyond, fields_in, rows_from, section
from tokenlake.rowwise.source import DerivedSource, NumberedSource, ShardedDataSource
from tokenlake.tokenizers.manager import LoadedTokenizer


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
        return rows_from(row, self._until_full(name), name)

    def _until_full(self, shard_name: str) -> Iterator[Row]:
        left = self._max_tokens
        for number, row in enumerate(self._source.open_shard(shard_name)):
            yield row
            left -= len(_values_of(row, "input_ids", number))
            if left <= 0:
                return


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
        rows = self._rows_from(self.shard_names[index], row)
        while some := list(islice(rows, self._size)):
            fields = dict.fromkeys(field for row in some for field in row)
            yield row, {field: [one.get(field) for one in some] for field in fields}
            row += 1

    def _rows_from(self, shard: str, number: int) -> Iterator[Row]:
        """Return the rows from the first one of a batch on."""
        if (known := self.get_shard_info(shard).rows) is None:
            rows = self._source.open_shard(shard)
            known = -(-sum(1 for _ in islice(rows, number * self._size)) // self._size)
        else:
            first = min(number, known) * self._size
            rows = self._source.open_shard_at_row(shard, first) if number < known else iter(())
        if number > known:
            raise beyond(shard, number, known)
        return rows


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
        pack = _overridden(config or {}, {**given, "shuffle_packed": shuffle})
        self._eos, pad = _ends(pack, tokenizer)
        names = [each.name for each in fields(PackedRows) if hasattr(pack, each.name)]
        own: dict[str, Any] = {name: getattr(pack, name) for name in names}
        own |= {"pad_token_id": pad, "eos_token_id": self._eos, "seed": seed or 0}
        own["shuffle_packed"] = pack.shuffles
        self._packing = PackedRows(**own)

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


def _overridden(config: object, given: Mapping[str, Any]) -> PackStageConfig:
    """Return a section with the values given, those that are not None, in the place of its own."""
    own = config.model_dump(exclude_unset=True) if isinstance(config, PackStageConfig) else config
    if isinstance(own, Mapping):
        told = {name: value for name, value in given.items() if value is not None}
        own = {**cast("Mapping[str, Any]", own), **told}
    return section(PackStageConfig, own, "PackedShardedSource")


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
        pack = ResolvedPack(seq_length=config.seq_length, eos_token_id=eos, pad_token_id=pad)
        ids = packing_ids(pack, tokenizer.files, None, f"tokenizer {tokenizer.files.name!r}")
        return ids["eos_id"], ids["pad_id"]
    if eos is None:
        why = "missing, and no tokenizer is named; packing needs an EOS token to mark where documents end"
        raise ConfigError(f"pack.eos_token_id: {why}: write its id, or name the tokenizer that made the ids")
    return eos, eos if pad is None else pad

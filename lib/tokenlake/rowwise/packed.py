"""Another source's rows of tokens, packed into rows of one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake import config as configuration
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.packing.rows import PackedRows
from tokenlake.rowwise.source import (
    Numbered,
    NumberedSource,
    Row,
    ShardedDataSource,
    ShardInfo,
    check_row,
    index_of,
    rows_from,
    section,
)

if TYPE_CHECKING:
    from tokenlake.config.stages import PackStageConfig
    from tokenlake.tokenizers.manager import LoadedTokenizer

_SHARD: Final = "packed"


@final
class PackedShardedSource(NumberedSource):
    """Rows of tokens in rows of `seq_length`, in one shard, however many the other source has.

    A row has ``input_ids`` (int32[L]), ``segment_ids`` (int32[L]: 1, 2, 3 ... for its documents, 0 for padding) unless
    ``include_segment_ids`` is false, and ``loss_mask`` (bool[L]) where documents have one. After each document comes
    EOS, unless it ends with one; no token is lost; rows are those of a build that packs the same documents as one unit.
    An endless source is packed without end.

    A document is what is in a row's ``input_ids``; what bears loss is told by its ``loss_mask``, or by ``labels`` that
    are not -100. Its other fields do not come out.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        config: PackStageConfig | Mapping[str, Any] | None = None,
        *,
        tokenizer: LoadedTokenizer | None = None,
        seed: int | None = None,
    ) -> None:
        """Pack `source`; nothing is read yet.

        Args:
            source: rows with ``input_ids``.
            config: how to pack; `enabled` does not matter here. None: the defaults.
            tokenizer: whose EOS and padding are used where `config` names none.
            seed: of ``shuffle_packed``, which takes ``shuffle_buffer_factor * num_packers`` rows at a time; None is 0.

        Raises:
            ConfigError: no EOS is known, or an option is not allowed.
        """
        if not isinstance(source, ShardedDataSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"source: got a {type(source).__name__}, must be a source of rows with input_ids"
            )
        self._source = source
        pack = section(configuration.PackStageConfig, config or {}, "PackedShardedSource")
        self._eos, pad = _ends(pack, tokenizer)
        self._packing = PackedRows(
            seq_length=pack.seq_length,
            eos_token_id=self._eos,
            pad_token_id=pad,
            strategy=pack.strategy,
            num_packers=pack.num_packers,
            max_segments=pack.max_segments,
            window_tokens=pack.window_tokens,
            shuffle_packed=pack.shuffles,
            shuffle_buffer_factor=pack.shuffle_buffer_factor,
            seed=seed or 0,
            include_segment_ids=pack.include_segment_ids,
        )

    @property
    def shard_names(self) -> Sequence[str]:
        return (_SHARD,)

    @property
    def endless(self) -> bool:
        return self._source.endless

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        """Return rows from number `row` on; those before it are packed too: what is in a row depends on them."""
        check_row(row)
        index_of(shard_name, self.shard_names)
        return rows_from(row, self._packing.pack(self._documents()), _SHARD)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return ShardInfo(name=shard_name, index=index_of(shard_name, self.shard_names))

    def _documents(self) -> Iterator[Row]:
        """Yield the ids of each document, and which of them bear loss."""
        for number, row in enumerate(self._source):
            ids = _ids(row, number)
            if not len(ids):
                continue
            loss = _loss(row, ids, number)
            if loss is None:
                yield {"input_ids": ids}
                continue
            if ids[-1] != self._eos:
                # Who learns the last token of a document must learn to stop after it, but not where it was cut off.
                ids, loss = np.append(ids, self._eos), np.append(loss, loss[-1])
            yield {"input_ids": ids, "loss_mask": loss}

    def __repr__(self) -> str:
        return f"PackedShardedSource({self._source!r}, seq_length={self._packing.seq_length})"


def _ids(row: Row, number: int) -> npt.NDArray[Any]:
    ids = row.get("input_ids")
    if ids is None:
        raise BadRecordError(
            f"row {number} has no input_ids; its fields are {', '.join(map(repr, row)) or 'none'}. Tokenize rows "
            "before packing them",
            reason="missing_field",
            row=number,
        )
    return np.asarray(ids)


def _loss(row: Row, ids: npt.NDArray[Any], number: int) -> npt.NDArray[np.bool_] | None:
    mask = row.get("loss_mask")
    if mask is None and row.get("labels") is not None:
        mask = np.asarray(row["labels"]) != -100
    if mask is None:
        return None
    if len(mask) != len(ids):
        raise BadRecordError(f"row {number}: {len(mask)} values of loss for {len(ids)} ids", row=number)
    return np.asarray(mask, np.bool_)


def _ends(config: PackStageConfig, tokenizer: LoadedTokenizer | None) -> tuple[int, int]:
    """Return EOS and padding: the configuration's, else the tokenizer's; without a padding token it is EOS."""
    files = None if tokenizer is None else tokenizer.files
    eos = config.eos_token_id if config.eos_token_id is not None else files and files.eos_id
    if eos is None:
        whose = "there is no tokenizer" if files is None else f"tokenizer {files.name!r} names none"
        raise ConfigError(
            f"pack.eos_token_id: missing, and {whose}; packing needs an EOS token to mark where documents end"
        )
    pad = config.pad_token_id if config.pad_token_id is not None else files and files.pad_id
    pad = eos if pad is None else pad
    for name, value in (("eos_token_id", eos), ("pad_token_id", pad)):
        if files is not None and not 0 <= value < files.vocab_size:
            raise ConfigError(
                f"pack.{name} is {value}, but tokenizer {files.name!r} has ids 0 to {files.vocab_size - 1}"
            )
    return eos, pad

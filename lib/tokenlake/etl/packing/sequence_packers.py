"""Packers to which a caller adds one document at a time, and which return full rows as they are completed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int32
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.packing.rows import OpenRows, PackedRows, Row


@final
@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One row of L tokens.

    Attributes:
        input_ids: int32[L].
        attention_mask: int32[L], 1 for tokens and 0 for padding.
        segment_ids: int32[L], 1, 2, 3 ... for the pieces of the row and 0 for padding; None where not asked for.
        source_ids: of each piece, what `add` was told; None where it was told nothing of any.
        num_segments: pieces of the row.
    """

    input_ids: Int32
    attention_mask: Int32
    segment_ids: Int32 | None = None
    source_ids: list[str | None] | None = None
    num_segments: int = 0

    def to_dict(self) -> dict[str, Int32]:
        """Return the arrays by their names."""
        named = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return named if self.segment_ids is None else {**named, "segment_ids": self.segment_ids}


@final
class _Sequences:
    """Documents with the names of their sources, through one stream of rows."""

    def __init__(self, **packing: Any) -> None:
        self.packing: Final = PackedRows(**packing)
        # A group of one row: it comes out as soon as it is full.
        self._stream = OpenRows(self.packing, group_tokens=self.packing.seq_length)
        self._sources: dict[int, tuple[str, int]] = {}  # document -> name, tokens that have not come out
        self._added = 0

    def add(self, tokens: Sequence[int], source_id: str | None) -> Iterator[PackedSequence]:
        number, self._added = self._added, self._added + 1
        if source_id is not None:
            lacks = len(tokens) > 0 and tokens[-1] != self.packing.eos_token_id
            self._sources[number] = source_id, len(tokens) + lacks
        return self._made(self._stream.add([{"input_ids": tokens, "file": 0, "position": number}]))

    def finish(self) -> Iterator[PackedSequence]:
        return self._made(self._stream.finish())

    def _made(self, rows: Iterable[Row]) -> Iterator[PackedSequence]:
        for row in rows:
            lengths: list[int] = row["segment_lengths"].tolist()
            sources = list[str | None]()
            for piece, length in zip(row["documents"], lengths, strict=True):
                number = piece["position"]
                source, left = self._sources.pop(number, (None, 0))
                if source is not None and left > length:
                    self._sources[number] = source, left - length
                sources.append(source)
            yield PackedSequence(
                row["input_ids"],
                (np.arange(len(row["input_ids"])) < sum(lengths)).astype(np.int32),
                row.get("segment_ids"),
                sources if any(source is not None for source in sources) else None,
                len(lengths),
            )


@final
class GreedyPacker:
    """Documents end to end, cut into rows of `seq_length`; no token is lost.

    ::

        for tokens in documents:
            if (row := packer.add(tokens)) is not None: ...
        last = packer.flush_final()
    """

    def __init__(
        self, seq_length: int, eos_token_id: int, pad_token_id: int = 0, include_segment_ids: bool = True
    ) -> None:
        """Open a row.

        Args:
            seq_length: L, tokens of a row.
            eos_token_id: put after each document that does not end with it.
            pad_token_id: fills the last row.
            include_segment_ids: whether rows say which piece each token belongs to.
        """
        ids = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        self._rows = _Sequences(seq_length=seq_length, include_segment_ids=include_segment_ids, **ids)

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> PackedSequence | None:
        """Append a document; return the row that it fills up, None while there is room.

        Raises:
            BadRecordError: it is longer than a row and could fill several; the other packers return lists.
        """
        packing = self._rows.packing
        whole = len(tokens) + (len(tokens) > 0 and tokens[-1] != packing.eos_token_id)
        if whole > packing.seq_length:
            why = f"a document of {whole} tokens (with EOS) fills several rows of {packing.seq_length}"
            how = "cut it before, or use PoolPacker or PackedRows(...).pack, which give any number of rows"
            raise BadRecordError(f"{why}, and GreedyPacker.add returns one; {how}", reason="too_long")
        return next(iter(list(self._rows.add(tokens, source_id))), None)

    def flush_final(self) -> PackedSequence | None:
        """Return the open row, padded; None where it is empty."""
        return next(iter(list(self._rows.finish())), None)


@final
class PoolPacker:
    """Some rows stand open, and each document goes to the one that it fills best; no token is lost.

    Documents are placed a window at a time: rows come when one is full, and with :meth:`flush_all`.
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int,
        pad_token_id: int = 0,
        num_packers: int = 4,
        include_segment_ids: bool = True,
        *,
        window_tokens: int = 1 << 20,
    ) -> None:
        """Open the rows.

        Args:
            num_packers: how many stand open.
            window_tokens: tokens that are held before they are placed; at its end open rows are padded.

        The other arguments are those of :class:`GreedyPacker`.
        """
        ids = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        self._rows = _Sequences(
            seq_length=seq_length,
            strategy="pool",
            num_packers=num_packers,
            include_segment_ids=include_segment_ids,
            window_tokens=max(window_tokens, seq_length),
            **ids,
        )

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> list[PackedSequence]:
        """Append a document; return the rows that are full."""
        return list(self._rows.add(tokens, source_id))

    def flush_all(self) -> list[PackedSequence]:
        """Return the rows that are left, padded."""
        return list(self._rows.finish())


@final
class FirstFitPacker:
    """Each document goes to the first row with room for it, and is cut only where it is longer than a row."""

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int,
        pad_token_id: int = 0,
        include_segment_ids: bool = True,
        buffer_size: int = 1000,
    ) -> None:
        """Hold no document yet.

        Args:
            buffer_size: documents that are held before they are placed together.

        The other arguments are those of :class:`GreedyPacker`.
        """
        if buffer_size < 1:
            raise ConfigError(f"buffer_size: got {buffer_size}, expected at least 1 document")
        ids = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        self._most, self._held = buffer_size, 0
        self._rows = _Sequences(
            seq_length=seq_length, strategy="first_fit", include_segment_ids=include_segment_ids, **ids
        )

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> list[PackedSequence]:
        """Append a document; return the rows of all that are held where there are `buffer_size` of them."""
        made = list(self._rows.add(tokens, source_id))
        self._held += 1
        return made if self._held < self._most else made + self.flush_all()

    def flush_all(self) -> list[PackedSequence]:
        """Return the rows of the documents that are held, padded."""
        self._held = 0
        return list(self._rows.finish())

"""Packers to which a caller adds one document at a time, and which return full rows."""

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
        input_ids: Ids, int32[L].
        attention_mask: 1 for tokens and 0 for padding, int32[L].
        segment_ids: 1, 2, 3 ... for the pieces of the row and 0 for padding, int32[L];
            None if they are not included.
        source_ids: `source_id` of each piece's document; None if no document of the row
            has one.
        num_segments: Number of pieces.
    """

    input_ids: Int32
    attention_mask: Int32
    segment_ids: Int32 | None = None
    source_ids: list[str | None] | None = None
    num_segments: int = 0

    def to_dict(self) -> dict[str, Int32]:
        """Return the arrays by their names."""
        arrays = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        if self.segment_ids is not None:
            arrays["segment_ids"] = self.segment_ids
        return arrays


@final
class _Sequences:
    """Documents with the names of their sources, through one stream of rows.

    Args:
        packing: Options of :class:`PackedRows`.
    """

    def __init__(self, **packing: Any) -> None:
        self.packing: Final = PackedRows(**packing)
        # A group has one row: it comes out as soon as it is full.
        self._rows = OpenRows(self.packing, group_tokens=self.packing.seq_length)
        # Document -> name of its source, and number of its tokens that are not in a row
        # yet.
        self._sources: dict[int, tuple[str, int]] = {}
        self._document_count = 0

    def add(
        self, tokens: Sequence[int], source_id: str | None
    ) -> Iterator[PackedSequence]:
        """Append a document and yield the rows that are full."""
        number = self._document_count
        self._document_count += 1
        if source_id is not None:
            self._sources[number] = (source_id, self.length_with_eos(tokens))
        # The number of the document is its position, by which its rows name it.
        document = {"input_ids": tokens, "file": 0, "position": number}
        return self._sequences(self._rows.add([document]))

    def finish(self) -> Iterator[PackedSequence]:
        """Yield the remaining rows, padded."""
        return self._sequences(self._rows.finish())

    def length_with_eos(self, tokens: Sequence[int]) -> int:
        """Return the number of a document's tokens, with the EOS that is put after it.

        An empty document gets none.
        """
        length = len(tokens)
        if length and tokens[-1] != self.packing.eos_token_id:
            length += 1
        return length

    def _sequences(self, rows: Iterable[Row]) -> Iterator[PackedSequence]:
        for row in rows:
            # 1. The source of each piece.
            lengths: list[int] = row["segment_lengths"].tolist()
            source_ids: list[str | None] = []
            for piece, length in zip(row["documents"], lengths, strict=True):
                source_ids.append(self._source_of(piece["position"], length))
            # 2. Padding is behind the tokens; an id of padding may be in the text, too.
            is_token = np.arange(len(row["input_ids"])) < sum(lengths)
            has_sources = any(source_id is not None for source_id in source_ids)
            yield PackedSequence(
                row["input_ids"],
                attention_mask=is_token.astype(np.int32),
                segment_ids=row.get("segment_ids"),
                source_ids=source_ids if has_sources else None,
                num_segments=len(lengths),
            )

    def _source_of(self, document: int, length: int) -> str | None:
        """Return the name of the source of a document's next `length` tokens.

        It is forgotten with the last token, so that memory stays bounded.
        """
        if document not in self._sources:
            return None
        source_id, tokens_left = self._sources.pop(document)
        if tokens_left > length:
            self._sources[document] = (source_id, tokens_left - length)
        return source_id


@final
class GreedyPacker:
    """Packs documents end to end, cut into rows of `seq_length`; no token is lost.

    Example:
        >>> from tokenlake import GreedyPacker
        >>> packer = GreedyPacker(seq_length=4, eos_token_id=2)
        >>> packer.add([5, 6])
        >>> packer.add([7]).input_ids.tolist()
        [5, 6, 2, 7]
        >>> packer.flush_final().input_ids.tolist()
        [2, 0, 0, 0]
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int,
        pad_token_id: int = 0,
        include_segment_ids: bool = True,
    ) -> None:
        """Open a row.

        Args:
            seq_length: Tokens of a row, L.
            eos_token_id: Id put after each document that does not end with it.
            pad_token_id: Id that fills the last row.
            include_segment_ids: True if rows state the piece that each token belongs
                to.
        """
        self._sequences = _Sequences(
            seq_length=seq_length,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            include_segment_ids=include_segment_ids,
        )

    def add(
        self, tokens: Sequence[int], source_id: str | None = None
    ) -> PackedSequence | None:
        """Append a document; return the row that it fills, or None if room is left.

        Args:
            tokens: Ids of the document.
            source_id: Name of its source, repeated in
                :attr:`PackedSequence.source_ids`.

        Raises:
            BadRecordError: The document is longer than a row and could fill several;
                the other packers return lists.
        """
        seq_length = self._sequences.packing.seq_length
        length = self._sequences.length_with_eos(tokens)
        if length > seq_length:
            raise BadRecordError(
                f"a document of {length} tokens (with EOS) fills several rows of {seq_length}, and GreedyPacker.add "
                "returns one; cut it before, or use PoolPacker or PackedRows(...).pack, which return any number of "
                "rows",
                reason="too_long",
            )
        rows = list(self._sequences.add(tokens, source_id))
        if not rows:
            return None
        return rows[0]

    def flush_final(self) -> PackedSequence | None:
        """Return the open row, padded; None if it is empty."""
        rows = list(self._sequences.finish())
        if not rows:
            return None
        return rows[0]


@final
class PoolPacker:
    """Packs each document into the open row that it fills best; no token is lost.

    Documents are placed a window at a time: rows come when a window is full, and with
    :meth:`flush_all`.

    Example:
        >>> from tokenlake import PoolPacker
        >>> packer = PoolPacker(seq_length=4, eos_token_id=2, window_tokens=8)
        >>> packer.add([5, 6, 7])
        []
        >>> [row.input_ids.tolist() for row in packer.add([8, 9, 10])]
        [[5, 6, 7, 2], [8, 9, 10, 2]]
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
            seq_length: Tokens of a row, L.
            eos_token_id: Id put after each document that does not end with it.
            pad_token_id: Id that fills the ends of rows.
            num_packers: Number of rows that are open at a time.
            include_segment_ids: True if rows state the piece that each token belongs
                to.
            window_tokens: Tokens that are held before they are placed. At a window's
                end open rows are padded.
        """
        self._sequences = _Sequences(
            seq_length=seq_length,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            strategy="pool",
            num_packers=num_packers,
            include_segment_ids=include_segment_ids,
            window_tokens=max(window_tokens, seq_length),
        )

    def add(
        self, tokens: Sequence[int], source_id: str | None = None
    ) -> list[PackedSequence]:
        """Append a document; return the rows that are full.

        Args:
            tokens: Ids of the document.
            source_id: Name of its source, repeated in
                :attr:`PackedSequence.source_ids`.
        """
        return list(self._sequences.add(tokens, source_id))

    def flush_all(self) -> list[PackedSequence]:
        """Return the remaining rows, padded."""
        return list(self._sequences.finish())


@final
class FirstFitPacker:
    """Packs each document into the first row with room for it.

    Only documents longer than a row are cut.

    Example:
        >>> from tokenlake import FirstFitPacker
        >>> packer = FirstFitPacker(seq_length=4, eos_token_id=2, buffer_size=2)
        >>> packer.add([5])
        []
        >>> [row.input_ids.tolist() for row in packer.add([6])]
        [[5, 2, 6, 2]]
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int,
        pad_token_id: int = 0,
        include_segment_ids: bool = True,
        buffer_size: int = 1000,
    ) -> None:
        """Start without documents.

        Args:
            seq_length: Tokens of a row, L.
            eos_token_id: Id put after each document that does not end with it.
            pad_token_id: Id that fills the ends of rows.
            include_segment_ids: True if rows state the piece that each token belongs
                to.
            buffer_size: Number of documents that are held before they are placed
                together.
        """
        if buffer_size < 1:
            raise ConfigError(
                f"buffer_size: got {buffer_size}, expected at least 1 document"
            )
        self._buffer_size = buffer_size
        self._held_documents = 0
        self._sequences = _Sequences(
            seq_length=seq_length,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            strategy="first_fit",
            include_segment_ids=include_segment_ids,
        )

    def add(
        self, tokens: Sequence[int], source_id: str | None = None
    ) -> list[PackedSequence]:
        """Append a document; return rows when `buffer_size` documents are held.

        These are the rows of all held documents.

        Args:
            tokens: Ids of the document.
            source_id: Name of its source, repeated in
                :attr:`PackedSequence.source_ids`.
        """
        rows = list(self._sequences.add(tokens, source_id))
        self._held_documents += 1
        if self._held_documents >= self._buffer_size:
            rows += self.flush_all()
        return rows

    def flush_all(self) -> list[PackedSequence]:
        """Return the rows of the documents that are held, padded."""
        self._held_documents = 0
        return list(self._sequences.finish())

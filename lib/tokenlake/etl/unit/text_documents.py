"""Documents as texts, or as imported ids, with their identities and kept fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Bools, Int64, string_buffers
from tokenlake.etl.tokenizers.offsets import Spans

_ARROW: Final[Any] = pa  # the stubs do not know concat_batches
_COMPUTE: Final[Any] = pc

ID_BYTES: Final = 4
"""Bytes of an id in memory."""


@dataclass(frozen=True, slots=True)
class TextDocuments:
    """Texts of n documents, and where they come from.

    Attributes:
        text: Texts without nulls, valid UTF-8, large_string[n * parts]. The texts of a
            document lie together. Those of documents of ids are empty.
        file: Id of each document's file, int64[n].
        position: Position of each document in its file, int64[n].
        spans: Parts of the texts that count toward the loss; None for plain text.
        extra: True for a document that is not the first of its row, bool[n]; None if
            all are the first.
        parts: Number of texts of a document.
        label: True for a document that is a good answer, bool[n]; None if answers are
            not judged one by one.
        kept: Fields kept beside the tokens, n rows; None if none are.
        ids: Ids of each document, of a source whose tokens are made already,
            large_list<int32>[n]; None for texts.
    """

    text: pa.LargeStringArray
    file: Int64
    position: Int64
    spans: Spans | None = None
    extra: Bools | None = None
    parts: int = 1
    label: Bools | None = None
    kept: pa.RecordBatch | None = None
    ids: pa.LargeListArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.position)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        edges = self._edges
        return int(edges[-1] - edges[0])

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is in memory: texts, ids and kept fields."""
        held_bytes = self.text_bytes
        if self.ids is not None:
            held_bytes += int(self.sizes.sum())
        if self.kept is not None:
            held_bytes += self.kept.nbytes
        return held_bytes

    @property
    def text_sizes(self) -> Int64:
        """UTF-8 bytes of each text, int64[n * parts]."""
        return np.diff(self._edges)

    @property
    def sizes(self) -> Int64:
        """Bytes of each text, int64[n * parts], or of each document's ids, int64[n]."""
        if self.ids is None:
            return self.text_sizes
        lengths: Int64 = _COMPUTE.list_value_length(self.ids).to_numpy()
        return ID_BYTES * lengths

    @property
    def _edges(self) -> Int64:
        """Where texts begin in Arrow's buffer and the last ends, int64[n * parts + 1]."""
        return string_buffers(self.text)[0]

    def slice(self, first: int, last: int) -> Self:
        """Return the documents ``first:last``; no text is copied."""
        # 1. Texts and their spans: a pair of answers is one document of several texts.
        first_text = first * self.parts
        end_text = last * self.parts
        spans = self.spans
        if spans is not None:
            spans = spans.slice(first_text, end_text)
        # 2. The other columns, which only documents of some recipes have.
        extra = self.extra
        if extra is not None:
            extra = extra[first:last]
        label = self.label
        if label is not None:
            label = label[first:last]
        kept_fields = self.kept
        if kept_fields is not None:
            kept_fields = kept_fields.slice(first, last - first)
        ids = self.ids
        if ids is not None:
            ids = ids.slice(first, last - first)
        return type(self)(
            text=self.text.slice(first_text, end_text - first_text),
            file=self.file[first:last],
            position=self.position[first:last],
            spans=spans,
            extra=extra,
            parts=self.parts,
            label=label,
            kept=kept_fields,
            ids=ids,
        )

    def select(self, mask: Bools) -> Self:
        """Return the documents where `mask` is true, bool[n]."""
        # 1. The texts of a document lie together, so that its verdict is repeated.
        text_mask = np.repeat(mask, self.parts)
        spans = self.spans
        if spans is not None:
            spans = spans.select(text_mask)
        # 2. The other columns, which only documents of some recipes have.
        arrow_mask = pa.array(mask)
        extra = self.extra
        if extra is not None:
            extra = extra[mask]
        label = self.label
        if label is not None:
            label = label[mask]
        kept_fields = self.kept
        if kept_fields is not None:
            kept_fields = kept_fields.filter(arrow_mask)
        ids = self.ids
        if ids is not None:
            ids = ids.filter(arrow_mask)
        return type(self)(
            text=self.text.filter(pa.array(text_mask)),
            file=self.file[mask],
            position=self.position[mask],
            spans=spans,
            extra=extra,
            parts=self.parts,
            label=label,
            kept=kept_fields,
            ids=ids,
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the documents of all parts in order; a single part is not copied.

        Args:
            parts: Documents of one recipe, at least one part.
        """
        if len(parts) == 1:
            return parts[0]
        # Columns that some parts of a recipe have, all of them have; except for
        # `extra`.
        spans = [part.spans for part in parts if part.spans is not None]
        labels = [part.label for part in parts if part.label is not None]
        kept_fields = [part.kept for part in parts if part.kept is not None]
        id_lists = [part.ids for part in parts if part.ids is not None]
        texts: list[Any] = [part.text for part in parts]
        return cls(
            text=_ARROW.concat_arrays(texts),
            file=np.concatenate([part.file for part in parts]),
            position=np.concatenate([part.position for part in parts]),
            spans=Spans.concat(spans) if spans else None,
            extra=_joined_extra(parts),
            parts=parts[0].parts,
            label=np.concatenate(labels) if labels else None,
            kept=_ARROW.concat_batches(kept_fields) if kept_fields else None,
            ids=_ARROW.concat_arrays(id_lists) if id_lists else None,
        )


def _joined_extra(parts: Sequence[TextDocuments]) -> Bools | None:
    """Return the `extra` of all parts, bool[n]; None if it is None in all of them."""
    if all(part.extra is None for part in parts):
        return None
    masks: list[Bools] = []
    for part in parts:
        mask = part.extra
        if mask is None:
            mask = np.zeros(len(part), np.bool_)
        masks.append(mask)
    return np.concatenate(masks)


def taken(kept: pa.RecordBatch | None, rows: Int64) -> pa.RecordBatch | None:
    """Return the kept fields of `rows` (int64[m]), each of them any number of times."""
    if kept is None:
        return None
    return kept.take(_ARROW.array(rows))

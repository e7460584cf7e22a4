"""Renderers: rows become the texts that are tokenized.

They also return the spans of the texts that count toward the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow.compute as pc

from tokenlake.base.arrays import (
    Bools,
    Int64,
    offsets_of,
    select,
    string_buffers,
    text_of_strings,
)
from tokenlake.base.markup import is_encodable
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.transform import Column
from tokenlake.etl.tokenizers.offsets import Spans

_COMPUTE: Final[Any] = pc


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The texts of m documents, made of n rows.

    Attributes:
        text: large_string[m * parts], no nulls, valid UTF-8: texts; those of a document
            lie together.
        origin: int64[m], ascending: index of the row that each document was made of.
        spans: Spans of the m * parts texts that count toward the loss; None for plain
            texts, around which the tokenizer puts BOS and EOS.
        bad: (index, fault) of rows without a text, ascending.
        parts: Number of texts of a document: 1, or more for preferences (prompt,
            chosen, rejected).
        label: bool[m]: True for good answers; None where answers are not judged one by
            one.
    """

    text: Column
    origin: Int64
    spans: Spans | None = None
    bad: tuple[tuple[int, Fault], ...] = ()
    parts: int = 1
    label: Bools | None = None

    def without(self, faults: Mapping[int, Fault]) -> Rendered:
        """Return the same without the documents of some rows, which are bad.

        Earlier faults of rows stay.
        """
        if not faults:
            return self
        # The texts of a document lie together, so that its verdict is repeated.
        is_good = ~np.isin(self.origin, list(faults))
        is_good_text = np.repeat(is_good, self.parts)
        spans = self.spans
        if spans is not None:
            spans = spans.select(is_good_text)
        label = self.label
        if label is not None:
            label = label[is_good]
        # The first fault of a row counts.
        all_faults = {**faults, **dict(self.bad)}
        return replace(
            self,
            text=select(self.text, is_good_text),
            origin=self.origin[is_good],
            spans=spans,
            bad=tuple(sorted(all_faults.items())),
            label=label,
        )


class Renderer(Protocol):
    """Makes texts of rows; one for each source, kept for the whole build."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Top-level fields that are read; None for all."""
        ...

    @property
    def control_tokens(self) -> bool:
        """Whether the texts spell special tokens that become control ids.

        Rows that spell their own are bad then.
        """
        ...

    def render(self, rows: Rows) -> Rendered:
        """Return the texts of `rows`."""
        ...


@final
class FieldText:
    """Renders one field of each row as it is.

    Args:
        path: Name of the field, dotted for a field inside another.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.control_tokens: Final = False
        # A dotted path leads into a field, whose other fields are read with it.
        self.columns: Final = None if "." in path else (path,)

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row without one is bad.

        Reasons are ``null_text``, ``not_a_string`` and ``invalid_utf8``.
        """
        faults: dict[int, Fault] = {}
        texts: list[str] = []
        for row, value in enumerate(rows.values(self._path)):
            if isinstance(value, str) and is_encodable(value):
                texts.append(value)
            else:
                faults[row] = self._fault(value)
                # A bad row has an empty text in the column, with which it is left out
                # below.
                texts.append("")
        text = text_of_strings(texts)
        return Rendered(text=text, origin=np.arange(len(texts))).without(faults)

    def _fault(self, value: Any) -> Fault:
        """Return the fault of a value that is no text."""
        # Half of a surrogate pair is a text for Python, but none in UTF-8.
        if value is None:
            return Fault(
                "null_text", f"the field {self._path!r} is missing or null", self._path
            )
        if isinstance(value, str):
            return Fault(
                "invalid_utf8",
                f"the field {self._path!r} holds half of a surrogate pair",
                self._path,
            )
        detail = f"the field {self._path!r} holds {type(value).__name__}, expected text"
        return Fault("not_a_string", detail, self._path)


def byte_sizes(text: Column) -> Int64:
    """Return the number of UTF-8 bytes of each text: int64[n]."""
    offsets, _ = string_buffers(text)
    return np.diff(offsets)


def join_pieces(
    pieces: Sequence[str | Column], loss: Sequence[bool], rows: int
) -> tuple[Column, Spans]:
    """Join pieces to the texts of n rows, and return their spans with loss.

    A piece is a text that is the same in every row, or a column. Neighbouring pieces
    that count toward the loss are one span; empty spans are left out. ::

        pieces  "Q: "  ["why", "who"]  " A: "  ["so", "me"]    loss  no  no  no  yes
        texts   "Q: why A: so", "Q: who A: me"                 spans (10, 12), (10, 12)

    Args:
        pieces: Pieces, in order.
        loss: Booleans, true for pieces that count toward the loss.
        rows: Number of rows, the length of every column.
    """
    # 1. Byte offsets of the pieces in each row.
    parts: list[Any] = []
    edges = [np.zeros(rows, np.int64)]
    has_column = False
    for piece in pieces:
        if isinstance(piece, str):
            parts.append(text_of_strings([piece])[0])
            edges.append(edges[-1] + len(piece.encode()))
        else:
            has_column = True
            parts.append(piece)
            edges.append(edges[-1] + byte_sizes(piece))
    # 2. Texts. Without a column of its own, one of empty texts says how many rows to
    #    make.
    if not has_column:
        parts.insert(0, text_of_strings([""] * rows))
    no_separator = text_of_strings([""])[0]
    text = _COMPUTE.binary_join_element_wise(*parts, no_separator)
    # 3. Spans: a border where the loss of neighbouring pieces differs; every second
    #    border ends a span.
    borders = np.flatnonzero(np.diff([0, *map(int, loss), 0]))
    if not len(borders):
        no_places = np.zeros(0, np.int64)
        return text, Spans(np.zeros(rows + 1, np.int64), no_places, no_places)
    places = np.stack([edges[border] for border in borders], axis=1)
    start = places[:, ::2]
    stop = places[:, 1::2]
    # A span of empty values alone holds no byte.
    has_bytes = stop > start
    offsets = offsets_of(has_bytes.sum(axis=1))
    return text, Spans(offsets, start[has_bytes], stop[has_bytes])

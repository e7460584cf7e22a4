"""Renderers: rows become the texts that are tokenized, with the spans that count toward the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Bools, Int64, offsets_of, select, string_buffers, text_of_strings
from tokenlake.base.markup import is_encodable
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.transform import Column
from tokenlake.etl.tokenizers.offsets import Spans

_COMPUTE: Final[Any] = pc


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The texts made of n rows.

    Attributes:
        text: large_string[m * parts], no nulls, valid UTF-8: the texts of a row lie together.
        origin: int64[m], ascending: index of the row that each document was made of.
        spans: of the m * parts texts: what bears loss; None: these are plain texts, and what surrounds them (BOS,
            EOS) is the tokenizer's business.
        bad: rows of which no text could be made: (index, why), ascending.
        parts: texts of a document: 1, or more for preferences (prompt, chosen, rejected).
        label: bool[m], whether a document is a good answer; None where answers are not judged one by one.
    """

    text: Column
    origin: Int64
    spans: Spans | None = None
    bad: tuple[tuple[int, Fault], ...] = ()
    parts: int = 1
    label: Bools | None = None

    def without(self, faults: Mapping[int, Fault]) -> Rendered:
        """Return the same without the documents of some rows, which are bad; what is known of them stays."""
        if not faults:
            return self
        good = ~np.isin(self.origin, list(faults))
        inside = np.repeat(good, self.parts)
        return replace(
            self,
            text=select(self.text, inside),
            origin=self.origin[good],
            spans=None if self.spans is None else self.spans.select(inside),
            bad=tuple(sorted({**faults, **dict(self.bad)}.items())),
            label=None if self.label is None else self.label[good],
        )


class Renderer(Protocol):
    """Makes texts of rows; one for each source, kept for the whole build."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Top-level fields that it reads, None for all."""
        ...

    @property
    def control_tokens(self) -> bool:
        """Whether its texts spell special tokens that are to become control ids; a row's own are bad records."""
        ...

    def render(self, rows: Rows) -> Rendered:
        """Return the texts of `rows`."""
        ...


@final
class FieldText:
    """Renders the field `path` (dotted) of each row."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.control_tokens: Final = False
        self.columns: Final = None if "." in path else (path,)

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row without one is bad (``null_text``, ``not_a_string``)."""
        values = rows.values(self._path)
        faults = {at: fault for at, value in enumerate(values) if (fault := self._fault(value)) is not None}
        texts = ["" if at in faults else value for at, value in enumerate(values)]
        text = text_of_strings(texts)
        return Rendered(text=text, origin=np.arange(len(texts))).without(faults)

    def _fault(self, value: Any) -> Fault | None:
        if value is None:
            return Fault("null_text", f"the field {self._path!r} is missing or null", self._path)
        if not isinstance(value, str):
            message = f"the field {self._path!r} holds {type(value).__name__}, expected text"
            return Fault("not_a_string", message, self._path)
        if not is_encodable(value):
            message = f"the field {self._path!r} holds half of a surrogate pair"
            return Fault("invalid_utf8", message, self._path)
        return None


def byte_sizes(text: Column) -> Int64:
    """Return the UTF-8 bytes of each text: int64[n]."""
    return np.diff(string_buffers(text)[0])


def join_pieces(pieces: Sequence[str | Column], loss: Sequence[bool], rows: int) -> tuple[Column, Spans]:
    """Join words, which are the same in every row, and columns; return the texts and where they bear loss.

    Args:
        loss: whether each piece bears loss; neighbours that do are one span.
        rows: n, the length of every column.
    """
    parts: list[Any] = [text_of_strings([""] * rows)]
    edges = [np.zeros(rows, np.int64)]
    for piece in pieces:
        words = isinstance(piece, str)
        parts.append(text_of_strings([piece])[0] if words else piece)
        edges.append(edges[-1] + (len(piece.encode()) if words else byte_sizes(piece)))
    if any(isinstance(part, pa.Array) for part in parts[1:]):
        del parts[0]  # only there so that words alone become a column
    text = _COMPUTE.binary_join_element_wise(*parts, text_of_strings([""])[0])
    borders = np.flatnonzero(np.diff([0, *map(int, loss), 0]))
    found = np.stack([edges[at] for at in borders], axis=1) if len(borders) else np.zeros((rows, 0), np.int64)
    start, stop = found[:, ::2], found[:, 1::2]
    full = stop > start
    return text, Spans(offsets_of(full.sum(axis=1)), start[full], stop[full])

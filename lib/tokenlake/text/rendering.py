"""Rows to the texts that are tokenized, with the stretches that a trainer learns from.

The text of one field, as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.sources.rows import Fault, Rows
from tokenlake.tokenizers.arrays import Spans

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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

    text: pa.LargeStringArray
    origin: Int64
    spans: Spans | None = None
    bad: tuple[tuple[int, Fault], ...] = ()
    parts: int = 1
    label: Bools | None = None


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


_ARROW: Final[Any] = pa


@final
class FieldText:
    """Renders the field `path` (dotted) of each row."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def control_tokens(self) -> bool:
        return False

    @property
    def columns(self) -> tuple[str, ...] | None:
        return None if "." in self._path else (self._path,)

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row without one is bad (``null_text``, ``not_a_string``)."""
        texts: list[str] = []
        origin: list[int] = []
        bad: list[tuple[int, Fault]] = []
        for index, value in enumerate(rows.values(self._path)):
            fault = self._fault(value)
            if fault is None:
                texts.append(value)
                origin.append(index)
            else:
                bad.append((index, fault))
        array = _ARROW.array(texts, pa.large_string())
        return Rendered(text=array, origin=np.array(origin, np.int64), bad=tuple(bad))

    def _fault(self, value: Any) -> Fault | None:
        if value is None:
            return Fault("null_text", f"the field {self._path!r} is missing or null")
        if not isinstance(value, str):
            return Fault(
                "not_a_string", f"the field {self._path!r} holds {type(value).__name__}, expected text"
            )
        try:
            value.encode()
        except UnicodeEncodeError:
            return Fault("invalid_utf8", f"the field {self._path!r} holds half of a surrogate pair")
        return None

"""Documents as texts with their identities, and the fields kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int64, string_buffers
from tokenlake.etl.tokenizers.offsets import Spans

_ARROW: Final[Any] = pa  # the stubs do not know concat_batches


@dataclass(frozen=True, slots=True)
class TextDocuments:
    """Texts and where they come from.

    Attributes:
        text: large_string[n * parts], no nulls, valid UTF-8; the texts of a document lie together.
        file, position: int64[n], the documents' identities.
        spans: of the texts: what bears loss; None for plain text.
        extra: bool[n], True for a document that is not the first of its row; None where none is.
        parts: texts of a document.
        label: bool[n], whether a document is a good answer; None where answers are not judged one by one.
        kept: n rows of fields kept beside the tokens; None where none are.
    """

    text: pa.LargeStringArray
    file: Int64
    position: Int64
    spans: Spans | None = None
    extra: Bools | None = None
    parts: int = 1
    label: Bools | None = None
    kept: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.position)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        ends = self._ends
        return int(ends[-1] - ends[0])

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is held: texts and kept fields."""
        return self.text_bytes + (0 if self.kept is None else self.kept.nbytes)

    @property
    def text_sizes(self) -> Int64:
        """int64[n * parts], UTF-8 bytes of each text."""
        return np.diff(self._ends)

    @property
    def _ends(self) -> Int64:
        """int64[n * parts + 1], where each text begins in Arrow's buffer, and where the last one ends."""
        return string_buffers(self.text)[0]

    def slice(self, first: int, last: int) -> Self:
        """TextDocuments ``first`` to ``last`` (exclusive), no text copied."""
        begin, end = first * self.parts, last * self.parts
        return type(self)(
            self.text.slice(begin, end - begin),
            self.file[first:last],
            self.position[first:last],
            None if self.spans is None else self.spans.slice(begin, end),
            None if self.extra is None else self.extra[first:last],
            self.parts,
            None if self.label is None else self.label[first:last],
            None if self.kept is None else self.kept.slice(first, last - first),
        )

    def select(self, mask: Bools) -> Self:
        """The documents where ``mask`` (bool[n]) is true."""
        inside = np.repeat(mask, self.parts)
        return type(self)(
            self.text.filter(pa.array(inside)),
            self.file[mask],
            self.position[mask],
            None if self.spans is None else self.spans.select(inside),
            None if self.extra is None else self.extra[mask],
            self.parts,
            None if self.label is None else self.label[mask],
            None if self.kept is None else self.kept.filter(pa.array(mask)),
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All documents of ``parts`` (at least one, all of one recipe) in order; a single part is not copied."""
        if len(parts) == 1:
            return parts[0]
        text: Any = pa.concat_arrays([part.text for part in parts])
        labels = [part.label for part in parts if part.label is not None]
        spans = [part.spans for part in parts if part.spans is not None]
        kept = [part.kept for part in parts if part.kept is not None]
        extra = [np.zeros(len(part), np.bool_) if part.extra is None else part.extra for part in parts]
        return cls(
            text,
            np.concatenate([part.file for part in parts]),
            np.concatenate([part.position for part in parts]),
            Spans.concat(spans) if spans else None,
            None if all(part.extra is None for part in parts) else np.concatenate(extra),
            parts[0].parts,
            np.concatenate(labels) if labels else None,
            _ARROW.concat_batches(kept) if kept else None,
        )


def taken(kept: pa.RecordBatch | None, rows: Int64) -> pa.RecordBatch | None:
    """Return the kept fields of `rows` (int64[m]), any of them several times."""
    return None if kept is None else kept.take(_ARROW.array(rows))

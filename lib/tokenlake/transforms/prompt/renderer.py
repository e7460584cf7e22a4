"""Columns to prompts, column-wise: Arrow joins the pieces, numpy adds up where the answer lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.spans import Spans
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.prompt.judged import judged_values, sizes_of
from tokenlake.transforms.prompt.layout import Layout, special_pattern
from tokenlake.transforms.prompt.template import Piece
from tokenlake.transforms.prompt.values import Values
from tokenlake.transforms.rendering import Rendered

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
_TEXT: Final[Any] = pa.large_string()


@final
class PromptRenderer:
    """Renders prompts of the formats ``custom`` and ``completion``.

    Args:
        special_tokens_in_text: ``encode``: a special token that a row's own value spells becomes one; ``fail``: such a
            row is bad; ``literal``: it is text, but where the template itself spells control tokens, which no encoder
            can tell from the row's, the row is bad all the same.
    """

    def __init__(self, layout: Layout, files: TokenizerFiles, special_tokens_in_text: str) -> None:
        self._layout = layout
        refused = special_tokens_in_text == "fail" or (layout.control and special_tokens_in_text != "encode")
        self._pattern = special_pattern(files) if refused else ""

    @property
    def control_tokens(self) -> bool:
        return self._layout.control

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that every row must have."""
        return tuple(name for name in self._layout.columns if name not in self._layout.optional)

    @property
    def columns(self) -> tuple[str, ...] | None:
        return None if any("." in column for column in self._layout.columns) else self._layout.columns

    def render(self, rows: Rows) -> Rendered:
        """Return the prompts.

        A row is bad if a value is missing (``null_column``) or no text, number or boolean (``not_a_string``), if the
        answer is empty (``empty_label``), or if it spells a special token where that is refused.
        """
        layout = self._layout
        values, faults = judged_values(
            rows, layout.columns, optional=layout.optional, label=layout.label, pattern=self._pattern
        )
        joined = self._joined(values, len(rows))
        faults = self._forged(joined.text) | faults
        keep = np.ones(len(rows), np.bool_)
        keep[list(faults)] = False
        bad = tuple(sorted(faults.items()))
        if keep.all():
            return Rendered(text=joined.text, origin=np.arange(len(rows)), spans=joined.spans(keep))
        text = joined.text.filter(_ARROW.array(keep))
        return Rendered(text=text, origin=np.flatnonzero(keep), spans=joined.spans(keep), bad=bad)

    def _forged(self, text: Any) -> dict[int, Fault]:
        """Find the rows that make a special token together with what stands beside them."""
        if not self._pattern:
            return {}
        counts = _COMPUTE.count_substring_regex(text, self._pattern)
        others = _COMPUTE.indices_nonzero(_COMPUTE.not_equal(counts, self._layout.specials))
        fault = Fault(
            "special_token_in_text", "a value and the template's text beside it make a special token together"
        )
        return dict.fromkeys(others.to_pylist(), fault)

    def _joined(self, values: dict[str, Values], count: int) -> _Joined:
        parts: list[Any] = []
        sizes: list[Int64 | int] = []
        for piece in self._layout.pieces:
            part = _part(piece, values)
            parts.append(part)
            sizes.append(len(piece.text.encode()) if piece.column is None else sizes_of(part))
        text = _COMPUTE.binary_join_element_wise(*parts, _ARROW.scalar("", _TEXT))
        return _Joined(text, tuple(sizes), tuple(piece.learned for piece in self._layout.pieces), count)


@final
@dataclass(frozen=True, slots=True)
class _Joined:
    """n texts and how they are made up.

    Attributes:
        text: large_string[n].
        sizes: for each piece, its bytes: int64[n], or the same in every row.
        learned: for each piece, whether it is learned.
    """

    text: Any
    sizes: tuple[Int64 | int, ...]
    learned: tuple[bool, ...]
    count: int

    def spans(self, keep: Bools) -> Spans:
        """Return what is learned of the rows where `keep` (bool[n]) is true: runs of learned pieces."""
        edges = [np.zeros(self.count, np.int64)]
        for size in self.sizes:
            edges.append(edges[-1] + size)
        found: list[tuple[Int64, Int64]] = []
        open_at: int | None = None
        for index, learned in enumerate((*self.learned, False)):
            if learned and open_at is None:
                open_at = index
            elif not learned and open_at is not None:
                found.append((edges[open_at][keep], edges[index][keep]))
                open_at = None
        return _spans(found, int(keep.sum()))


def _spans(runs: list[tuple[Int64, Int64]], count: int) -> Spans:
    """Lay runs, each (start, stop) int64[n], out by rows, leaving empty ones out."""
    start = np.stack([start for start, _ in runs], axis=1) if runs else np.zeros((count, 0), np.int64)
    stop = np.stack([stop for _, stop in runs], axis=1) if runs else start
    full = stop > start
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(full.sum(axis=1))])
    return Spans(offsets, start[full], stop[full])


def _part(piece: Piece, values: dict[str, Values]) -> Any:
    """Return a piece of every row: a scalar for text that stays, else large_string[n]."""
    if piece.column is None:
        return _ARROW.scalar(piece.text, _TEXT)
    text: Any = values[piece.column].text
    if not piece.text:
        return text
    followed = _COMPUTE.binary_join_element_wise(
        text, _ARROW.scalar(piece.text, _TEXT), _ARROW.scalar("", _TEXT)
    )
    empty = _COMPUTE.equal(_COMPUTE.binary_length(text), 0)
    return _COMPUTE.if_else(empty, text, followed) if _COMPUTE.any(empty).as_py() else followed

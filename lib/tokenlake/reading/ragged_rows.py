"""Row groups of datasets whose rows have many lengths: documents, padded or not, and preferences.

A row is made of *runs* of ids: of kind tokens one, without a name; of kind preference the prompt and each answer with
its prompt before it, whichever way its columns are stored. How long all runs are is known before any row is decoded
(:mod:`tokenlake.reading.row_lengths`), for batches are made by length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from tokenlake.preference_columns import columns_for, parts_of
from tokenlake.ragged import Bools, Int32, Int64, offsets_of
from tokenlake.reading.row_lengths import narrowest
from tokenlake.store.manifest import Manifest

IDS: Final = "input_ids"
MASK: Final = "attention_mask"
LEARNED: Final = "loss_mask"
LABEL: Final = "label"
Lengths = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class TokenRun:
    """One run of ids of every row.

    Attributes:
        name: ``chosen``, ``rejected``, ``completion`` or ``prompt``; empty for a document.
        columns: whose ids it is made of, one after the other.
        prompt: the column as many ids of which come first and bear no loss; None: no such column.
        bears_loss: whether its ids are targets.
    """

    name: str
    columns: tuple[str, ...]
    prompt: str | None = None
    bears_loss: bool = True


def runs_of(manifest: Manifest) -> tuple[TokenRun, ...]:
    """Return the runs of an unpacked version's rows: what is answered with first, the prompt last."""
    if manifest.preference is None:
        return (TokenRun("", (IDS,)),)
    method, trainer = manifest.preference
    columns: dict[tuple[str, ...], str] = {
        column.parts: column.name for column in columns_for(method, trainer) if column.holds == "ids"
    }
    prompt = columns.get(("prompt",))
    answers: list[str] = [part for part in parts_of(method) if part != "prompt"]
    found = [
        TokenRun(part, (columns["prompt", part],), prompt)
        if ("prompt", part) in columns
        else TokenRun(
            part, (prompt, columns[part,]) if prompt else (columns[part,],), prompt, prompt is not None
        )
        for part in answers
    ]
    return (*found, *([TokenRun("prompt", (prompt,), None, bears_loss=False)] if prompt else []))


@final
class RaggedGroup:
    """A row group of n rows; nothing of it may be written to.

    Attributes:
        rows: n.
        views: column -> the memory of its ids, four bytes each, of all rows.
        begins: column -> where each row's ids begin, n + 1 numbers, the last being where they end.
        learned: which ids of :data:`IDS` bear loss, one byte each; None where that is not stored or not asked for.
        label: whether each answer is good, bool[n]; None where no row says.
        nbytes: bytes of memory that the row group keeps.
    """

    __slots__ = ("begins", "label", "learned", "nbytes", "rows", "views")

    def __init__(
        self, ids: dict[str, Int32], offsets: dict[str, Int64], learned: Bools | None, label: Bools | None
    ) -> None:
        self.views = {name: values.view(np.uint8).data for name, values in ids.items()}
        self.begins = {name: each.tolist() for name, each in offsets.items()}
        self.rows = len(next(iter(offsets.values()))) - 1
        self.learned = None if learned is None else learned.view(np.uint8).data
        self.label = label
        parts = [*ids.values(), *([] if learned is None else [learned])]
        self.nbytes = sum(part.nbytes for part in parts) + 16 * self.rows * len(offsets)


class ListColumns(Protocol):
    """What is stored: columns of lists, by row group."""

    manifest: Manifest
    group_rows: Int64

    def list_lengths(self, column: str) -> Lengths:
        """Return the length of each row's list, of all row groups, unsigned[rows]."""
        ...

    def list_values(self, group: int, column: str, values: int) -> npt.NDArray[Any]:
        """Return the values of a row group's lists, `values` of them, one list after the other."""
        ...

    def flags(self, group: int, column: str) -> Bools:
        """Return a column of booleans."""
        ...


@final
class RaggedRows:
    """The rows of a split, by row group, and their lengths, which are read once; may be used by several threads.

    Args:
        stored: its columns.
        has_loss_mask: whether a column says which ids bear loss.

    Attributes:
        runs: of every row.
    """

    def __init__(self, stored: ListColumns, *, has_loss_mask: bool) -> None:
        self._stored, self._has_loss_mask = stored, has_loss_mask
        self._first_rows = offsets_of(stored.group_rows)
        self.runs: Final = runs_of(stored.manifest)

    @property
    def columns(self) -> tuple[str, ...]:
        """Whose ids a row group holds."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.columns))

    @property
    def has_label(self) -> bool:
        """Whether rows say if their answer is good."""
        preference = self._stored.manifest.preference
        return preference is not None and any(column.holds == "label" for column in columns_for(*preference))

    def lengths(self, column: str) -> Lengths:
        """Return how many ids of each row a column has, padding not counted: unsigned[rows]."""
        return self._real[1] if column == IDS and self._padded else self._stored.list_lengths(column)

    def read(self, group: int, *, loss_mask: bool) -> RaggedGroup:
        """Decode a row group.

        Args:
            group: which.
            loss_mask: whether the stored ``loss_mask`` is read as well, where there is one.

        Raises:
            IntegrityError: it is damaged.
        """
        there = slice(int(self._first_rows[group]), int(self._first_rows[group + 1]))
        offsets = {
            name: offsets_of(self._stored.list_lengths(name)[there].astype(np.int64)) for name in self.columns
        }
        ids = {name: self._stored.list_values(group, name, int(each[-1])) for name, each in offsets.items()}
        learned = None
        if loss_mask and self._has_loss_mask:
            learned = self._stored.list_values(group, LEARNED, int(offsets[IDS][-1]))
        if self._padded:  # what is in front of a row's own ids is passed over
            offsets[IDS][:-1] += self._real[0][there]
        return RaggedGroup(
            ids, offsets, learned, self._stored.flags(group, LABEL) if self.has_label else None
        )

    @cached_property
    def _padded(self) -> bool:
        """Whether rows hold padding, which a column says."""
        manifest = self._stored.manifest
        return manifest.preference is None and bool(manifest.config.get("build", {}).get("attention_mask"))

    @cached_property
    def _real(self) -> tuple[Lengths, Lengths]:
        """Of rows with padding: how many ids of it come first, and how many ids are none, unsigned[rows] both."""
        stored = self._stored.list_lengths(MASK).astype(np.int64)
        parts: Sequence[tuple[Int64, Int64]] = [
            self._unpadded(group, stored[self._first_rows[group] : self._first_rows[group + 1]])
            for group in range(len(self._stored.group_rows))
        ]
        begins, lengths = (
            np.concatenate([np.zeros(0, np.int64), *each]) for each in zip(*parts, strict=True)
        )
        return narrowest(begins), narrowest(lengths)

    def _unpadded(self, group: int, stored: Int64) -> tuple[Int64, Int64]:
        offsets = offsets_of(stored)
        ones = offsets_of(self._stored.list_values(group, MASK, int(offsets[-1])) != 0)
        real = np.diff(ones[offsets])
        # The first id of a row is of the document, or else all padding comes first.
        first = ones[np.minimum(offsets[:-1] + 1, offsets[-1])] > ones[offsets[:-1]]
        return np.where(first, 0, stored - real), real

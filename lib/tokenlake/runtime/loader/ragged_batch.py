"""One batch of rows of many lengths, padded to one: a dict of arrays.

Rows of 3 and 5 ids in a batch of length 6, padded on the right::

    input_ids       a b c 0 0 0     d e f g h 0
    attention_mask  x x x . . .     x x x x x .      x: an id of the row
    segment_ids     1 1 1 0 0 0     1 1 1 1 1 0      the same as numbers, as of packed rows
    positions       0 1 2 0 0 0     0 1 2 3 4 0
    loss_mask       . x x . . .     . x x x x .      x: this id is a target that bears loss
    lengths         3               5

``labels`` and ``targets`` are those of :mod:`tokenlake.runtime.loader.batch`. An id is never a target where
it is the first of its row, for nothing predicts it.

Of a preference dataset there are such columns for each answer, its prompt before it (``chosen_input_ids``,
``rejected_attention_mask``, ``completion_labels``), and for the prompt alone (``prompt_input_ids``). The prompt bears
no loss. These are the names that EasyDeL's trainers read, and TRL's where they take prompt and answer together; all
arrays of a batch have one shape, so that chosen and rejected can be laid one below the other, as DPO trainers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64
from tokenlake.runtime.loader.batch import (
    FROM_LOSS,
    Batch,
    BatchShape,
    check_columns,
    labels,
    pad_id_of,
    targets,
    used_again,
)
from tokenlake.runtime.loader.length_index import LengthIndex
from tokenlake.runtime.loader.padding import Side
from tokenlake.runtime.reading.ragged_rows import IDS, LABEL, RaggedGroup, TokenRun
from tokenlake.runtime.reading.version import StoredRows

RUN_COLUMNS: Final = (
    "input_ids",
    "attention_mask",
    "segment_ids",
    "positions",
    "loss_mask",
    "labels",
    "targets",
    "lengths",
)
"""What there is of each run of a row, after its name."""

_DOCUMENT: Final = ("input_ids", "attention_mask", "positions", "loss_mask")  # by default
_ANSWER: Final = ("input_ids", "attention_mask", "labels")


def ragged_columns(source: StoredRows, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns asked for, the default ones for None; ConfigError where there are no such."""
    return check_columns(asked, *all_ragged_columns(source))


def all_ragged_columns(source: StoredRows) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that batches of a dataset can have, and those that they have by default."""
    there, default = list[str](), list[str]()
    runs = source.ragged.runs
    for run in runs:
        usual = _ANSWER if run.name else _DOCUMENT
        for name in (
            RUN_COLUMNS if run.bears_loss else [each for each in RUN_COLUMNS if each not in FROM_LOSS]
        ):
            there.append(column_name(run, name))
            if name in usual and (run.name != "prompt" or len(runs) == 1):
                default.append(there[-1])
    label = (LABEL,) if source.ragged.has_label else ()
    return (*there, *label), (*default, *label)


def column_name(run: TokenRun, column: str) -> str:
    """Return what a batch calls a column of a run."""
    return f"{run.name}_{column}" if run.name else column


@final
class RaggedAssembler:
    """Makes batches of some columns of rows of many lengths.

    Args:
        sources: the datasets that rows come from, not packed.
        index: lengths of their rows.
        columns: of :func:`ragged_columns`.
        padding, truncate: at which end rows are padded, and cut where they are longer than a batch.
    """

    segments = False

    def __init__(
        self,
        sources: Sequence[StoredRows],
        index: LengthIndex,
        columns: Sequence[str],
        *,
        padding: Side,
        truncate: Side | None,
    ) -> None:
        self.names, self._index, self._pad = tuple(columns), index, pad_id_of(sources[0].manifest)
        self._left, self._cut_left = padding == "left", truncate == "left"
        asked = {
            run: frozenset(name for name in RUN_COLUMNS if column_name(run, name) in columns)
            for run in index.runs
        }
        self._asked = {run: names for run, names in asked.items() if names}
        wants_loss = any(FROM_LOSS & names for names in asked.values())
        self.loss_mask = wants_loss and any(rows.has_loss_mask for rows in sources)

    def batch(
        self, shape: BatchShape, group: Int64, row: Int64, decoded: Callable[[int], RaggedGroup]
    ) -> Batch:
        """Return a batch.

        Args:
            shape: of the batch; rows after the given ones are padding.
            group: by which number `decoded` knows the row group of each row, int64[n], n <= rows.
            row: in its row group, int64[n].
            decoded: number -> row group.
        """
        found, rows = [decoded(number) for number in group.tolist()], row.tolist()
        numbers, made = self._index.first_rows[group] + row, Batch()
        for run, names in self._asked.items():
            columns = self._run(run, names, numbers, shape, found, rows)
            made |= {column_name(run, name): values for name, values in columns.items()}
        if LABEL in self.names:
            label = np.zeros(shape.rows, np.bool_)
            label[: len(rows)] = [
                there.label is not None and there.label[at] for there, at in zip(found, rows, strict=True)
            ]
            made[LABEL] = label
        return {name: made[name] for name in self.names}

    def _run(
        self,
        run: TokenRun,
        names: frozenset[str],
        numbers: Int64,
        shape: BatchShape,
        found: Sequence[RaggedGroup],
        rows: Sequence[int],
    ) -> Batch:
        """The columns of a run that are asked for."""
        pieces = [self._index.column(name, numbers) for name in run.columns]
        prompt = None if run.prompt is None else self._index.column(run.prompt, numbers)
        cells = _Cells(shape, pieces, prompt, left=self._left, cut_left=self._cut_left)
        made: Batch = {}
        if names & {"input_ids", "labels", "targets"}:
            ids = used_again(shape, np.int32)
            ids.fill(self._pad)
            self._copy(run, cells, ids, found, rows)
            made["input_ids"] = ids
        if names & {"attention_mask", "segment_ids", "positions"}:
            made["attention_mask"] = cells.mask()
        if "segment_ids" in names:  # 1 for ids and 0 for padding
            made["segment_ids"] = used_again(shape, np.int32)
            np.copyto(made["segment_ids"], made["attention_mask"])
        if "positions" in names:
            made["positions"] = cells.positions(made["attention_mask"])
        if "lengths" in names:
            made["lengths"] = cells.length.astype(np.int32)
        if names & FROM_LOSS:
            mask = made["loss_mask"] = cells.loss_mask()
            if self.loss_mask and not run.name:
                np.logical_and(mask, self._learned(cells, found, rows), out=mask)
        if "labels" in names:
            made["labels"] = labels(made["input_ids"], made["loss_mask"], used_again(shape, np.int32))
        if "targets" in names:
            made["targets"] = targets(made["input_ids"], made["loss_mask"], used_again(shape, np.int32))
        return {name: values for name, values in made.items() if name in names}

    def _copy(
        self,
        run: TokenRun,
        cells: _Cells,
        out: Int32,
        found: Sequence[RaggedGroup],
        rows: Sequence[int],
    ) -> None:
        """Write the ids of rows to their places."""
        # Slices of memory views are the cheapest copies that Python has.
        target = out.reshape(-1).view(np.uint8).data
        for column, starts, places, sizes in zip(
            run.columns, cells.starts, cells.places, cells.sizes, strict=True
        ):
            begins = 4 * (starts + [there.begins[column][at] for there, at in zip(found, rows, strict=True)])
            ends, stops = begins + 4 * sizes, 4 * (places + sizes)
            for there, begin, end, place, stop in zip(
                [each.views[column] for each in found],
                begins.tolist(),
                ends.tolist(),
                (4 * places).tolist(),
                stops.tolist(),
                strict=True,
            ):
                target[place:stop] = there[begin:end]

    def _learned(self, cells: _Cells, found: Sequence[RaggedGroup], rows: Sequence[int]) -> Bools:
        """The stored masks; rows of a dataset without one bear loss everywhere."""
        learned = used_again(cells.shape, np.bool_)
        learned.fill(False)
        target = learned.reshape(-1).view(np.uint8).data
        (starts,), (places,), (sizes,) = cells.starts, cells.places, cells.sizes
        for there, at, start, place, size in zip(
            found, rows, starts.tolist(), places.tolist(), sizes.tolist(), strict=True
        ):
            begin = there.begins[IDS][at] + start
            target[place : place + size] = (
                b"\1" * size if there.learned is None else there.learned[begin : begin + size]
            )
        return learned


@final
class _Cells:
    """Where the ids of a run come to lie in a batch of B rows; of what is cut nothing is left.

    Args:
        shape: of the batch.
        pieces: ids of each column the run is made of, int64[n] each.
        prompt: ids of the prompt, which comes first, int64[n].
        left: whether padding goes to the left.
        cut_left: whether what is too long is cut on the left, else on the right.

    Attributes:
        starts: of each column the run is made of: the first of its ids that is kept, int64[n].
        sizes: how many of them are kept, int64[n].
        places: where they go, counted over all cells of the batch, int64[n].
        begin: the cell of each row's first id, int64[B].
        length: ids of each row, int64[B].
        prompt: ids of each row that bear no loss, int64[B].
    """

    def __init__(
        self,
        shape: BatchShape,
        pieces: Sequence[Int64],
        prompt: Int64 | None,
        *,
        left: bool,
        cut_left: bool,
    ) -> None:
        self.shape = shape
        whole: Int64 = np.stack(pieces).sum(axis=0)
        cut = np.maximum(whole - shape.length, 0)
        kept = whole - cut
        low = cut if cut_left else np.zeros_like(cut)  # the part of the whole run that is kept
        high = low + kept
        offset = (shape.length - kept) * left + np.arange(len(whole)) * shape.length
        self.starts, self.sizes, self.places = list[Int64](), list[Int64](), list[Int64]()
        before = np.zeros_like(whole)
        for piece in pieces:
            first = np.clip(low, before, before + piece)
            last = np.clip(high, before, before + piece)
            self.starts.append(first - before)
            self.sizes.append(last - first)
            self.places.append(offset + first - low)
            before = before + piece
        self.length, self.prompt = np.zeros((2, shape.rows), np.int64)
        self.length[: len(kept)] = kept
        if prompt is not None:
            self.prompt[: len(kept)] = np.clip(prompt - low, 0, kept)
        self.begin = (shape.length - self.length) * left
        self._cell: npt.NDArray[Any] = np.arange(shape.length, dtype=np.int32)

    def mask(self) -> Bools:
        """Return which cells hold ids."""
        return self._between(self.begin, used_again(self.shape, np.bool_))

    def loss_mask(self) -> Bools:
        """Return which ids are targets that bear loss: none of the prompt, and not the first of a row."""
        return self._between(self.begin + np.maximum(self.prompt, 1), used_again(self.shape, np.bool_))

    def positions(self, mask: Bools) -> Int32:
        """Return the place of each id in its row, and 0 in padding."""
        found: Int32 = used_again(self.shape, np.int32)
        if not self.begin.any():
            return np.multiply(self._cell, mask, out=found)
        np.subtract(self._cell, self.begin[:, None].astype(np.int32), out=found)
        return np.multiply(found, mask, out=found)

    def _between(self, first: Int64, out: Bools) -> Bools:
        """Return which cells lie from `first` on to the end of their row's ids."""
        np.less(self._cell, (self.begin + self.length)[:, None].astype(np.int32), out=out)
        if first.max(initial=0) == 1:
            out[first == 1, 0] = False
        elif first.any():
            np.logical_and(out, self._cell >= first[:, None].astype(np.int32), out=out)
        return out

"""Batches of rows of many lengths, padded to one length: a dict of arrays.

Rows of 3 and 5 ids in a batch of length 6, padded on the right::

    input_ids       a b c 0 0 0     d e f g h 0
    attention_mask  x x x . . .     x x x x x .      x: an id of the row
    segment_ids     1 1 1 0 0 0     1 1 1 1 1 0      the same as numbers, as for packed rows
    positions       0 1 2 0 0 0     0 1 2 3 4 0
    loss_mask       . x x . . .     . x x x x .      x: this id counts toward the loss
    lengths         3               5

``labels`` and ``targets`` are those of :mod:`tokenlake.runtime.loader.columns`. The
first id of a row is never a target, because nothing predicts it.

A *run* is a sequence of ids that every row has. A document is one run. A row of a
preference dataset has one run for each answer, which begins with the prompt
(``chosen_input_ids``, ``rejected_attention_mask``, ``completion_labels``), and one for
the prompt alone (``prompt_input_ids``). The prompt does not count toward the loss.
EasyDeL's trainers read these names, and so do TRL's where they take prompt and answer
together. All arrays of a batch have one shape, so that chosen and rejected answers can
be stacked, as DPO trainers do.

The ids of a run may be stored in two columns, prompt and answer. :class:`_Cells` computes which ids of each column are
kept, and where they go. A prompt of 3 ids and an answer of 4, in a batch of length 6, padded on the right::

    whole run        p p p a a a a       7 ids, so that 1 is cut
    cut on the right p p p a a a         prompt: ids 0 to 2 to places 0 to 2; answer: ids 0 to 2 to places 3 to 5
    cut on the left  p p a a a a         prompt: ids 1 to 2 to places 0 to 1; answer: ids 0 to 3 to places 2 to 5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64
from tokenlake.runtime.loader.batch import Batch, BatchShape, pad_id_of, reused_array
from tokenlake.runtime.loader.columns import FROM_LOSS, check_columns, labels, targets
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
"""Columns that each run of a row can have; the name of the run precedes them."""

_DEFAULTS_OF_DOCUMENTS: Final = (
    "input_ids",
    "attention_mask",
    "positions",
    "loss_mask",
)
_DEFAULTS_OF_ANSWERS: Final = ("input_ids", "attention_mask", "labels")


def ragged_columns(
    source: StoredRows, requested: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the requested columns of a dataset that is not packed.

    Args:
        source: Rows of the dataset.
        requested: Names of columns; None: the default ones.

    Raises:
        ConfigError: No column is requested, one is requested twice, or one does not
            exist.
    """
    return check_columns(requested, *all_ragged_columns(source))


def all_ragged_columns(source: StoredRows) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that batches of a dataset can have, and the default ones."""
    columns: list[str] = []
    defaults: list[str] = []
    runs = source.ragged.runs
    for run in runs:
        run_defaults = _DEFAULTS_OF_ANSWERS if run.name else _DEFAULTS_OF_DOCUMENTS
        # The answers contain the prompt, so that it is not a default beside them.
        is_default = run.name != "prompt" or len(runs) == 1
        for name in RUN_COLUMNS:
            if name in FROM_LOSS and not run.bears_loss:
                continue
            column = column_name(run, name)
            columns.append(column)
            if is_default and name in run_defaults:
                defaults.append(column)
    if source.ragged.has_label:
        columns.append(LABEL)
        defaults.append(LABEL)
    return tuple(columns), tuple(defaults)


def column_name(run: TokenRun, column: str) -> str:
    """Return the name of a run's column in a batch."""
    return f"{run.name}_{column}" if run.name else column


@final
class RaggedAssembler:
    """Makes batches of rows of many lengths.

    Args:
        sources: Datasets that rows come from, not packed.
        index: Lengths of their rows.
        columns: Names of the columns, some of :func:`ragged_columns`.
        padding: End of a row at which padding is added.
        truncate: End of a row that is cut if it is longer than the batch.

    Attributes:
        names: Names of the columns of a batch.
        needs_loss_mask: Whether row groups must be decoded with their loss mask.
    """

    needs_segments = False

    def __init__(
        self,
        sources: Sequence[StoredRows],
        index: LengthIndex,
        columns: Sequence[str],
        *,
        padding: Side,
        truncate: Side | None,
    ) -> None:
        self.names = tuple(columns)
        self._index = index
        self._pad_id = pad_id_of(sources[0].manifest)
        self._pads_left = padding == "left"
        self._cuts_left = truncate == "left"
        self._columns_of_run: dict[TokenRun, frozenset[str]] = {}
        wants_loss = False
        for run in index.runs:
            names = frozenset(
                name for name in RUN_COLUMNS if column_name(run, name) in columns
            )
            if names:
                self._columns_of_run[run] = names
                wants_loss = wants_loss or bool(FROM_LOSS & names)
        self.needs_loss_mask = wants_loss and any(
            rows.has_loss_mask for rows in sources
        )

    def batch(
        self,
        shape: BatchShape,
        group: Int64,
        row: Int64,
        decoded: Callable[[int], RaggedGroup],
    ) -> Batch:
        """Return a batch.

        Args:
            shape: Shape of the batch. Rows after the given ones are padding.
            group: Number of each row's row group, int64[n], at most as many as fill the
                batch.
            row: Row in its row group, int64[n].
            decoded: Function that returns the row group of a number.
        """
        group_of_row = list(map(decoded, group.tolist()))
        rows = row.tolist()
        row_numbers = self._index.first_rows[group] + row
        batch: Batch = {}
        for run, names in self._columns_of_run.items():
            columns = self._run_columns(
                run, names, row_numbers, shape, group_of_row, rows
            )
            for name in names:
                batch[column_name(run, name)] = columns[name]
        if LABEL in self.names:
            label = np.zeros(shape.rows, np.bool_)
            for place, (row_group, row_in_group) in enumerate(
                zip(group_of_row, rows, strict=True)
            ):
                if row_group.label is not None:
                    label[place] = row_group.label[row_in_group]
            batch[LABEL] = label
        return {name: batch[name] for name in self.names}

    def _run_columns(
        self,
        run: TokenRun,
        names: frozenset[str],
        row_numbers: Int64,
        shape: BatchShape,
        group_of_row: Sequence[RaggedGroup],
        rows: Sequence[int],
    ) -> Batch:
        """Return the columns of a run, some more than the requested ones.

        Args:
            run: Run of ids.
            names: Names of the requested columns.
            row_numbers: Numbers of the rows in the index, int64[n].
            shape: Shape of the batch.
            group_of_row: Row group of each row.
            rows: Row in its row group.
        """
        pieces = [self._index.column(name, row_numbers) for name in run.columns]
        prompt = None
        if run.prompt is not None:
            prompt = self._index.column(run.prompt, row_numbers)
        cells = _Cells(
            shape, pieces, prompt, pads_left=self._pads_left, cuts_left=self._cuts_left
        )
        columns: Batch = {}
        # Ids, and which places hold them. Others are computed from these.
        if names & {"input_ids", "labels", "targets"}:
            columns["input_ids"] = ids = reused_array(shape, np.int32)
            ids.fill(self._pad_id)
            _copy_ids(run, cells, ids, group_of_row, rows)
        if names & {"attention_mask", "segment_ids", "positions"}:
            columns["attention_mask"] = cells.mask()
        if "segment_ids" in names:  # 1 for ids and 0 for padding
            columns["segment_ids"] = segment_ids = reused_array(shape, np.int32)
            np.copyto(segment_ids, columns["attention_mask"])
        if "positions" in names:
            columns["positions"] = cells.positions(columns["attention_mask"])
        if "lengths" in names:
            columns["lengths"] = cells.length.astype(np.int32)
        # Columns that follow from the loss mask.
        if names & FROM_LOSS:
            columns["loss_mask"] = loss_mask = cells.loss_mask()
            if self.needs_loss_mask and not run.name:
                np.logical_and(
                    loss_mask,
                    _stored_loss_mask(cells, group_of_row, rows),
                    out=loss_mask,
                )
        if "labels" in names:
            out = reused_array(shape, np.int32)
            columns["labels"] = labels(columns["input_ids"], columns["loss_mask"], out)
        if "targets" in names:
            out = reused_array(shape, np.int32)
            columns["targets"] = targets(
                columns["input_ids"], columns["loss_mask"], out
            )
        return columns


def _copy_ids(
    run: TokenRun,
    cells: _Cells,
    out: Int32,
    group_of_row: Sequence[RaggedGroup],
    rows: Sequence[int],
) -> None:
    """Copy the ids of a run's rows to their places in a batch, int32[B, L]."""
    # Copying between slices of memory views is the fastest way to copy many small
    # pieces in Python.
    target = out.reshape(-1).view(np.uint8).data
    for piece, column in enumerate(run.columns):
        starts = cells.starts[piece]
        places = cells.places[piece]
        sizes = cells.sizes[piece]
        # Convert numbers of ids, of 4 bytes, to byte offsets in the row group and in
        # the batch.
        row_begins = [
            group.begins[column][row]
            for group, row in zip(group_of_row, rows, strict=True)
        ]
        begins = 4 * (starts + row_begins)
        ends = begins + 4 * sizes
        target_ends = 4 * (places + sizes)
        for group, begin, end, target_begin, target_end in zip(
            group_of_row,
            begins.tolist(),
            ends.tolist(),
            (4 * places).tolist(),
            target_ends.tolist(),
            strict=True,
        ):
            target[target_begin:target_end] = group.views[column][begin:end]


def _stored_loss_mask(
    cells: _Cells, group_of_row: Sequence[RaggedGroup], rows: Sequence[int]
) -> Bools:
    """Return the stored loss masks of a batch of documents.

    If the dataset has none, the mask is True for all ids.
    """
    loss_mask = reused_array(cells.shape, np.bool_)
    loss_mask.fill(False)
    target = loss_mask.reshape(-1).view(np.uint8).data
    # A document has one column.
    (starts,) = cells.starts
    (places,) = cells.places
    (sizes,) = cells.sizes
    for group, row, start, place, size in zip(
        group_of_row,
        rows,
        starts.tolist(),
        places.tolist(),
        sizes.tolist(),
        strict=True,
    ):
        if group.learned is None:
            target[place : place + size] = b"\1" * size
            continue
        begin = group.begins[IDS][row] + start
        target[place : place + size] = group.learned[begin : begin + size]
    return loss_mask


@final
class _Cells:
    """Places of a run's ids in a batch of B rows, after truncation.

    Args:
        shape: Shape of the batch.
        pieces: Number of ids of each column that the run consists of, int64[n] each.
        prompt: Number of ids of the prompt, which comes first, int64[n]; None: no
            prompt.
        pads_left: Whether padding is on the left, else on the right.
        cuts_left: Whether rows that are too long are cut on the left, else on the
            right.

    Attributes:
        shape: Shape of the batch.
        starts: First id that is kept of each column, int64[n] each.
        sizes: Number of ids that are kept of each column, int64[n] each.
        places: Place of the first one in the batch, counted over all rows, int64[n]
            each.
        begin: Place in its row of each row's first id, int64[B].
        length: Number of ids of each row, int64[B].
        prompt: Number of ids of each row that belong to the prompt, int64[B].
    """

    def __init__(
        self,
        shape: BatchShape,
        pieces: Sequence[Int64],
        prompt: Int64 | None,
        *,
        pads_left: bool,
        cuts_left: bool,
    ) -> None:
        self.shape = shape
        # 1. The part of each run that is kept: ids low to high.
        whole: Int64 = np.stack(pieces).sum(axis=0)
        cut = np.maximum(whole - shape.length, 0)
        kept = whole - cut
        low = cut if cuts_left else np.zeros_like(cut)
        high = low + kept
        # 2. The place in the batch of the first id that is kept.
        first_place = np.arange(len(whole)) * shape.length
        if pads_left:
            first_place += shape.length - kept
        # 3. The part of each column: the overlap of low to high with the ids of the
        #    column in the run.
        self.starts: list[Int64] = []
        self.sizes: list[Int64] = []
        self.places: list[Int64] = []
        before = np.zeros_like(whole)
        for piece in pieces:
            after = before + piece
            first = np.clip(low, before, after)
            last = np.clip(high, before, after)
            self.starts.append(first - before)
            self.sizes.append(last - first)
            self.places.append(first_place + first - low)
            before = after
        # 4. The same for all rows of the batch; rows of padding have no ids.
        self.length = np.zeros(shape.rows, np.int64)
        self.length[: len(kept)] = kept
        self.prompt = np.zeros(shape.rows, np.int64)
        if prompt is not None:
            self.prompt[: len(kept)] = np.clip(prompt - low, 0, kept)
        self.begin = np.zeros(shape.rows, np.int64)
        if pads_left:
            self.begin = shape.length - self.length
        self._place_in_row: npt.NDArray[Any] = np.arange(shape.length, dtype=np.int32)

    def mask(self) -> Bools:
        """Return which places hold ids, bool[B, L]."""
        return self._places_from(self.begin)

    def loss_mask(self) -> Bools:
        """Return which ids count toward the loss, bool[B, L].

        The ids of the prompt do not, and neither does the first of a row.
        """
        return self._places_from(self.begin + np.maximum(self.prompt, 1))

    def positions(self, mask: Bools) -> Int32:
        """Return the position of each id in its row, and 0 in padding, int32[B, L].

        Args:
            mask: Places that hold ids, bool[B, L].
        """
        positions: Int32 = reused_array(self.shape, np.int32)
        if not self.begin.any():
            return np.multiply(self._place_in_row, mask, out=positions)
        np.subtract(
            self._place_in_row, self.begin[:, None].astype(np.int32), out=positions
        )
        return np.multiply(positions, mask, out=positions)

    def _places_from(self, first: Int64) -> Bools:
        """Return which places lie from a place to the end of the ids, bool[B, L].

        Args:
            first: First place of each row, int64[B].
        """
        is_between = reused_array(self.shape, np.bool_)
        end = (self.begin + self.length)[:, None].astype(np.int32)
        np.less(self._place_in_row, end, out=is_between)
        if first.max(initial=0) == 1:
            is_between[first == 1, 0] = False  # faster than a comparison of all places
        elif first.any():
            np.logical_and(
                is_between,
                self._place_in_row >= first[:, None].astype(np.int32),
                out=is_between,
            )
        return is_between

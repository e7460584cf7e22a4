"""Rows of decoded row groups to one batch: a dict of arrays."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import ConfigError
from tokenlake.loader.columns import Segments, labels, targets
from tokenlake.manifest import Manifest
from tokenlake.order.random import Int64
from tokenlake.ragged import offsets_of
from tokenlake.reading import PackedGroup, StoredRows
from tokenlake.reading.blocks import BLOCKS

Batch: TypeAlias = dict[str, npt.NDArray[Any]]
"""Column -> array of shape (rows, L)."""

COLUMNS: Final = ("input_ids", "segment_ids", "positions", "loss_mask", "labels", "targets")
"""What a batch may hold; see :mod:`tokenlake.loader.columns`."""

DEFAULT_COLUMNS: Final = COLUMNS[:4]
_FROM_LOSS: Final = frozenset({"loss_mask", "labels", "targets"})


def check_columns(asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns asked for, the default ones for None; ConfigError for others."""
    names = DEFAULT_COLUMNS if asked is None else tuple(asked) if isinstance(asked, Iterable) else ()  # pyright: ignore[reportUnnecessaryIsInstance]
    wrong = [name for name in names if name not in COLUMNS]
    if isinstance(asked, str) or wrong or not names or len(set(names)) != len(names):
        near = difflib.get_close_matches(str(wrong[0]) if wrong else "", COLUMNS, 1)
        raise ConfigError(
            f"columns: got {asked!r}, must be some of {', '.join(COLUMNS)}, each once"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    return names


def pad_id_of(manifest: Manifest) -> int:
    """Return the id that unfilled places of a version's rows hold."""
    return next((int(facts["pad_id"]) for facts in manifest.tokenizer.values() if "pad_id" in facts), 0)


@final
class Assembler:
    """Makes batches of some columns.

    Args:
        sources: the datasets that rows come from, packed to one length.
        columns: of :data:`COLUMNS`.
        fresh: give every batch memory of its own, also where that is slower.

    Raises:
        ConfigError: the datasets are not packed, or to different lengths.
    """

    def __init__(self, sources: Sequence[StoredRows], columns: Sequence[str], *, fresh: bool = False) -> None:
        found = {rows.name: (rows.manifest.kind, rows.manifest.seq_length) for rows in sources}
        if any(kind != "packed" for kind, _ in found.values()) or len(set(found.values())) != 1:
            shown = ", ".join(f"{name} ({kind}, {length})" for name, (kind, length) in found.items())
            raise ConfigError(f"a batch has rows of one length; expected datasets packed to one, got {shown}")
        self.length = sources[0].manifest.seq_length or 0
        self._columns, self._fresh = frozenset(columns), fresh
        self.names, self._pad = tuple(columns), pad_id_of(sources[0].manifest)
        wants_loss = bool(_FROM_LOSS & self._columns)
        self.loss_mask = wants_loss and any(rows.has_loss_mask for rows in sources)

    def batch(self, size: int, group: Int64, row: Int64, decoded: Callable[[int], PackedGroup]) -> Batch:
        """Return a batch.

        Args:
            size: rows of the batch; those after the given ones are padding.
            group: by which number `decoded` knows the row group of each row, int64[n], n <= size.
            row: in its row group, int64[n].
            decoded: number -> row group.
        """
        ids = self._empty((size, self.length), np.int32)
        found = [decoded(number) for number in group.tolist()]
        rows = row.tolist()
        views = [there.row_views[at] for there, at in zip(found, rows, strict=True)]
        if views:
            np.concatenate(views, out=ids[: len(rows)].reshape(-1))
        ids[len(rows) :] = self._pad
        made: Batch = {"input_ids": ids}
        if self._columns - {"input_ids"}:
            self._derive(made, self._segments(size, found, rows), found, rows)
        return {name: made[name] for name in self.names}

    def _segments(self, size: int, found: Sequence[PackedGroup], rows: Sequence[int]) -> Segments:
        bounds = [there.segment_offsets[at : at + 2].tolist() for there, at in zip(found, rows, strict=True)]
        lengths = [
            there.segment_lengths[begin:end] for there, (begin, end) in zip(found, bounds, strict=True)
        ]
        counts = np.zeros(size, np.int64)
        counts[: len(rows)] = [len(each) for each in lengths]
        joined = np.concatenate(lengths) if lengths else np.zeros(0, np.int32)
        return Segments.of(joined, offsets_of(counts), self.length)

    def _derive(
        self, made: Batch, segments: Segments, found: Sequence[PackedGroup], rows: Sequence[int]
    ) -> None:
        shape = made["input_ids"].shape
        if "segment_ids" in self._columns:
            made["segment_ids"] = segments.ids(self._empty(shape, np.int32))
        if "positions" in self._columns:
            made["positions"] = segments.positions(self._empty(shape, np.int32))
        if not _FROM_LOSS & self._columns:
            return
        mask = segments.loss_mask(self._learned(shape, found, rows), self._empty(shape, np.bool_))
        made["loss_mask"] = mask
        if "labels" in self._columns:
            made["labels"] = labels(made["input_ids"], mask, self._empty(shape, np.int32))
        if "targets" in self._columns:
            made["targets"] = targets(made["input_ids"], mask, self._empty(shape, np.int32))

    def _learned(
        self, shape: tuple[int, ...], found: Sequence[PackedGroup], rows: Sequence[int]
    ) -> npt.NDArray[np.bool_] | None:
        """The stored masks; rows of a dataset without one bear loss everywhere."""
        if not self.loss_mask:
            return None
        learned = self._empty(shape, np.bool_)
        for place, (there, at) in enumerate(zip(found, rows, strict=True)):
            learned[place] = True if there.learned is None else there.learned[at]
        learned[len(rows) :] = False
        return learned

    def _empty(self, shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
        if self._fresh:
            return np.empty(shape, kind)
        # Of memory that nobody refers to any more: batches that are kept, in whatever form, stay what they are.
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        return BLOCKS.take(size).view(kind).reshape(shape)

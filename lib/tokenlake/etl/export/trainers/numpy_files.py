"""Files of nanoGPT (``NAME.bin``) and OLMo-core (``NAME.npy``).

They hold ids alone, and the borders of documents in ``NAME.csv.gz``.

Padding is left out. The borders are those of documents, and in packed rows those of
their segments. The loss mask of ``.npy`` files is a file of its own, which OLMo-core
reads as one of its ``label_mask_paths``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.etl.export.flat_manifest import FlatFile
from tokenlake.etl.export.shard_record import Part
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.token_layout import (
    MASK_TYPE,
    NumberSpool,
    PartFile,
    TokenFacts,
    TokenLayout,
)
from tokenlake.etl.layouts import numpy_flat

_LENGTHS_SUFFIX: Final = ".lengths"
"""End of the name of the file in which lengths wait."""

_BORDERS_AT_A_TIME: Final = 1 << 16
"""Documents whose borders are written at a time. It does not depend on row groups, so
that an export that was interrupted makes the same compressed bytes.
"""


@final
class NumpyLayout(TokenLayout):
    """The formats ``numpy`` and ``npy``.

    Args:
        facts: Facts about the rows.
        dtype: Type of the ids.
        suffix: End of the names of files with ids, ``.bin`` or ``.npy``.
    """

    def __init__(self, facts: TokenFacts, dtype: np.dtype[Any], suffix: str) -> None:
        self.facts = facts
        self._dtype = dtype
        self._suffix = suffix

    @property
    def schema(self) -> pa.Schema:
        # A loss mask is a file beside the ids, and a column in the manifest.
        columns: dict[str, Any] = {
            "input_ids": pa.list_(pa.from_numpy_dtype(self._dtype))
        }
        if "loss_mask" in self.facts.columns:
            columns["loss_mask"] = pa.list_(pa.from_numpy_dtype(MASK_TYPE))
        return pa.schema(columns)

    def row_bytes(self, rows: TokenRows) -> Int64:
        return np.diff(rows.row_offsets) * self._dtype.itemsize

    def open(self, path: Path, parts: Sequence[Part] = ()) -> NumpyFile:
        return NumpyFile(
            path,
            self._dtype,
            self._suffix,
            parts,
            has_loss_mask="loss_mask" in self.facts.columns,
        )

    def export_index(self, files: Sequence[FlatFile]) -> Mapping[str, bytes]:
        # Loss masks end like files of ids, and have no ids.
        id_counts: dict[str, int] = {}
        for flat_file in files:
            is_loss_mask = flat_file.path.endswith(numpy_flat.LABEL_MASK_SUFFIX)
            if flat_file.path.endswith(self._suffix) and not is_loss_mask:
                id_counts[flat_file.path] = flat_file.bytes // self._dtype.itemsize
        # Files of ids alone do not state their type: this file does.
        metadata = numpy_flat.FlatMetadata(
            dtype=self._dtype.name,
            vocab_size=self.facts.vocab_size,
            bos_id=self.facts.bos_id,
            eos_id=self.facts.eos_id,
            pad_id=self.facts.pad_id,
            files=id_counts,
        )
        return {numpy_flat.METADATA: metadata.to_bytes()}


@final
class NumpyFile:
    """One file of ids while it is written, its borders, and its loss mask.

    The lengths of the documents wait in a file of their own: a compressed file of
    borders could not be continued after an interruption.

    Args:
        path: Path of the files without their suffixes.
        dtype: Type of the ids.
        suffix: End of the name of the file of ids.
        parts: Parts so far of files that are continued.
        has_loss_mask: True to write a file with the loss mask.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        suffix: str,
        parts: Sequence[Part] = (),
        *,
        has_loss_mask: bool,
    ) -> None:
        self._path = path
        self._dtype = dtype
        self._ids = PartFile(path, suffix, parts)
        self._lengths = NumberSpool(path, _LENGTHS_SUFFIX, parts)
        self._loss_mask: PartFile | None = None
        if has_loss_mask:
            self._loss_mask = PartFile(path, numpy_flat.LABEL_MASK_SUFFIX, parts)

    @property
    def bytes(self) -> int:
        return self._ids.bytes

    def write(self, rows: TokenRows) -> None:
        # Padding is left out, so that borders count the ids of documents alone.
        sequences = rows.sequences()
        self._ids.write_numbers(sequences.input_ids.astype(self._dtype, copy=False))
        self._lengths.write(sequences.lengths)
        if self._loss_mask is not None and sequences.loss_mask is not None:
            self._loss_mask.write_numbers(sequences.loss_mask.astype(MASK_TYPE))

    def so_far(self) -> list[Part]:
        # Borders are no part of it: they are written at the end, from the lengths.
        open_parts = [self._ids.so_far(), self._lengths.so_far()]
        if self._loss_mask is not None:
            open_parts.append(self._loss_mask.so_far())
        return open_parts

    def close(self) -> list[Part]:
        # The first part is that of the ids, as the export expects it.
        closed_parts = [self._ids.close()]
        with PartFile(self._path, numpy_flat.BORDERS_SUFFIX) as borders_file:
            writer = numpy_flat.BordersWriter(borders_file.file)
            for document_starts, document_ends in _borders(self._lengths.numbers()):
                writer.write(document_starts, document_ends)
            writer.close()
            closed_parts.append(borders_file.close())
        self._lengths.discard()
        if self._loss_mask is not None:
            closed_parts.append(self._loss_mask.close())
        return closed_parts

    def discard(self) -> None:
        self._ids.discard()
        self._lengths.discard()
        if self._loss_mask is not None:
            self._loss_mask.discard()


def _borders(lengths: npt.NDArray[np.int32]) -> Iterator[tuple[Int64, Int64]]:
    """Yield starts and ends of documents in pieces of equal size.

    Args:
        lengths: Number of ids of each document, int32[n].
    """
    # Each portion begins at the id at which the one before it ended.
    first_id = 0
    for first_document in range(0, len(lengths), _BORDERS_AT_A_TIME):
        portion = lengths[first_document : first_document + _BORDERS_AT_A_TIME]
        offsets = offsets_of(portion) + first_id
        yield offsets[:-1], offsets[1:]
        first_id = int(offsets[-1])

"""The packers of OLMo-core and TRL, where they are installed, on lengths of
documents.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Rows made of some documents, documents that are cut, tokens that are in no
    row, CPU seconds.
    """

    rows: int
    cut: int
    lost: int
    seconds: float


class Peer(Protocol):
    """Another project's packer."""

    def missing(self) -> str | None:
        """Say why it cannot run here, or None."""
        ...

    def place(self, lengths: Int64, seq_length: int) -> Placed:
        """Place documents of `lengths` (int64[n])."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Trl:
    """``trl.pack_dataset``, given all documents at once (by default it packs a
    thousand at a time).
    """

    strategy: str

    def missing(self) -> str | None:
        return _missing("trl") or _missing("datasets")

    def place(self, lengths: Int64, seq_length: int) -> Placed:
        datasets, trl = (
            importlib.import_module("datasets"),
            importlib.import_module("trl"),
        )
        datasets.disable_progress_bars()
        pa = importlib.import_module("pyarrow")
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids: Any = pa.LargeListArray.from_arrays(
            offsets, np.zeros(int(offsets[-1]), np.int32)
        )
        dataset = datasets.Dataset(pa.table({"input_ids": ids}))
        began = time.process_time()
        options = {"batch_size": len(lengths), "keep_in_memory": True}
        packed = trl.pack_dataset(
            dataset, seq_length, self.strategy, map_kwargs=options
        )
        seconds = time.process_time() - began
        column = packed.with_format("arrow")["input_ids"]
        kept = sum(
            len(chunk.flatten()) for chunk in getattr(column, "chunks", [column])
        )
        return Placed(
            rows=len(packed),
            cut=int((lengths > seq_length).sum()),
            lost=int(lengths.sum()) - kept,
            seconds=seconds,
        )


@final
@dataclass(frozen=True, slots=True)
class OlmoCore:
    """OLMo-core's ``InstancePacker``; documents longer than a row are cut off, or
    fragmented, before it sees them.
    """

    fragment: bool

    def missing(self) -> str | None:
        return _missing("olmo_core.data.utils")

    def place(self, lengths: Int64, seq_length: int) -> Placed:
        packer = importlib.import_module("olmo_core.data.utils").InstancePacker(
            seq_length
        )
        pieces = self._pieces(lengths, seq_length)
        ends = np.cumsum(pieces)
        indices = np.stack([ends - pieces, ends], axis=1).astype(np.uint64)
        began = time.process_time()
        rows, _, kept = packer.pack_documents(indices)
        return Placed(
            rows=len(rows),
            cut=int((lengths > seq_length).sum()),
            lost=int(lengths.sum()) - int(kept),
            seconds=time.process_time() - began,
        )

    def _pieces(self, lengths: Int64, seq_length: int) -> Int64:
        if not self.fragment:
            return np.minimum(lengths, seq_length)
        count = -(-lengths // seq_length)
        pieces = np.full(int(count.sum()), seq_length, np.int64)
        pieces[np.cumsum(count) - 1] = lengths - (count - 1) * seq_length
        return pieces


PEERS: Final[dict[str, Peer]] = {
    "TRL bfd": Trl("bfd"),
    "TRL bfd_split": Trl("bfd_split"),
    "OLMo-core truncate": OlmoCore(fragment=False),
    "OLMo-core fragment": OlmoCore(fragment=True),
}


def _missing(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"{module} cannot be imported: {error}"
    return None

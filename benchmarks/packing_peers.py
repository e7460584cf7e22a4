"""Packers of OLMo-core and TRL, applied to lengths of documents.

They are optional: a packer that is not installed is left out.
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
class Placement:
    """Result of packing some documents.

    Attributes:
        rows: Number of rows.
        cut: Number of documents that are cut.
        lost: Number of tokens that are in no row.
        seconds: CPU seconds.
    """

    rows: int
    cut: int
    lost: int
    seconds: float


class Peer(Protocol):
    """Packer of another project."""

    def missing(self) -> str | None:
        """Return why the packer cannot run; None if it can."""
        ...

    def place(self, lengths: Int64, seq_length: int) -> Placement:
        """Pack documents.

        Args:
            lengths: Number of tokens of each document, int64[n].
            seq_length: Number of tokens per row.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class Trl:
    """``trl.pack_dataset`` on all documents at once. Its default is 1,000 at a time.

    Attributes:
        strategy: Name of the strategy.
    """

    strategy: str

    def missing(self) -> str | None:
        return _missing("trl") or _missing("datasets")

    def place(self, lengths: Int64, seq_length: int) -> Placement:
        datasets = importlib.import_module("datasets")
        trl = importlib.import_module("trl")
        pa = importlib.import_module("pyarrow")
        datasets.disable_progress_bars()
        # 1. A dataset of documents whose tokens are all 0.
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = np.zeros(int(offsets[-1]), np.int32)
        ids: Any = pa.LargeListArray.from_arrays(offsets, tokens)
        dataset = datasets.Dataset(pa.table({"input_ids": ids}))
        # 2. Packing, which also copies the tokens.
        start_time = time.process_time()
        packed = trl.pack_dataset(
            dataset,
            seq_length,
            self.strategy,
            map_kwargs={"batch_size": len(lengths), "keep_in_memory": True},
        )
        seconds = time.process_time() - start_time
        # 3. The number of packed tokens.
        column = packed.with_format("arrow")["input_ids"]
        chunks = getattr(column, "chunks", [column])
        packed_tokens = sum(len(chunk.flatten()) for chunk in chunks)
        return Placement(
            rows=len(packed),
            cut=int((lengths > seq_length).sum()),
            lost=int(lengths.sum()) - packed_tokens,
            seconds=seconds,
        )


@final
@dataclass(frozen=True, slots=True)
class OlmoCore:
    """``InstancePacker`` of OLMo-core.

    Attributes:
        fragment: True to cut documents that are longer than a row into several; False
            to truncate them.
    """

    fragment: bool

    def missing(self) -> str | None:
        return _missing("olmo_core.data.utils")

    def place(self, lengths: Int64, seq_length: int) -> Placement:
        utils = importlib.import_module("olmo_core.data.utils")
        packer = utils.InstancePacker(seq_length)
        pieces = self._pieces(lengths, seq_length)
        # Begin and end of each piece in the sequence of all tokens.
        ends = np.cumsum(pieces)
        bounds = np.stack([ends - pieces, ends], axis=1).astype(np.uint64)
        start_time = time.process_time()
        rows, _, packed_tokens = packer.pack_documents(bounds)
        return Placement(
            rows=len(rows),
            cut=int((lengths > seq_length).sum()),
            lost=int(lengths.sum()) - int(packed_tokens),
            seconds=time.process_time() - start_time,
        )

    def _pieces(self, lengths: Int64, seq_length: int) -> Int64:
        """Return the lengths of pieces that fit into a row, int64[m]."""
        if not self.fragment:
            return np.minimum(lengths, seq_length)
        # All pieces of a document are full, except its last one.
        counts = -(-lengths // seq_length)
        pieces = np.full(int(counts.sum()), seq_length, np.int64)
        last_pieces = np.cumsum(counts) - 1
        pieces[last_pieces] = lengths - (counts - 1) * seq_length
        return pieces


PEERS: Final[dict[str, Peer]] = {
    "TRL bfd": Trl("bfd"),
    "TRL bfd_split": Trl("bfd_split"),
    "OLMo-core truncate": OlmoCore(fragment=False),
    "OLMo-core fragment": OlmoCore(fragment=True),
}
"""Name in the report -> packer."""


def _missing(module: str) -> str | None:
    """Return why a module cannot be imported; None if it can."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"{module} cannot be imported: {error}"
    return None

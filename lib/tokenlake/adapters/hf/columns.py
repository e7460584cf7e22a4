"""Our columns by the names of Hugging Face, and what a user wants to call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.loader.assemble import Batch
from tokenlake.loader.dataset import Dataset

_MADE_OF: Final = {
    "input_ids": "input_ids",
    "labels": "labels",
    "position_ids": "positions",
    "attention_mask": "segment_ids",
    "segment_ids": "segment_ids",
    "loss_mask": "loss_mask",
    "targets": "targets",
}
_DEFAULT: Final = ("input_ids", "labels", "position_ids")
_LOSS: Final = frozenset({"labels", "targets"})


@final
@dataclass(frozen=True)
class HfColumns:
    """Which columns a dataset of Hugging Face has.

    Attributes:
        names: name of Hugging Face (of what is stored, where a dataset is not packed) -> name in the dataset.
        packed: whether rows are made of our columns; else they are taken as stored.
    """

    names: tuple[tuple[str, str], ...]
    packed: bool

    @classmethod
    def of(cls, data: Dataset, columns: Sequence[str] | None, rename: Mapping[str, str] | None) -> Self:
        """Choose columns; ConfigError where there are no such."""
        packed = data.kind == "packed"
        allowed = tuple(_MADE_OF) if packed else tuple(data.schema.names)
        chosen = (_DEFAULT if packed else allowed) if columns is None else tuple(columns)
        wrong = [name for name in chosen if name not in allowed]
        if isinstance(columns, str) or wrong or not chosen or len(set(chosen)) != len(chosen):
            raise ConfigError(f"columns: got {columns!r}, must be some of {', '.join(allowed)}, each once")
        others = dict(rename or {})
        if unknown := sorted(set(others) - set(chosen)):
            raise ConfigError(f"rename: got {', '.join(unknown)}, the columns are {', '.join(chosen)}")
        names = [others.get(name, name) for name in chosen]
        if len(set(names)) != len(names):
            raise ConfigError(f"rename: two columns would have one name: {', '.join(names)}")
        return cls(tuple(zip(chosen, names, strict=True)), packed)

    @property
    def ours(self) -> tuple[str, ...]:
        """The columns of our batches that are needed."""
        return tuple(dict.fromkeys(_MADE_OF[name] for name, _ in self.names))

    def of_batch(self, batch: Batch, *, wide_labels: bool) -> dict[str, Any]:
        """Return the columns of one of our batches by their new names; `wide_labels`: those of losses int64."""
        return {new: _column(name, batch[_MADE_OF[name]], wide_labels) for name, new in self.names}


def _column(name: str, values: Any, wide_labels: bool) -> Any:
    if name == "attention_mask":
        return (values > 0).astype(np.int8)
    return values.astype(np.int64) if wide_labels and name in _LOSS else values
